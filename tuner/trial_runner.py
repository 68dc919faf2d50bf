"""Carries single trials through the launcher: starts, watches, ends and stores them."""

import contextlib
import logging
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime
from pathlib import Path

from results_db.errors import IllegalTransition
from results_db.records import Lease, Purpose, TrialOutcome, TrialRecord, TrialStatus
from search_spaces.parallel_config import ParallelConfig
from trainer.contract import (
    FailureKind,
    FailureReport,
    Phase,
    StepRecord,
    TrialJob,
    TrialOutput,
)
from tuner.errors import LauncherError
from tuner.outcomes import config_of, outcome_of, pruned_outcome
from tuner.ports import Clock, Launcher, TrialEvent, TrialHandle
from tuner.study import Study
from tuner.trial_life import judge

log = logging.getLogger(__name__)
STOP_TIMEOUT_S = 15.0
POLL_S = 0.02


@dataclass
class _Running:
    """A trial under way."""

    record: TrialRecord
    config: ParallelConfig
    handle: TrialHandle
    submitted_s: float
    name: str = field(init=False)
    num_steps_seen: int = 0
    is_pruned: bool = False

    def __post_init__(self) -> None:
        self.name = self.config.short()


@dataclass(frozen=True)
class _Ended:
    """A trial that has ended and is not stored yet."""

    record: TrialRecord
    config: ParallelConfig
    output: TrialOutput
    elapsed_s: float
    is_pruned: bool = False


class TrialRunner:
    """The trials under way of one study.

    Args:
        study: gives the jobs' inputs and the store.
        launcher: an open launcher.
        lease: in whose name trials are claimed.
        clock: the time.
        is_excluded: whether these steps of a trial already exclude it from the lead.
        on_event: shown every change.
    """

    def __init__(
        self,
        study: Study,
        launcher: Launcher,
        lease: Lease,
        clock: Clock,
        is_excluded: Callable[[Sequence[StepRecord]], bool],
        on_event: Callable[[TrialEvent], None],
    ) -> None:
        self._study = study
        self._store = study.store
        self._launcher = launcher
        self._lease = lease
        self._clock = clock
        self._is_excluded = is_excluded
        self._on_event = on_event
        self._running: dict[int, _Running] = {}

    @property
    def ids(self) -> list[int]:
        """Ids of the trials under way."""
        return list(self._running)

    @property
    def names(self) -> tuple[str, ...]:
        """Short names of the configurations under way."""
        return tuple(running.name for running in self._running.values())

    def start(self, records: Sequence[TrialRecord]) -> list[TrialRecord]:
        """Claim and launch those queued trials that there is room for, from the first on.

        All are claimed in one transaction. A lone trial is left to the launcher to judge.

        Returns:
            The records as they are stored now; none when nothing could start.

        Raises:
            LauncherError: a trial can never run; it is stored as failed first.
        """
        fitting: list[tuple[TrialRecord, ParallelConfig]] = []
        num_devices = 0
        for record in records:
            config = config_of(record)
            num_devices += config.world_size
            is_alone = not (fitting or self._running)
            if not is_alone and not self._launcher.has_room(num_devices):
                break
            fitting.append((record, config))
        if not fitting:
            return []
        lease = replace(self._lease, heartbeat_at=datetime.now(UTC))
        folders = {_id(record): self._folder(record) for record, _ in fitting}
        times = self._store.claim_trials(folders, lease)
        claimed = [
            replace(record, status=TrialStatus.RUNNING, started_at=when, lease=lease,
                    folder=str(folders[_id(record)]))
            for (record, _), when in zip(fitting, times, strict=True)
        ]  # fmt: skip
        started = 0
        try:
            for record, (_, config) in zip(claimed, fitting, strict=True):
                # together they have room, but one of them may leave the next too small a gap
                if self._running and not self._launcher.has_room(config.world_size):
                    break
                started += 1
                self._launch(record, config, folders[_id(record)])
        finally:
            for record in claimed[started:]:
                self._store.requeue_trial(_id(record))
        return claimed[:started]

    def _launch(self, record: TrialRecord, config: ParallelConfig, folder: Path) -> None:
        self._tell(record, config, "started")
        submitted_s = self._clock.monotonic_s()
        try:
            handle = self._launcher.submit(self._job(record, config), folder.absolute())
        except LauncherError as error:
            failure = FailureReport(
                failure=FailureKind.LAUNCH, phase=Phase.LAUNCH, message=str(error)
            )
            self._end([_Ended(record, config, TrialOutput(failures=[failure]), 0.0)])
            raise
        self._running[_id(record)] = _Running(record, config, handle, submitted_s)

    def _folder(self, record: TrialRecord) -> Path:
        """A folder that no earlier run of this row has used: a requeued trial runs again."""
        assert record.number is not None  # noqa: S101 -- given by the store
        attempt = record.attempt
        while (folder := self._study.paths.trial(record.number, attempt)).exists():
            attempt += 1
        return folder

    def _job(self, record: TrialRecord, config: ParallelConfig) -> TrialJob:
        study = self._study
        return TrialJob(
            trial_id=f"{study.name}-{record.number}",
            model=study.model,
            training=study.training,
            config=config,
            measure=study.config.measure_spec(),
            seed=record.seed,
            device_kind=study.cluster.device_kind,
            threads_per_rank=study.cluster.threads_per_device,
            peak_flops_per_s=study.cluster.peak_flops_per_s.get(config.dtype),
            memory_limit_bytes=study.memory_limit_bytes,
        )

    def poll(self) -> list[int]:
        """Store what has ended and show new steps; the ids of the trials that ended."""
        ended = []
        for running in self._running.values():
            output = running.handle.poll()
            if output is None:
                self._watch(running)
                continue
            elapsed_s = self._clock.monotonic_s() - running.submitted_s
            is_pruned = running.is_pruned and output.result is None
            ended.append(_Ended(running.record, running.config, output, elapsed_s, is_pruned))
        self._end(ended)
        for item in ended:
            del self._running[_id(item.record)]
        return [_id(item.record) for item in ended]

    def _watch(self, running: _Running) -> None:
        steps = running.handle.progress().steps
        if len(steps) <= running.num_steps_seen:
            return
        running.num_steps_seen = len(steps)
        last = steps[-1]
        self._tell(
            running.record, running.config, "step", step=last.step, step_time_s=last.step_time_s
        )
        is_search = running.record.purpose is Purpose.SEARCH
        total = running.handle.job.measure.measured_steps
        is_nearly_done = sum(not step.is_warmup for step in steps) >= total - 1
        if is_search and not (running.is_pruned or is_nearly_done) and self._is_excluded(steps):
            running.is_pruned = True
            running.handle.cancel()

    def _end(self, ended: Sequence[_Ended]) -> None:
        """Store what trials left, in one transaction, and show it."""
        verdicts = [judge(item.output) for item in ended]
        stored = [
            pruned_outcome(item.output)
            if item.is_pruned
            else outcome_of(item.output, verdict, item.elapsed_s)
            for item, verdict in zip(ended, verdicts, strict=True)
        ]
        lost = self._store_ends(
            {_id(item.record): end for item, end in zip(ended, stored, strict=True)}
        )
        for item, verdict in zip(ended, verdicts, strict=True):
            if _id(item.record) in lost:
                self._tell(item.record, item.config, "requeued", "another process runs it now")
                continue
            if item.is_pruned:
                self._tell(item.record, item.config, "pruned", "its first steps exclude it")
                continue
            result = item.output.result if verdict.status is TrialStatus.COMPLETED else None
            failure = verdict.failure
            self._tell(
                item.record,
                item.config,
                verdict.status.value,
                f"{failure.failure}: {failure.message}" if failure else "",
                tokens_per_s=result.tokens_per_s if result else None,
                step_time_s=result.step_time_s if result else None,
            )

    def _store_ends(self, ends: Mapping[int, TrialOutcome]) -> set[int]:
        """Store outcomes by trial; the ids of those that another process was given meanwhile."""
        rows = [(trial_id, outcome, None) for trial_id, outcome in ends.items()]
        try:
            self._store.finish_trials(rows, self._lease)
        except IllegalTransition:
            if len(ends) > 1:
                return set().union(*(self._store_ends({key: end}) for key, end in ends.items()))
            log.warning("a trial's result is not stored: another process runs it now")
            return set(ends)
        return set()

    def stop(self, reason: str) -> None:
        """Cancel what runs and put it back in the queue, so that a resumed study runs it again."""
        for running in self._running.values():
            running.handle.cancel()
        deadline_s = self._clock.monotonic_s() + STOP_TIMEOUT_S
        while self._running:
            is_late = self._clock.monotonic_s() >= deadline_s
            for trial_id, running in list(self._running.items()):
                if is_late or running.handle.poll() is not None:
                    del self._running[trial_id]
                    with contextlib.suppress(IllegalTransition):  # another process has it
                        self._store.requeue_trial(trial_id, self._lease)
                    self._tell(running.record, running.config, "requeued", reason)
            if self._running:
                self._clock.sleep_s(POLL_S)

    def beat(self, now: datetime) -> None:
        """Say that the trials' owner lives."""
        if self._running:
            self._store.heartbeat(list(self._running), now)

    def _tell(
        self,
        record: TrialRecord,
        config: ParallelConfig,
        event: str,
        message: str = "",
        *,
        tokens_per_s: float | None = None,
        step_time_s: float | None = None,
        step: int | None = None,
    ) -> None:
        assert record.number is not None  # noqa: S101 -- given by the store
        self._on_event(
            TrialEvent(
                event=event,
                number=record.number,
                config=config,
                message=message,
                tokens_per_s=tokens_per_s,
                step_time_s=step_time_s,
                step=step,
            )
        )


def _id(record: TrialRecord) -> int:
    assert record.id is not None  # noqa: S101 -- given by the store
    return record.id
