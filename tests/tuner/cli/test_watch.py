"""`tuner watch` on a study that another connection writes."""

import json
import threading
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest

import results_db
from results_db.records import (
    FailureRow,
    Lease,
    MeasurementRow,
    StudyRecord,
    StudyStatus,
    TrialOutcome,
    TrialRecord,
    TrialStatus,
)
from search_spaces.parallel_config import ParallelConfig
from tuner.cli import main
from tuner.web.study_pulse import take_pulse

NOW = datetime.now(UTC)
CONFIGS = [ParallelConfig(tp=tp, micro_batch_size=size) for tp in (1, 2) for size in (1, 2, 4)]


def measured(step_time_s: float) -> TrialOutcome:
    row = MeasurementRow(
        step_time_s=step_time_s, step_time_iqr_s=0.0, tokens_per_s=100 / step_time_s,
        tokens_per_step=100, num_microbatches=1, num_parameters=1, num_layers=1,
        model_flops_per_step=1.0, hardware_flops_per_step=1.0, model_flops_per_s_per_device=1.0,
        hardware_flops_per_s_per_device=1.0, mfu=None, peak_memory_bytes=1, final_loss=None,
        startup_s=0.0,
    )  # fmt: skip
    return TrialOutcome(status=TrialStatus.COMPLETED, measurement=row)


@pytest.fixture
def url(tmp_path: Path) -> str:
    """A study with three trials that ended, one that runs and a controller that lives."""
    path = tmp_path / "results.db"
    lease = Lease(host="h", pid=1, process_started_at=NOW, heartbeat_at=NOW)
    with results_db.open(path) as store:
        study = store.create_study(
            StudyRecord(
                name="going", searcher="random", launcher="local", model={"name": "m"}, cluster={},
                training={}, resolved_config="", config_hash="x", max_trials=6,
                created_at=NOW - timedelta(seconds=60),
            )
        )  # fmt: skip
        study_id = study.id or 0
        store.claim_study(study_id, lease)
        trials = [
            store.add_trial(
                TrialRecord(study_id=study_id, config_key=c.config_key,
                            knobs=c.model_dump(mode="json"))
            )
            for c in CONFIGS
        ]  # fmt: skip
        lost = FailureRow(kind="oom", phase="forward", message="no\nroom [bold]")
        ends = (
            measured(2.0),
            measured(1.0),
            TrialOutcome(status=TrialStatus.INFEASIBLE, failure=lost),
        )
        for place in range(4):
            store.claim_trial(trials[place].id or 0, lease, "folder")
        for place, end in enumerate(ends):
            store.finish_trial(trials[place].id or 0, end)
    return str(path)


def finish(url: str) -> None:
    with results_db.open(url) as store:
        study = store.get_study("going")
        for row in store.running_trials(study.id or 0):
            store.finish_trial(row.trial.id or 0, measured(0.5))
        store.release_study(study.id or 0)
        store.set_study_status(study.id or 0, StudyStatus.COMPLETED)


def test_the_state_is_counted(url: str) -> None:
    with results_db.open(url, read_only=True) as store:
        pulse = take_pulse(store, "going", datetime.now(UTC) + timedelta(seconds=60))
    assert pulse.counts == {"completed": 2, "infeasible": 1, "queued": 2, "running": 1}
    assert (pulse.num_searched, pulse.max_trials, pulse.num_finished) == (3, 6, 3)
    assert list(pulse.bests) == [50.0, 100.0]
    assert pulse.best_tokens_per_s == 100.0
    assert [row.number for row in pulse.running] == [4]
    assert [row.number for row in pulse.failures] == [3]
    assert not pulse.is_over
    # three of six in a minute: about another minute
    assert pulse.remaining_s == pytest.approx(60, rel=0.2)


def test_a_look_costs_as_many_queries_whatever_the_size(url: str) -> None:
    from sqlalchemy import event

    with results_db.open(url, read_only=True) as store:
        seen: list[str] = []
        event.listen(store.database.engine, "before_cursor_execute",
                     lambda *args: seen.append(args[2]))  # fmt: skip
        take_pulse(store, "going")
    assert len(seen) <= 12


def test_once_shows_it_and_ends(url: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["watch", "going", "--once", "--store", url]) == 0
    shown = capsys.readouterr().out
    assert "3/6 searched" in shown
    assert "best     100.0 tokens/s" in shown
    assert "oom: no room [bold]" in shown
    assert "running  #4" in shown


def test_json_is_for_machines(url: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["watch", "--once", "--json", "--store", url]) == 0
    document = json.loads(capsys.readouterr().out)
    assert document["best_tokens_per_s"] == 100.0
    assert document["num_finished"] == 3
    assert document["is_over"] is False


def test_it_follows_another_writer_to_the_end(url: str, capsys: pytest.CaptureFixture[str]) -> None:
    timer = threading.Timer(0.3, finish, [url])
    timer.start()
    assert main(["watch", "--interval", "0.1", "--store", url]) == 0
    timer.join()
    lines = capsys.readouterr().out.splitlines()
    assert "running #4" in lines[0]
    assert lines[-1].startswith("[4/6] 3 completed, 1 infeasible | running none | best 200.0")
    assert lines[-1].endswith("completed")


def test_a_study_whose_controller_left_is_over(url: str) -> None:
    with results_db.open(url) as store:
        study = store.get_study("going")
        store.release_study(study.id or 0)
        store.set_study_status(study.id or 0, StudyStatus.INTERRUPTED)
        assert take_pulse(store, "going").is_over


def test_an_unknown_study_is_one_sentence(url: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["watch", "nothing", "--once", "--store", url]) == 2
    assert "no study is called 'nothing'" in capsys.readouterr().err
