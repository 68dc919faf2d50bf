import threading
from collections.abc import Callable
from pathlib import Path

import pytest

from results_db import queries
from results_db.records import (
    Purpose,
    StudyStatus,
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
from tuner.controller import Controller, StudyOutcome
from tuner.errors import LauncherError
from tuner.ports import StudyProgress, TrialEvent
from tuner.searchers.random import RandomSearcher
from tuner.study import Study

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
