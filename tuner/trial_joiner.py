"""A helper that joins a study which another controller leads, and runs trials of its queue.

It proposes nothing: the leading controller queues up to `search.parallel_trials` trials, and
whoever has room claims the next one. So two never run the same trial or exceed a budget.
"""

import threading
from dataclasses import dataclass
from datetime import UTC, datetime

from results_db.errors import IllegalTransition
from results_db.records import StudyStatus, TrialStatus, TrialSummary
from tuner.clock import SystemClock
from tuner.errors import StorageProblem
from tuner.leases import HEARTBEAT_S, lease_is_dead, own_lease
from tuner.outcomes import config_of, progress_of, trial_view
from tuner.ports import Clock, Launcher, StudyObserver, TrialEvent
from tuner.state_machine import limits_of
from tuner.study import Study, make_launcher
from tuner.trial_book import TrialBook
from tuner.trial_runner import POLL_S, TrialRunner

LOOK_S = 1.0
"""How often the queue is looked at."""


@dataclass(frozen=True)
class JoinOutcome:
    """What a helper did."""

    num_trials: int
    """Trials that it ran to their end."""
    reason: str
    """Why it left."""


class Joiner:
    """Runs queued trials of a study on a launcher of its own, until the study is over."""

    def __init__(
        self,
        study: Study,
        launcher: Launcher,
        observer: StudyObserver,
        stop: threading.Event,
        clock: Clock | None = None,
    ) -> None:
        self._study = study
        self._store = study.store
        self._launcher = launcher
        self._observer = observer
        self._stop = stop
        self._clock = clock or SystemClock()
        self._limits = limits_of(study.config.search)
        self._runner = TrialRunner(
            study, launcher, own_lease(), self._clock, lambda steps: False, self._show
        )
        self._book = TrialBook()
        """Its own trials."""
        self._started_s = self._clock.monotonic_s()
        self._heartbeat_s = self._looked_s = self._started_s - LOOK_S

    def run(self) -> JoinOutcome:
        """Help until the study is over, is given up or `stop` is set; leaves nothing running.

        Raises:
            StorageProblem: nobody leads the study.
            LauncherError: trials cannot be run here.
        """
        if (reason := self._why_over()) is not None:
            raise StorageProblem(
                f"nobody leads study {self._study.name!r}: {reason}",
                hint="lead it yourself: `tuner resume` without --join",
            )
        self._launcher.open()
        try:
            return self._loop()
        finally:
            self._runner.stop("its helper leaves")
            self._launcher.close()

    def _loop(self) -> JoinOutcome:
        reason: str | None = None
        while reason is None or self._runner.ids:
            if ended := self._runner.poll():
                self._note(self._store.trials_by_id(ended))
            if self._stop.is_set():
                reason = "stopped by the user"
                break
            now_s = self._clock.monotonic_s()
            if now_s - self._looked_s >= LOOK_S:
                self._looked_s = now_s
                reason = reason or self._why_over()
                if reason is None:
                    self._take()
            if now_s - self._heartbeat_s >= HEARTBEAT_S:
                self._heartbeat_s = now_s
                self._runner.beat(datetime.now(UTC))
            self._clock.sleep_s(POLL_S)
        return JoinOutcome(self._book.num_finished, reason)

    def _why_over(self) -> str | None:
        """Why there is nothing more to help with; none while a controller leads the study."""
        record = self._store.get_study(self._study.id)
        if record.status is not StudyStatus.RUNNING:
            return f"it is {record.status.value}"
        if lease_is_dead(record.lease, datetime.now(UTC)):
            return "its controller is gone"
        return None

    def _take(self) -> None:
        """Start queued trials as far as there is room."""
        queued = self._store.trials(self._study.id, [TrialStatus.QUEUED])
        devices = self._launcher.num_devices()
        small = [row.trial for row in queued if config_of(row.trial).world_size <= devices]
        try:
            started = self._runner.start(small)
        except IllegalTransition:
            return  # another was faster; the next look shows what is left
        self._note([TrialSummary(trial=record) for record in started])

    def _note(self, rows: list[TrialSummary]) -> None:
        for row in rows:
            self._book.put(trial_view(row))

    def _show(self, event: TrialEvent) -> None:
        progress = progress_of(
            self._book,
            self._limits,
            best=None,
            num_legal_points=len(self._study.candidates),
            running=self._runner.names,
            elapsed_s=self._clock.monotonic_s() - self._started_s,
        )
        self._observer.on_event(event, progress)


def join_study(
    study: Study,
    observer: StudyObserver,
    stop: threading.Event | None = None,
    *,
    launcher: Launcher | None = None,
) -> JoinOutcome:
    """Help a study that another controller leads, on this machine's launcher.

    Raises:
        StorageProblem: nobody leads the study.
        LauncherError: trials cannot be run here.
    """
    launcher = launcher or make_launcher(study)
    return Joiner(study, launcher, observer, stop or threading.Event()).run()
