"""The loop that runs a study: asks, launches, polls, stores. Decisions are `state_machine`'s."""

import logging
import threading
import time
from dataclasses import dataclass, replace
from datetime import UTC, datetime

from results_db.records import (
    Purpose,
    StudyStatus,
    TrialRecord,
    TrialStatus,
    TrialSummary,
)
from search_spaces.parallel_config import ParallelConfig
from trainer.contract import FailureKind, FailureReport, Phase, TrialJob, TrialOutput
from tuner import registry
from tuner.errors import LauncherError, StorageProblem
from tuner.leases import lease_is_dead, own_lease
from tuner.outcomes import config_of, observation_of, outcome_of, progress_of, trial_view
from tuner.ports import (
    Clock,
    Launcher,
    Searcher,
    StudyObserver,
    StudyProgress,
    TrialEvent,
    TrialHandle,
)
from tuner.state_machine import Action, ActionKind, Limits, StudyView, judge, next_actions
from tuner.study import Study, untried_rows

log = logging.getLogger(__name__)

POLL_S = 0.02
HEARTBEAT_S = 5.0
STOP_TIMEOUT_S = 15.0


class SystemClock:
    """The real time."""

    def monotonic_s(self) -> float:
        """Seconds of the system's monotonic clock."""
        return time.monotonic()

    def sleep_s(self, duration_s: float) -> None:
        """Sleep."""
        time.sleep(duration_s)


@dataclass(frozen=True)
class StudyOutcome:
    """How a run of the controller ended."""

    status: StudyStatus
    reason: str
    num_trials: int
    num_completed: int


@dataclass
class _Running:
    """A trial under way."""

    record: TrialRecord
    config: ParallelConfig
    handle: TrialHandle
    submitted_s: float
    num_steps_seen: int = 0


class Controller:
    """Runs one study to its end, or until it is told to stop.

    The database is the truth: every decision is made from its rows, so that a controller that was
    killed anywhere is followed by one that goes on from what is stored.
    """

    def __init__(
        self,
        study: Study,
        searcher: Searcher,
        launcher: Launcher,
        observer: StudyObserver,
        stop: threading.Event,
        clock: Clock | None = None,
    ) -> None:
        self._study = study
        self._store = study.store
        self._searcher = searcher
        self._launcher = launcher
        self._observer = observer
        self._stop = stop
        self._clock = clock or SystemClock()
        self._running: dict[int, _Running] = {}
        self._rows: dict[int, TrialSummary] = {}
        self._is_exhausted = False
        search = study.config.search
        self._limits = Limits(
            max_trials=search.max_trials,
            max_time_s=search.max_time_s,
            parallel_trials=search.parallel_trials,
            max_retries=search.max_retries,
            confirm_top=search.confirm_top,
            confirm_repeats=search.confirm_repeats,
        )
        self._lease = own_lease()
        self._started_s = self._clock.monotonic_s()
        self._heartbeat_s = self._started_s

    def run(self) -> StudyOutcome:
        """Run the study; returns when it is finished or stopped, with nothing left running."""
        self._take_study()
        try:
            self._launcher.open()
            self._check_devices()
            self._recover()
            self._add_baseline()
            return self._loop()
        finally:
            self._launcher.close()
            self._store.release_study(self._study.id, self._lease)

    # -- life of the study -------------------------------------------------------------------

    def _take_study(self) -> None:
        record = self._store.get_study(self._study.id)
        holder = self._store.study_lease(self._study.id)
        if holder is not None and not lease_is_dead(holder, datetime.now(UTC)):
            raise StorageProblem(
                f"study {record.name!r} is being run by process {holder.pid} on {holder.host}",
                hint="wait for it, or stop it first",
            )
        self._store.claim_study(self._study.id, self._lease, takeover=holder is not None)
        self._store.set_study_status(self._study.id, StudyStatus.RUNNING)

    def _check_devices(self) -> None:
        needed = max(candidate.config.world_size for candidate in self._study.candidates)
        if (available := self._launcher.num_devices()) < needed:
            raise LauncherError(
                f"the study needs {needed} devices and the launcher has {available}",
                hint="lower the cluster's devices, or set use_all_devices = false in [space]",
            )

    def _recover(self) -> None:
        """Put trials back in the queue whose controller is dead."""
        self._rows = {_id(row.trial): row for row in self._store.trials(self._study.id)}
        for row in list(self._rows.values()):
            trial = row.trial
            if trial.status is TrialStatus.RUNNING and lease_is_dead(
                trial.lease, datetime.now(UTC)
            ):
                self._store.requeue_trial(_id(trial))
                self._refresh(_id(trial))
                self._tell(trial, "requeued", "its controller had died")

    def _add_baseline(self) -> None:
        config = self._study.config.search.baseline
        if config is None or any(
            row.trial.purpose is Purpose.BASELINE for row in self._rows.values()
        ):
            return
        self._add(config, purpose=Purpose.BASELINE, source="baseline")

    def _loop(self) -> StudyOutcome:
        while True:
            self._poll()
            actions = next_actions(self._view())
            for action in actions:
                if action.kind is ActionKind.STOP:
                    return self._interrupt(action.reason)
                if action.kind is ActionKind.FINISH:
                    return self._finish(action.reason)
                self._carry_out(action)
            self._beat()
            if not actions or not self._has_room():
                self._clock.sleep_s(POLL_S)

    def _carry_out(self, action: Action) -> None:
        if action.kind is ActionKind.ASK:
            self._ask(action.count)
            return
        assert action.trial_id is not None  # noqa: S101 -- the other kinds name a trial
        trial = self._rows[action.trial_id].trial
        if action.kind is ActionKind.RUN:
            self._start(trial)
        elif action.kind is ActionKind.RETRY:
            self._add(
                config_of(trial), trial.purpose, trial.source, trial.attempt + 1, trial.repeat
            )
        elif action.kind is ActionKind.CONFIRM:
            repeats = [
                row.trial.repeat
                for row in self._rows.values()
                if row.trial.config_key == trial.config_key
            ]
            self._add(config_of(trial), Purpose.CONFIRM, "confirm", repeat=max(repeats) + 1)

    def _finish(self, reason: str) -> StudyOutcome:
        tried = {row.trial.config_key for row in self._rows.values()}
        self._store.add_untried(self._study.id, untried_rows(self._study, tried, reason))
        self._store.set_study_status(self._study.id, StudyStatus.COMPLETED)
        return self._outcome(StudyStatus.COMPLETED, reason)

    def _interrupt(self, reason: str) -> StudyOutcome:
        """Cancel what runs and put it back in the queue, so that a resumed study repeats it."""
        for running in self._running.values():
            running.handle.cancel()
        deadline_s = self._clock.monotonic_s() + STOP_TIMEOUT_S
        while self._running and self._clock.monotonic_s() < deadline_s:
            for trial_id, running in list(self._running.items()):
                if running.handle.poll() is not None:
                    del self._running[trial_id]
                    self._store.requeue_trial(trial_id)
                    self._tell(running.record, "requeued", reason)
            self._clock.sleep_s(POLL_S)
        for trial_id in list(self._running):
            self._store.requeue_trial(trial_id)
        self._store.set_study_status(self._study.id, StudyStatus.INTERRUPTED)
        return self._outcome(StudyStatus.INTERRUPTED, reason)

    def _outcome(self, status: StudyStatus, reason: str) -> StudyOutcome:
        statuses = [row.trial.status for row in self._rows.values()]
        return StudyOutcome(
            status=status,
            reason=reason,
            num_trials=sum(item.is_terminal for item in statuses),
            num_completed=statuses.count(TrialStatus.COMPLETED),
        )

    # -- trials ------------------------------------------------------------------------------

    def _view(self) -> StudyView:
        return StudyView(
            limits=self._limits,
            trials=tuple(trial_view(row) for row in self._rows.values()),
            elapsed_s=self._clock.monotonic_s() - self._started_s,
            is_exhausted=self._is_exhausted,
            stop_requested=self._stop.is_set(),
        )

    def _has_room(self) -> bool:
        return len(self._running) < self._limits.parallel_trials

    def _ask(self, count: int) -> None:
        self._searcher.tell([observation_of(row) for row in self._rows.values()])
        configs = self._searcher.ask(count)
        if len(configs) < count:
            self._is_exhausted = True
            self._observer.on_message("every point of the space has been proposed")
        for config in configs:
            self._add(config, Purpose.SEARCH, self._searcher.name)

    def _add(
        self,
        config: ParallelConfig,
        purpose: Purpose,
        source: str,
        attempt: int = 1,
        repeat: int = 0,
    ) -> None:
        measure = self._study.config.measure
        record = self._store.add_trial(
            TrialRecord(
                study_id=self._study.id,
                config_key=config.config_key,
                knobs=config.model_dump(mode="json"),
                purpose=purpose,
                attempt=attempt,
                repeat=repeat,
                seed=self._study.config.search.seed,
                warmup_steps=measure.warmup_steps,
                measured_steps=measure.measured_steps,
                source=source,
            )
        )
        self._rows[_id(record)] = TrialSummary(trial=record)

    def _start(self, trial: TrialRecord) -> None:
        config = config_of(trial)
        if self._running and not self._launcher.has_room(config.world_size):
            self._clock.sleep_s(POLL_S)
            return
        assert trial.number is not None  # noqa: S101 -- given by the store
        folder = self._study.paths.trial(trial.number, self._attempts_of(trial))
        now = datetime.now(UTC)
        self._store.claim_trial(_id(trial), replace(self._lease, heartbeat_at=now), folder)
        self._refresh(_id(trial))
        trial = self._rows[_id(trial)].trial
        self._tell(trial, "started")
        submitted_s = self._clock.monotonic_s()
        try:
            handle = self._launcher.submit(self._job(trial, config), folder.absolute())
        except LauncherError as error:
            failure = FailureReport(
                failure=FailureKind.LAUNCH, phase=Phase.LAUNCH, message=str(error)
            )
            self._end(trial, TrialOutput(failures=[failure]), 0.0)
            raise
        self._running[_id(trial)] = _Running(trial, config, handle, submitted_s)

    def _attempts_of(self, trial: TrialRecord) -> int:
        """A folder number that no earlier run of this row has used (a requeued row runs again)."""
        assert trial.number is not None  # noqa: S101 -- given by the store
        attempt = trial.attempt
        while self._study.paths.trial(trial.number, attempt).exists():
            attempt += 1
        return attempt

    def _job(self, trial: TrialRecord, config: ParallelConfig) -> TrialJob:
        study = self._study
        return TrialJob(
            trial_id=f"{study.record.name}-{trial.number}",
            model=study.model,
            training=study.training,
            config=config,
            measure=study.config.measure_spec(),
            seed=trial.seed,
            device_kind=study.cluster.device_kind,
            threads_per_rank=study.cluster.threads_per_device,
            peak_flops_per_s=study.cluster.peak_flops_per_s.get(config.dtype),
            memory_limit_bytes=study.memory_limit_bytes,
        )

    def _poll(self) -> None:
        for trial_id, running in list(self._running.items()):
            output = running.handle.poll()
            if output is None:
                self._watch(running)
                continue
            del self._running[trial_id]
            elapsed_s = self._clock.monotonic_s() - running.submitted_s
            self._end(running.record, output, elapsed_s)

    def _watch(self, running: _Running) -> None:
        """Show a trial's new steps."""
        steps = running.handle.progress().steps
        if len(steps) == running.num_steps_seen:
            return
        running.num_steps_seen = len(steps)
        last = steps[-1]
        self._tell(running.record, "step", step=last.step, step_time_s=last.step_time_s)

    def _end(self, trial: TrialRecord, output: TrialOutput, elapsed_s: float) -> None:
        verdict = judge(output)
        self._store.finish_trial(_id(trial), outcome_of(output, verdict, elapsed_s))
        self._refresh(_id(trial))
        result = output.result if verdict.status is TrialStatus.COMPLETED else None
        self._tell(
            trial,
            verdict.status.value,
            f"{verdict.failure.failure}: {verdict.failure.message}" if verdict.failure else "",
            tokens_per_s=result.tokens_per_s if result else None,
            step_time_s=result.step_time_s if result else None,
        )

    def _refresh(self, trial_id: int) -> None:
        number = self._rows[trial_id].trial.number
        assert number is not None  # noqa: S101 -- given by the store
        self._rows[trial_id] = self._store.trial(self._study.id, number)

    def _beat(self) -> None:
        now_s = self._clock.monotonic_s()
        if now_s - self._heartbeat_s < HEARTBEAT_S:
            return
        self._heartbeat_s = now_s
        now = datetime.now(UTC)
        self._store.heartbeat(list(self._running), now)
        self._store.heartbeat_study(self._study.id, now, self._lease)

    # -- progress ----------------------------------------------------------------------------

    def _tell(
        self,
        trial: TrialRecord,
        event: str,
        message: str = "",
        *,
        tokens_per_s: float | None = None,
        step_time_s: float | None = None,
        step: int | None = None,
    ) -> None:
        assert trial.number is not None  # noqa: S101 -- given by the store
        self._observer.on_event(
            TrialEvent(
                event=event,
                number=trial.number,
                config=config_of(trial),
                message=message,
                tokens_per_s=tokens_per_s,
                step_time_s=step_time_s,
                step=step,
            ),
            self._progress(),
        )

    def _progress(self) -> StudyProgress:
        return progress_of(
            list(self._rows.values()),
            self._limits,
            num_legal_points=len(self._study.candidates),
            running=tuple(running.config.short() for running in self._running.values()),
            elapsed_s=self._clock.monotonic_s() - self._started_s,
        )


def _id(trial: TrialRecord) -> int:
    assert trial.id is not None  # noqa: S101 -- given by the store
    return trial.id


def make_searcher(study: Study) -> Searcher:
    """The searcher that the study names, over its candidates."""
    search = study.config.search
    searcher: Searcher = registry.load("searchers", search.searcher)(
        study.candidates, seed=search.seed, **dict(search.options)
    )
    return searcher


def make_launcher(study: Study) -> Launcher:
    """The launcher that the study names."""
    settings = study.config.launcher
    options = dict(settings.options)
    if settings.address:
        options["address"] = settings.address
    if settings.name == "simulated":
        options.setdefault("cluster", study.cluster)
    launcher: Launcher = registry.load("launchers", settings.name)(
        num_devices=study.cluster.num_devices, run_folder=study.paths.root.absolute(), **options
    )
    return launcher


def run_study(
    study: Study, observer: StudyObserver, stop: threading.Event | None = None
) -> StudyOutcome:
    """Run `study` until its budget or space is used up, or `stop` is set.

    Raises:
        LauncherError: trials cannot be run at all.
        StorageProblem: another controller runs the study, or the database fails.
    """
    controller = Controller(
        study, make_searcher(study), make_launcher(study), observer, stop or threading.Event()
    )
    return controller.run()
