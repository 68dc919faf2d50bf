"""`rank`, `show` and `studies` on a stored study."""

import csv
import io
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

import results_db
from results_db.records import (
    FailureRow,
    MeasurementRow,
    PredictionRow,
    Purpose,
    RankRow,
    StepRow,
    StudyRecord,
    StudyStatus,
    TrialOutcome,
    TrialRecord,
    TrialStatus,
)
from search_spaces.parallel_config import ParallelConfig
from tuner.cli import main
from tuner.config import study_config_from

TOKENS = 1024
# step times in seconds; the first is the baseline, the last two are within the noise of each other
STEP_TIMES = {ParallelConfig(dp=2): 0.4, ParallelConfig(tp=2): 0.2, ParallelConfig(pp=2): 0.201}
BROKEN = ParallelConfig(tp=2, micro_batch_size=8)


def measurement(step_time_s: float) -> MeasurementRow:
    return MeasurementRow(
        step_time_s=step_time_s, step_time_iqr_s=0.01 * step_time_s,
        tokens_per_s=TOKENS / step_time_s, tokens_per_step=TOKENS, num_microbatches=4,
        num_parameters=449_000, num_layers=8, model_flops_per_step=1e9, hardware_flops_per_step=2e9,
        model_flops_per_s_per_device=1e9 / step_time_s, mfu=0.25, peak_memory_bytes=300 * 2**20,
        hardware_flops_per_s_per_device=2e9 / step_time_s, final_loss=10.5, startup_s=0.5,
        overhead_s=0.8, versions={"torch": "2.13.0"},
    )  # fmt: skip


def outcome(step_time_s: float) -> TrialOutcome:
    steps = [
        StepRow(step=i, is_warmup=i < 2, step_time_s=step_time_s, loss=10.6, tokens=TOKENS)
        for i in range(5)
    ]
    ranks = [
        RankRow(
            rank=rank, hostname="node1", device="cpu", coordinates={"tp": rank}, stages=(0,),
            layers=(0, 1, 2, 3, 5), num_parameters=224_500, peak_memory_bytes=300 * 2**20,
            state_memory_bytes=2**20, breakdown_s={"forward": 0.05, "backward": 0.1},
        )
        for rank in range(2)
    ]  # fmt: skip
    return TrialOutcome(
        status=TrialStatus.COMPLETED,
        measurement=measurement(step_time_s),
        steps=tuple(steps),
        ranks=tuple(ranks),
    )


def failure() -> TrialOutcome:
    cause = FailureRow(
        kind="oom", phase="forward", message="DefaultCPUAllocator: can't allocate\n9 GB", rank=1,
        stage=0, step=2, traceback="Traceback (most recent call last):\n  the line that failed",
    )  # fmt: skip
    echo = FailureRow(kind="comm", phase="forward", message="peer closed", rank=0)
    return TrialOutcome(status=TrialStatus.INFEASIBLE, failure=cause, other_failures=(echo,))


def record(study_id: int, config: ParallelConfig, purpose: Purpose) -> TrialRecord:
    return TrialRecord(
        study_id=study_id,
        config_key=config.config_key,
        knobs=config.model_dump(mode="json"),
        purpose=purpose,
        source="cbo",
        measured_steps=3,
    )


@pytest.fixture
def database(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A study with three measured configurations and one that ran out of memory."""
    monkeypatch.chdir(tmp_path)
    path = tmp_path / "r.db"
    monkeypatch.setenv("TUNER_STORE", str(path))
    config = study_config_from({"model": {"source": "gpt2-tiny"}})
    with results_db.open(path, create=True) as store:
        study = store.create_study(
            StudyRecord(
                name="first", searcher="cbo", launcher="local", model={"name": "gpt2-tiny"},
                cluster={"name": "local", "num_nodes": 1, "devices_per_node": 2}, training={},
                resolved_config=config.to_toml(), config_hash=config.config_hash(),
                num_legal_points=80,
            )
        )  # fmt: skip
        study_id = study.id or 0
        purposes = [Purpose.BASELINE, Purpose.SEARCH, Purpose.SEARCH]
        pairs = [
            (record(study_id, point, purpose), outcome(step_time_s))
            for (point, step_time_s), purpose in zip(STEP_TIMES.items(), purposes, strict=True)
        ]
        store.add_results(study_id, [*pairs, (record(study_id, BROKEN, Purpose.SEARCH), failure())])
        key = ParallelConfig(tp=2).config_key
        store.add_predictions(
            study_id, [PredictionRow(config_key=key, model_name="analytic", step_time_s=0.25)]
        )
        store.set_study_status(study_id, StudyStatus.COMPLETED)
    return path


@pytest.fixture
def cli(database: Path, capsys: pytest.CaptureFixture[str]) -> Callable[..., tuple[int, str, str]]:
    def run(*arguments: str) -> tuple[int, str, str]:
        code = main(arguments)
        captured = capsys.readouterr()
        return code, captured.out, captured.err

    return run


Run = Callable[..., tuple[int, str, str]]


def test_rank_prints_positions_with_ties_and_speed_ups(cli: Run) -> None:
    code, out, err = cli("rank")
    assert code == 0
    header, first, second, third = out.splitlines()
    assert header.split() == [
        "#", "tokens/s", "±", "step", "MFU", "memory", "vs", "median", "vs", "baseline", "trial",
        "configuration",
    ]  # fmt: skip
    assert first.split()[:2] == ["1=", "5,120"]
    assert second.split()[:2] == ["1=", "5,095"]
    assert third.split()[:2] == ["3", "2,560"]
    assert "2.00x" in first
    assert first.endswith("tp2 pp1 dp1 mbs1")
    assert "1 trial gave no number" in err
    assert "cannot tell these apart" in err


def test_rank_top_and_all(cli: Run) -> None:
    _, out, err = cli("rank", "--top", "1")
    assert len(out.splitlines()) == 2
    assert "2 more configurations" in err
    _, out, _ = cli("rank", "first", "--all")
    assert "Trials without a number" in out
    assert "oom: DefaultCPUAllocator: can't allocate 9 GB" in out


def test_rank_as_json(cli: Run) -> None:
    _, out, _ = cli("rank", "--json", "--all")
    document = json.loads(out)
    assert [row["position"] for row in document["leaderboard"]] == [1, 1, 3]
    assert document["leaderboard"][0]["speedup_vs_baseline"] == pytest.approx(2.0)
    assert document["leaderboard"][0]["knobs"]["tp"] == 2
    assert document["without_a_number"][0]["kind"] == "oom"
    assert document["without_a_number"][0]["knobs"]["micro_batch_size"] == 8


def test_rank_as_csv(cli: Run) -> None:
    _, out, _ = cli("rank", "--csv")
    rows = list(csv.DictReader(io.StringIO(out)))
    assert [float(row["tokens_per_s"]) for row in rows] == pytest.approx([5120, 1024 / 0.201, 2560])
    assert [row["tp"] for row in rows] == ["2", "1", "1"]
    assert rows[0]["stage_layers"] == ""


def test_rank_of_an_unknown_study(cli: Run) -> None:
    code, out, err = cli("rank", "second")
    assert (code, out) == (2, "")
    assert "'second'" in err
    assert "first" in err.splitlines()[-1]


def test_show_of_a_measured_trial(cli: Run) -> None:
    code, out, _ = cli("show", "2")
    assert code == 0
    for text in (
        "trial 2 of first", "tp2 pp1 dp1 mbs1", "5,120", "IQR 2 ms", "predicted step   250 ms",
        "25.0 %", "5 GFLOP/s a device", "300 MiB", "torch 2.13.0", "warm-up", "measured",
        "0-3,5", "node1", "backward",
    ):  # fmt: skip
        assert text in out


def test_show_of_a_failed_trial_has_its_own_words(cli: Run) -> None:
    _, out, _ = cli("show", "4", "--study", "first")
    assert "failure: oom" in out
    assert "rank 1, stage 0, step 2" in out
    assert "DefaultCPUAllocator: can't allocate 9 GB" in out
    assert "failure: comm" in out
    assert out.index("failure: oom") < out.index("failure: comm")
    assert "the line that failed" not in out
    _, out, _ = cli("show", "4", "-v")
    assert "the line that failed" in out


def test_show_as_json(cli: Run) -> None:
    _, out, _ = cli("show", "2", "--json")
    document = json.loads(out)
    assert document["trial"]["knobs"]["tp"] == 2
    assert document["measurement"]["tokens_per_s"] == 5120
    assert len(document["steps"]) == 5
    assert document["ranks"][1]["coordinates"] == {"tp": 1}
    assert document["prediction"]["step_time_s"] == 0.25


def test_show_of_a_trial_that_does_not_exist(cli: Run) -> None:
    code, out, err = cli("show", "9")
    assert (code, out) == (2, "")
    assert err == "error: study 'first' has no trial 9\nhint: it has trials 1 to 4\n"


def test_studies(cli: Run) -> None:
    _, out, _ = cli("studies")
    assert out.splitlines()[1].split()[:2] == ["first", "completed"]
    assert out.splitlines()[1].endswith("tp2 pp1 dp1 mbs1")
    _, out, _ = cli("studies", "--json")
    facts: list[dict[str, Any]] = json.loads(out)
    assert facts[0]["num_trials"] == 4
    assert facts[0]["best_tokens_per_s"] == 5120


def test_an_empty_database_is_said_to_be_empty(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "empty.db"
    results_db.open(path, create=True).close()
    assert main(["studies", "--store", str(path)]) == 0
    assert "no study yet" in capsys.readouterr().err
    assert main(["rank", "--store", str(path)]) == 2
    assert "no study yet" in capsys.readouterr().err


def test_why_names_rules_and_the_nearest_legal_points(
    capsys: pytest.CaptureFixture[str],
) -> None:
    options = ("--model", "gpt2-tiny", "--devices", "2")
    assert main(["why", "tp=2,micro_batch_size=2", *options]) == 0
    assert capsys.readouterr().out == "tp2 pp1 dp1 mbs2 is legal\n"
    assert main(["why", "tp3 pp2", *options]) == 3
    out = capsys.readouterr().out
    assert "devices: " in out
    assert "nearest legal configurations:" in out
    assert main(["why", "tp3 pp2", *options, "--json"]) == 3
    document = json.loads(capsys.readouterr().out)
    assert document["is_legal"] is False
    assert document["violations"][0]["rule"] == "devices"
    assert len(document["nearest"]) == 3


def test_presets_and_spaces_list_everything(capsys: pytest.CaptureFixture[str]) -> None:
    from search_spaces.constraints import CONSTRAINTS
    from search_spaces.model_io import preset_names
    from search_spaces.parallel_config import KNOBS

    assert main(["presets"]) == 0
    out = capsys.readouterr().out
    assert all(name in out for name in (*preset_names(), "frontier"))
    assert main(["presets", "--json"]) == 0
    models = json.loads(capsys.readouterr().out)["models"]
    assert {row["name"] for row in models} == set(preset_names())
    assert main(["spaces"]) == 0
    out = capsys.readouterr().out
    rules = [rule.name for rule in CONSTRAINTS]
    assert all(name in out for name in (*KNOBS, *rules, "cbo", "random", "local", "ray"))
    assert main(["spaces", "--json"]) == 0
    assert [row["name"] for row in json.loads(capsys.readouterr().out)["knobs"]] == list(KNOBS)
