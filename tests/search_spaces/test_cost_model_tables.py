"""The benchmark that scores the model on tables of measured runs, on tables made up here."""

import json
import subprocess
import sys
from pathlib import Path

import numpy as np
import pandas as pd
import pytest

tables = pytest.importorskip("benchmarks.cost_model_tables")
scores = pytest.importorskip("benchmarks.cost_model_scores")

ROOT = Path(__file__).resolve().parents[2]
KEYS = {
    "mape", "median_error", "spearman", "regret_top1", "regret_top5", "coverage_90", "mape_memory",
    "oom_accuracy", "oom_false_alarm",
}  # fmt: skip


@pytest.fixture
def frame() -> pd.DataFrame:
    """Runs of a machine that is 1.5 times slower than the prior says, with some noise."""
    rows = [
        {
            "model": "m", "device": "NVIDIA A100 80GB", "layers": 24, "hidden_size": 2048,
            "attention_heads": 16, "devices": 8, "tp": tp, "pp": pp, "dp": 8 // (tp * pp),
            "micro_batch_size": size, "global_batch_size": 64, "recompute": kind,
        }
        for tp in (1, 2, 4) for pp in (1, 2) for size in (1, 2, 4, 8) for kind in ("none", "full")
    ]  # fmt: skip
    table = pd.DataFrame(rows)
    for name, value in tables.DEFAULTS.items():
        if name not in table:
            table[name] = value
    table["kv_heads"], table["ffn_size"] = table["attention_heads"], 4 * table["hidden_size"]
    predicted = scores.predict(table, {})
    noise = np.exp(0.03 * np.random.RandomState(0).randn(len(table)))
    table["step_time_s"] = 1.5 * predicted["predicted_s"] * noise
    table["peak_memory_gb"] = 1.2 * predicted["predicted_bytes"] / 2**30
    table["status"] = np.where(table["peak_memory_gb"] > 30.0, "oom", "ok")
    return table


def test_calibration_pays_and_scores_leave_out_what_was_fitted(frame):
    before, _ = scores.score_table(frame, 0)
    after, rows = scores.score_table(frame, 12)
    assert after.rows_calibrated == 12
    assert len(rows) == len(frame) - 12
    assert after.mape < 0.3 * before.mape
    assert after.mape_memory < 0.5 * before.mape_memory
    assert after.coverage_90 >= 0.85
    assert after.regret_top5 <= after.regret_top1


def test_rows_are_drawn_where_the_expression_holds_and_always_the_same(frame):
    drawn = scores.draw(frame, 5, "tp == 2 and recompute.str.contains('full')")
    assert len(drawn) == 5
    assert set(frame.loc[drawn, "tp"]) == {2}
    assert set(frame.loc[drawn, "status"]) == {"ok"}
    assert list(drawn) == list(scores.draw(frame, 5, "tp == 2 and recompute == 'full'"))


def test_another_table_may_teach(frame):
    other = frame[frame["recompute"] == "full"]
    here = frame[frame["recompute"] == "none"]
    result, rows = scores.score_table(here, 8, other=other)
    assert len(rows) == len(here)
    assert result.mape < 12


def test_the_command_takes_a_bare_table_of_unknown_devices(frame, tmp_path):
    columns = [
        "model", "device", "layers", "hidden_size", "attention_heads", "tp", "pp", "dp",
        "micro_batch_size", "global_batch_size", "step_time_s",
    ]  # fmt: skip
    path = tmp_path / "bare.csv"
    frame.loc[frame["status"] == "ok", columns].assign(device="Gizmo 9000").to_csv(path)
    command = [sys.executable, "-m", "benchmarks.cost_model", "--table", str(path)]
    done = subprocess.run(
        [*command, "--calibrate", "6", "--json"],
        cwd=ROOT, capture_output=True, text=True, check=True, timeout=100,
    )  # fmt: skip
    figures = json.loads(done.stdout.splitlines()[-1])
    assert set(figures) >= KEYS
    assert figures["rows_time"] > 0
    assert figures["mape"] is not None
    assert figures["mape_memory"] is figures["oom_accuracy"] is None


@pytest.mark.parametrize(
    ("name", "preset"),
    [("a100-40", 40), ("NVIDIA A100-SXM4-80GB", 80), ("h100-80", 80), ("mi250x-gcd", 64)],
)
def test_devices_are_found_by_name(name, preset):
    assert tables.hardware_by_name(name).memory_bytes == preset * 2**30


def test_layers_are_balanced_by_cost_as_nanotron_does():
    assert tables.deal(16, 4, 4.0) == (5, 5, 1, 4)
    assert tables.deal(32, 1, 2.0)[:3] == (-1, -1, -1)
    assert tables.deal(16, 16, 4.0).used < 16
    assert tables.deal(32, 4, 2.0).used == 4
    assert tables.deal(32, 16, 2.21)[:3] == (3, 3, 2)


def test_too_few_micro_batches_for_the_engine_are_illegal(frame):
    """nanotron asserts that a pipeline of p ranks gets p - 1 micro-batches at least."""
    row = frame.iloc[[0]].assign(
        layers=32, pp=8, dp=2, virtual_stages=1, micro_batch_size=1, tp=1, vocab_size=51200
    )
    stack = next(stack for stack in tables.STACKS if stack.name == "nanotron")
    for batch, expected in ((12, True), (14, False)):
        found = tables.is_illegal(row.assign(global_batch_size=batch), stack)
        assert found.tolist() == [expected]
        assert not tables.is_illegal(row.assign(global_batch_size=batch), tables.DEFAULT_STACK)[0]
