import threading
from collections.abc import Callable, Iterator
from datetime import UTC, datetime, timedelta
from pathlib import Path

import psutil
import pytest

from results_db import queries
from results_db.errors import Unreachable
from results_db.records import (
    Lease,
    Purpose,
    StudyStatus,
    TrialOutcome,
    TrialRecord,
    TrialStatus,
)
from search_spaces.parallel_config import ParallelConfig
from trainer.contract import (
    FailureKind,
    FailureReport,
    Phase,
    RankReport,
    StepRecord,
    TrialJob,
    TrialOutput,
    TrialReport,
)
from tuner.config import study_config_from
from tuner.controller import Controller, StudyOutcome
from tuner.errors import LauncherError, StorageProblem
from tuner.leases import lease_is_dead, own_lease, time_spent_s
from tuner.ports import StudyProgress, TrialEvent
from tuner.searchers.random import RandomSearcher
from tuner.study import Study, create_study, open_study

Answer = Callable[[TrialJob, int], TrialOutput | None]


def result_of(job: TrialJob) -> TrialOutput:
    """A measurement that depends on the configuration alone: more tp is faster."""
    step_time_s = 1.0 / (job.config.tp + 0.1 * job.config.micro_batch_size)
    tokens = job.training.tokens_per_step
    steps = [
        StepRecord(step=i, is_warmup=i == 0, step_time_s=step_time_s, loss=1.0, tokens=tokens)
        for i in range(3)
    ]
    ranks = [
        RankReport(
            rank=rank, hostname="h", device="cpu", coordinates={"dp": 0}, stages=[0], layers=[0],
            num_parameters=1, peak_memory_bytes=1000, state_memory_bytes=500,
        )
        for rank in range(job.config.world_size)
    ]  # fmt: skip
    result = TrialReport(
        step_time_s=step_time_s, step_time_iqr_s=0.01 * step_time_s, step_times_s=[step_time_s] * 2,
        tokens_per_s=tokens / step_time_s, tokens_per_step=tokens,
        num_microbatches=job.num_microbatches, num_parameters=1, num_layers=1,
        model_flops_per_step=1e9, hardware_flops_per_step=1e9, model_flops_per_s_per_device=1e9,
        hardware_flops_per_s_per_device=1e9, mfu=0.5, peak_memory_bytes=1000, final_loss=1.0,
        startup_s=0.1,
    )  # fmt: skip
    return TrialOutput(steps=steps, ranks=ranks, result=result)


def failed(kind: FailureKind) -> TrialOutput:
    report = FailureReport(failure=kind, phase=Phase.FORWARD, rank=1, message=f"a {kind}")
    return TrialOutput(failures=[report])


class Handle:
    def __init__(self, job: TrialJob, folder: Path, output: TrialOutput | None) -> None:
        self.job, self.folder, self._output, self.is_cancelled = job, folder, output, False

    def poll(self) -> TrialOutput | None:
        return TrialOutput() if self.is_cancelled else self._output

    def progress(self) -> TrialOutput:
        return TrialOutput()

    def cancel(self) -> None:
        self.is_cancelled = True


class FakeLauncher:
    """Answers at once with what `answer(job, how often this point was launched)` says."""

    name = "fake"

    def __init__(self, answer: Answer, devices: int = 2) -> None:
        self.answer, self.devices = answer, devices
        self.launched: list[str] = []
        self.is_open = False

    def open(self) -> None:
        self.is_open = True

    def close(self) -> None:
        self.is_open = False

    def num_devices(self) -> int:
        return self.devices

    def has_room(self, num_devices: int) -> bool:
        return num_devices <= self.devices

    def submit(self, job: TrialJob, folder: Path) -> Handle:
        self.launched.append(job.config.config_key)
        return Handle(job, folder, self.answer(job, self.launched.count(job.config.config_key)))


class Observer:
    def __init__(self) -> None:
        self.events: list[str] = []
        self.progress: StudyProgress | None = None

    def on_event(self, event: TrialEvent, progress: StudyProgress) -> None:
        self.events.append(event.event)
        self.progress = progress

    def on_message(self, text: str) -> None:
        self.events.append(text)


@pytest.fixture
def make_study(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Callable[..., Study]]:
    monkeypatch.setattr("tuner.study.measured_peaks", lambda cluster, dtypes: {"fp32": 1e12})
    opened: list[Study] = []

    def make(**search: object) -> Study:
        config = study_config_from(
            {
                "name": f"s{len(opened)}",
                "model": {"source": "gpt2-tiny"},
                "training": {"sequence_length": 32, "global_batch_size": 8},
                "cluster": {"devices": 2},
                "search": {"max_trials": 5, "confirm_top": 0, "check_drift": False, **search},
                "store": {"url": f"sqlite:///{tmp_path / 'results.db'}"},
            }
        )
        opened.append(create_study(config))
        return opened[-1]

    yield make
    for study in opened:
        study.store.close()


def run(
    study: Study, answer: Answer, stop: threading.Event | None = None, devices: int = 2
) -> tuple[StudyOutcome, FakeLauncher]:
    launcher = FakeLauncher(answer, devices)
    searcher = RandomSearcher(study.candidates, seed=0)
    controller = Controller(study, searcher, launcher, Observer(), stop or threading.Event())
    try:
        return controller.run(), launcher
    finally:
        assert not launcher.is_open


def test_a_study_runs_its_budget_and_ranks(make_study: Callable[..., Study]) -> None:
    study = make_study()
    outcome, launcher = run(study, lambda job, _: result_of(job))
    assert outcome.status is StudyStatus.COMPLETED
    assert outcome.num_completed == 5 == len(set(launcher.launched))
    rows = queries.leaderboard(study.store, study.id)
    assert [row.tokens_per_s for row in rows] == sorted(
        (row.tokens_per_s for row in rows), reverse=True
    )
    untried = study.store.untried(study.id)
    assert len(untried) == len(study.candidates) - 5
    assert all(row.reason for row in untried)
    assert study.store.study_lease(study.id) is None


def test_out_of_memory_is_infeasible_and_not_retried(make_study: Callable[..., Study]) -> None:
    study = make_study(max_retries=3)
    outcome, launcher = run(study, lambda job, _: failed(FailureKind.OOM))
    assert outcome.num_completed == 0
    assert len(launcher.launched) == 5
    for row in study.store.trials(study.id):
        assert row.trial.status is TrialStatus.INFEASIBLE
        assert row.failure is not None
        assert (row.failure.kind, row.failure.rank) == ("oom", 1)


def test_a_transient_failure_gets_a_second_attempt(make_study: Callable[..., Study]) -> None:
    study = make_study(max_trials=2, max_retries=1)
    outcome, launcher = run(
        study, lambda job, turn: failed(FailureKind.CRASH) if turn == 1 else result_of(job)
    )
    assert outcome.num_completed == 2
    assert len(launcher.launched) == 4
    attempts = [(row.trial.attempt, row.trial.status) for row in study.store.trials(study.id)]
    assert sorted(attempts) == [
        (1, TrialStatus.FAILED),
        (1, TrialStatus.FAILED),
        (2, TrialStatus.COMPLETED),
        (2, TrialStatus.COMPLETED),
    ]


def test_the_baseline_runs_first_and_the_leaders_are_confirmed(
    make_study: Callable[..., Study],
) -> None:
    study = make_study(baseline={"dp": 2}, confirm_top=2, confirm_repeats=2, max_trials=3)
    run(study, lambda job, _: result_of(job))
    trials = [row.trial for row in study.store.trials(study.id)]
    assert trials[0].purpose is Purpose.BASELINE
    confirmed = [trial.config_key for trial in trials if trial.purpose is Purpose.CONFIRM]
    assert len(confirmed) == 4
    assert confirmed[0] != confirmed[1]
    assert confirmed[:2] == confirmed[2:]


def test_stop_puts_the_running_trial_back_and_resume_goes_on(
    make_study: Callable[..., Study],
) -> None:
    study = make_study()
    stop = threading.Event()

    def answer(job: TrialJob, _: int) -> TrialOutput | None:
        if len(study.store.trials(study.id)) < 3:
            return result_of(job)
        stop.set()
        return None

    outcome, launcher = run(study, answer, stop)
    assert outcome.status is StudyStatus.INTERRUPTED
    statuses = [row.trial.status for row in study.store.trials(study.id)]
    assert statuses == [TrialStatus.COMPLETED, TrialStatus.COMPLETED, TrialStatus.QUEUED]
    again = open_study(study.config.store.url, study.name)
    outcome, second = run(again, lambda job, _: result_of(job))
    assert outcome.status is StudyStatus.COMPLETED
    assert outcome.num_completed == 5
    assert second.launched[0] == launcher.launched[-1]
    assert not set(second.launched) & set(launcher.launched[:-1])
    again.store.close()


def test_time_that_earlier_controllers_spent_counts() -> None:
    start = datetime(2026, 1, 1, tzinfo=UTC)

    def ran(begin_s: float, end_s: float) -> TrialRecord:
        return TrialRecord(
            study_id=1, config_key="k", knobs={}, started_at=start + timedelta(seconds=begin_s),
            finished_at=start + timedelta(seconds=end_s),
        )  # fmt: skip

    waiting = TrialRecord(study_id=1, config_key="k", knobs={})
    assert time_spent_s([]) == 0
    # two at once, one within another, a short pause between trials, a long one between controllers
    trials = [ran(0, 10), ran(5, 20), ran(6, 8), ran(25, 30), waiting, ran(5000, 5010)]
    assert time_spent_s(trials) == 40
    assert time_spent_s([ran(10, 5), ran(10, 11)]) == 1, "the clock was set back"


def test_a_resumed_study_does_not_get_its_time_anew(make_study: Callable[..., Study]) -> None:
    study = make_study(max_time_s=5.0)
    stop = threading.Event()

    def answer(job: TrialJob, _: int) -> TrialOutput:
        if len(study.store.trials(study.id)) == 2:
            stop.set()
        return result_of(job)

    run(study, answer, stop)
    begin = datetime.now(UTC) - timedelta(hours=1)
    ran_for_6_s = TrialRecord(
        study_id=study.id, config_key=study.candidates[-1].config.config_key, repeat=9,
        knobs=study.candidates[-1].config.model_dump(mode="json"), started_at=begin,
        finished_at=begin + timedelta(seconds=6),
    )  # fmt: skip
    study.store.add_results(study.id, [(ran_for_6_s, TrialOutcome(status=TrialStatus.FAILED))])
    again = open_study(study.config.store.url, study.name)
    outcome, second = run(again, lambda job, _: result_of(job))
    again.store.close()
    assert outcome.reason == "the time limit of 5 s is reached"
    assert second.launched == []


WRITES = ("add_trials", "claim_trials", "finish_trials", "add_untried", "set_study_status")


class Killed(BaseException):
    """Stands for the end of the controller's process."""


@pytest.mark.parametrize("when", ["before", "after"])
@pytest.mark.parametrize("write", WRITES)
@pytest.mark.parametrize("turn", [1, 3])
def test_a_controller_that_dies_at_a_write_loses_and_repeats_nothing(
    make_study: Callable[..., Study],
    monkeypatch: pytest.MonkeyPatch,
    write: str,
    when: str,
    turn: int,
) -> None:
    study = make_study()
    real = getattr(study.store, write)
    calls = [0]

    def dying(*arguments: object, **options: object) -> object:
        calls[0] += 1
        if calls[0] < turn:
            return real(*arguments, **options)
        if when == "after":
            real(*arguments, **options)
        raise Killed

    monkeypatch.setattr(study.store, write, dying)
    try:
        run(study, lambda job, _: result_of(job))
    except Killed:
        finished = {
            row.trial.config_key
            for row in study.store.trials(study.id)
            if row.trial.status.is_terminal
        }
    else:
        finished = {row.trial.config_key for row in study.store.trials(study.id)}
    monkeypatch.undo()
    # the dead controller's leases: its process is gone
    monkeypatch.setattr("tuner.leases.lease_is_dead", lambda lease, now: True)
    again = open_study(study.config.store.url, study.name)
    outcome, second = run(again, lambda job, _: result_of(job))
    rows = again.store.trials(again.id)
    again.store.close()
    assert outcome.num_completed == 5 == len(rows)
    assert all(row.trial.status is TrialStatus.COMPLETED for row in rows)
    assert not finished & set(second.launched)


def test_a_second_controller_is_refused(make_study: Callable[..., Study]) -> None:
    study = make_study()
    parent = psutil.Process().parent()
    assert parent is not None
    started = datetime.fromtimestamp(parent.create_time(), UTC)
    lease = own_lease()
    other = Lease(
        host=lease.host, pid=parent.pid, process_started_at=started, heartbeat_at=datetime.now(UTC)
    )
    study.store.claim_study(study.id, other)
    with pytest.raises(StorageProblem, match=str(parent.pid)):
        run(study, lambda job, _: result_of(job))
    assert study.store.study_lease(study.id) == other


def test_a_study_is_run_once_at_a_time_in_one_process_too(
    make_study: Callable[..., Study],
) -> None:
    study = make_study(max_trials=2)
    refused: list[str] = []

    def answer(job: TrialJob, _: int) -> TrialOutput:
        again = open_study(study.config.store.url, study.name)
        with pytest.raises(StorageProblem, match="is being run by process") as caught:
            run(again, lambda job, _: result_of(job))
        again.store.close()
        refused.append(caught.value.message)
        return result_of(job)

    outcome, _ = run(study, answer)
    assert outcome.num_completed == 2 == len(refused)


def test_a_study_that_lost_its_database_goes_on_in_the_same_process(
    make_study: Callable[..., Study], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Nothing is written on the way out, and the process that holds the lease may take it again."""
    study = make_study(max_trials=3)
    real = study.store.finish_trials
    writes: list[str] = []

    def away(*arguments: object, **options: object) -> object:
        if len(study.store.trials(study.id)) < 2:
            return real(*arguments, **options)  # type: ignore[arg-type]
        monkeypatch.setattr(study.store, "set_study_status", lambda *_: writes.append("status"))
        monkeypatch.setattr(study.store, "release_study", lambda *_: writes.append("release"))
        raise Unreachable("the server is away")

    monkeypatch.setattr(study.store, "finish_trials", away)
    with pytest.raises(Unreachable):
        run(study, lambda job, _: result_of(job))
    assert writes == []
    monkeypatch.undo()
    monkeypatch.setattr("tuner.study.measured_peaks", lambda cluster, dtypes: {"fp32": 1e12})
    again = open_study(study.config.store.url, study.name)
    outcome, _ = run(again, lambda job, _: result_of(job))
    again.store.close()
    assert outcome.num_completed == 3


def test_too_few_devices_is_one_sentence(make_study: Callable[..., Study]) -> None:
    study = make_study()
    with pytest.raises(LauncherError, match="needs 2 devices and the launcher has 1"):
        run(study, lambda job, _: result_of(job), devices=1)
    assert study.store.study_lease(study.id) is None
    assert study.store.get_study(study.id).status is StudyStatus.INTERRUPTED


def test_exhaustion_ends_the_study(make_study: Callable[..., Study]) -> None:
    study = make_study(max_trials=1000)
    outcome, launcher = run(study, lambda job, _: result_of(job))
    assert outcome.reason == f"all {len(study.candidates)} points tried"
    assert len(set(launcher.launched)) == len(study.candidates) == len(launcher.launched)


def test_leases() -> None:
    now = datetime.now(UTC)
    lease = own_lease()
    assert not lease_is_dead(lease, now)
    assert lease_is_dead(None, now)
    reused = Lease(
        host=lease.host,
        pid=lease.pid,
        process_started_at=lease.process_started_at - timedelta(hours=1),
        heartbeat_at=now,
    )
    assert lease_is_dead(reused, now)
    elsewhere = Lease(
        host="another", pid=1, process_started_at=now, heartbeat_at=now - timedelta(seconds=30)
    )
    assert not lease_is_dead(elsewhere, now)
    assert lease_is_dead(elsewhere, now + timedelta(minutes=5))


def test_a_stored_configuration_comes_back_equal() -> None:
    from tuner.outcomes import config_of

    config = ParallelConfig(pp=2, stage_layers=(3, 5), recompute="full", recompute_layers=1)
    knobs = config.model_dump(mode="json")
    assert config_of(TrialRecord(study_id=1, config_key="k", knobs=knobs)) == config


class SlowHandle(Handle):
    """Shows three slow steps and ends only when cancelled."""

    def poll(self) -> TrialOutput | None:
        return self.progress() if self.is_cancelled else None

    def progress(self) -> TrialOutput:
        steps = [
            StepRecord(step=i, is_warmup=i == 0, step_time_s=9.0, loss=1.0, tokens=256)
            for i in range(4)
        ]
        return TrialOutput(steps=steps)


def test_a_trial_whose_first_steps_exclude_it_is_stopped_and_kept(
    make_study: Callable[..., Study], monkeypatch: pytest.MonkeyPatch
) -> None:
    study = make_study(max_trials=3)
    submit = FakeLauncher.submit

    def slow_second(self: FakeLauncher, job: TrialJob, folder: Path) -> Handle:
        handle = submit(self, job, folder)
        return SlowHandle(job, folder, None) if len(self.launched) == 2 else handle

    monkeypatch.setattr(FakeLauncher, "submit", slow_second)
    outcome, _ = run(study, lambda job, _: result_of(job))
    statuses = [row.trial.status for row in study.store.trials(study.id)]
    assert statuses == [TrialStatus.COMPLETED, TrialStatus.PRUNED, TrialStatus.COMPLETED]
    assert outcome.status is StudyStatus.COMPLETED
    assert len(study.store.steps(study.store.trial(study.id, 2).trial.id or 0)) == 4


def test_a_machine_that_slowed_down_is_named(make_study: Callable[..., Study]) -> None:
    study = make_study(max_trials=3, check_drift=True)

    def answer(job: TrialJob, turn: int) -> TrialOutput:
        output = result_of(job)
        assert output.result is not None
        speed = output.result.tokens_per_s * (0.5 if turn == 2 else 1.0)
        slower = output.result.model_copy(update={"tokens_per_s": speed})
        return output.model_copy(update={"result": slower})

    launcher = FakeLauncher(answer)
    observer = Observer()
    searcher = RandomSearcher(study.candidates, seed=0)
    Controller(study, searcher, launcher, observer, threading.Event()).run()
    assert any("changed speed" in event and "0.50" in event for event in observer.events)
    purposes = [row.trial.purpose for row in study.store.trials(study.id)]
    assert purposes.count(Purpose.DRIFT) == 1
