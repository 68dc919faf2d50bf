"""`tuner plan` as a user calls it: tables, JSON, reasons, exit codes."""

import json

import pytest

from tuner.cli import main

COMMON = ["plan", "--model", "llama-mini", "--cluster", "laptop", "--global-batch", "16"]


def _json(capsys: pytest.CaptureFixture[str], *arguments: str, code: int = 0) -> dict:
    assert main([*COMMON, *arguments, "--json"]) == code
    return json.loads(capsys.readouterr().out)


def test_the_top_is_sorted_and_complete(capsys):
    found = _json(capsys, "--top", "3", "--tokens", "1e9", "--price", "2")
    times = [row["step_time_s"] for row in found["top"]]
    assert times == sorted(times)
    assert len(times) == 3
    for row in found["top"]:
        assert row["step_time_low_s"] < row["step_time_s"] < row["step_time_high_s"]
        assert sum(row["parts_s"].values()) == pytest.approx(row["step_time_s"])
        hours = 1e9 / row["tokens_per_s"] / 3600 * 4
        assert row["device_hours"] == pytest.approx(hours)
        assert row["cost"] == pytest.approx(2 * hours)
        peak = max(rank["total"] for rank in row["memory_by_rank_bytes"])
        assert peak == pytest.approx(row["peak_memory_bytes"])
    assert 0 < found["num_fitting"] <= found["num_legal"]


def test_tables_are_for_people(capsys):
    assert main([*COMMON, "--top", "2", "--tokens", "1e9", "--price", "2"]) == 0
    out = capsys.readouterr().out
    for word in ("predicted to fit", "tokens/s", "MFU", "bubble", "limited by", "cost", "rank"):
        assert word in out


def test_why_explains_a_legal_point(capsys):
    found = _json(capsys, "--why", "tp=2,pp=2,micro_batch_size=1")
    assert found["is_legal"]
    assert found["fits"]
    for change in found["better_changes"]:
        assert change["step_time_s"] < found["step_time_s"]
        assert change["changes"]
    assert main([*COMMON, "--why", "tp=2,pp=2"]) == 0
    assert "Where the time goes" in capsys.readouterr().out


def test_why_names_the_rule_of_an_illegal_point(capsys):
    found = _json(capsys, "--why", "tp=3,dp=1", code=3)
    assert not found["is_legal"]
    assert found["violations"][0]["message"]
    assert main([*COMMON, "--why", "tp=3"]) == 3
    assert "cannot run" in capsys.readouterr().out


def test_when_nothing_fits_the_nearest_changes_are_named(capsys):
    arguments = [
        "plan", "--model", "llama3-70b", "--cluster", "dgx-a100-80", "--devices", "8",
        "--dtype", "bf16", "--sequence-length", "2048", "--global-batch", "16",
        "--set", "space.recompute=[none]", "--set", "space.pipeline_schedule=[1f1b]",
        "--set", "space.virtual_stages=[1]",
    ]  # fmt: skip
    assert main([*arguments, "--json"]) == 3
    found = json.loads(capsys.readouterr().out)
    assert found["num_fitting"] == 0
    assert found["nodes_that_fit"] > 1
    assert found["changes"]
    assert main(arguments) == 3
    assert "nothing fits" in capsys.readouterr().out


def test_scaling_gives_both_tables(capsys):
    arguments = [
        "plan", "--model", "gpt3-175b", "--cluster", "dgx-a100-80", "--nodes", "16,32",
        "--dtype", "bf16", "--sequence-length", "2048", "--global-batch", "256",
        "--set", "space.pipeline_schedule=[1f1b]", "--set", "space.virtual_stages=[1]",
        "--set", "space.recompute=[full]", "--set", "space.zero_stage=[1]",
    ]  # fmt: skip
    assert main([*arguments, "--json"]) == 0
    found = json.loads(capsys.readouterr().out)
    assert [row["global_batch_size"] for row in found["weak"]] == [256, 512]
    assert [row["global_batch_size"] for row in found["strong"]] == [256, 256]
    assert found["strong"][1]["tokens_per_s"] > found["strong"][0]["tokens_per_s"]
    assert main(arguments) == 0
    assert "weak scaling" in capsys.readouterr().out


@pytest.mark.parametrize("nodes", ["", "a,b", "0", "4,-1"])
def test_wrong_node_counts_are_a_sentence(capsys, nodes):
    assert main([*COMMON, "--nodes", nodes]) == 2
    assert "--nodes is" in capsys.readouterr().err
