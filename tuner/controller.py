"""The loop that runs a study: asks, starts, polls, stores. Decisions are `state_machine`'s."""

import logging
import threading
from collections import deque
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass
from datetime import UTC, datetime

from results_db.errors import IllegalTransition, ResultsDbError
from results_db.records import (
    Purpose,
    StudyStatus,
    TrialRecord,
    TrialStatus,
    TrialSummary,
)
from search_spaces.parallel_config import ParallelConfig
from trainer.contract import StepRecord
from tuner.clock import SystemClock
from tuner.errors import LauncherError
from tuner.leaders import drift, excludes, has_drifted
from tuner.leases import HEARTBEAT_S, StudyHold, abandoned, own_lease, time_spent_s
from tuner.outcomes import (
    config_of,
    in_units_of,
    observation_of,
    preliminary,
    progress_of,
    trial_view,
)
from tuner.ports import (
    Clock,
    Launcher,
    Observation,
    Searcher,
    StudyObserver,
    TrialEvent,
)
from tuner.predictor import Predictor, error_sentence
from tuner.searchers.prospects import Hopeless, hopeless
from tuner.state_machine import Action, ActionKind, StudyView, limits_of, next_actions
from tuner.study import Study, make_launcher, make_searcher, untried_rows
from tuner.trial import trial_of
from tuner.trial_book import TrialBook
from tuner.trial_runner import POLL_S, TrialRunner

log = logging.getLogger(__name__)
LOOK_S = 1.0
"""How often trials are looked at that helpers run."""


@dataclass(frozen=True)
class StudyOutcome:
    """How a run of the controller ended."""

    status: StudyStatus
    reason: str
    num_trials: int
    num_completed: int


class Controller:
    """Runs one study to its end, or until it is told to stop.

    The database is the truth: what is kept here is only what its rows say, so that a controller
    that was killed anywhere is followed by one that goes on from what is stored.
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
        self._limits = limits_of(study.config.search)
        self._lease = own_lease()
        self._hold = StudyHold(study.store, study.id, study.name, self._lease)
        self._runner = TrialRunner(
            study, launcher, self._lease, self._clock, self._is_excluded, self._show
        )
        self._predictor = Predictor(study.model, study.training, study.cluster, study.is_kernel)
        self._book = TrialBook()
        self._observations: dict[int, Observation] = {}
        self._told: dict[int, Observation] = {}
        """What the searcher is told: the study's objective in place of the speed."""
        self._queued: dict[int, TrialRecord] = {}
        self._best: TrialSummary | None = None
        self._best_score = 0.0
        self._proposed: deque[ParallelConfig] = deque()
        self._is_exhausted = False
        self._hopeless: Hopeless | None = None
        self._started_s = self._heartbeat_s = self._looked_s = self._clock.monotonic_s()
        self._spent_before_s = 0.0  # by controllers before this one
        self._num_earlier_checks = 0

    def run(self) -> StudyOutcome:
        """Run the study; returns when it is finished or stopped, with nothing left running.

        Raises:
            LauncherError: trials cannot be run at all.
            StorageProblem: another controller runs the study.
        """
        self._hold.take()
        let_go = self._hold.release
        try:
            self._store.set_study_status(self._study.id, StudyStatus.RUNNING)
            self._launcher.open()
            self._check_devices()
            self._recover()
            self._add_baseline()
            return self._loop()
        except ResultsDbError:
            # the database is away, or another controller took over: nothing more can be said there
            let_go = self._hold.drop
            raise
        except BaseException:
            # the study can be resumed; trials that were under way are found dead by their lease
            self._store.set_study_status(self._study.id, StudyStatus.INTERRUPTED)
            raise
        finally:
            self._launcher.close()
            let_go()

    # -- life of the study -------------------------------------------------------------------

    def _check_devices(self) -> None:
        needed = max(candidate.config.world_size for candidate in self._study.candidates)
        if (available := self._launcher.num_devices()) < needed:
            raise LauncherError(
                f"the study needs {needed} devices and the launcher has {available}",
                hint="lower the cluster's devices, or set use_all_devices = false in [space]",
            )

    def _recover(self) -> None:
        """Read what is stored; running trials of dead processes are queued again."""
        rows = self._store.trials(self._study.id)
        self._spent_before_s = time_spent_s(row.trial for row in rows)
        self._num_earlier_checks = sum(
            row.trial.purpose is Purpose.DRIFT and row.trial.status.is_terminal for row in rows
        )
        self._take_over(rows)

    def _take_over(self, rows: Sequence[TrialSummary]) -> None:
        """Note rows that this process does not run, and queue those again that nobody runs."""
        for row in rows:
            self._note(row)
        for trial in abandoned(rows, self._lease):
            with suppress(IllegalTransition):  # its helper came back to life and ended it
                self._store.requeue_trial(_id(trial), trial.lease)
            self._refresh([_id(trial)])
            self._observer.on_message(f"trial {trial.number}: its process had died; it runs again")

    def _watch_helpers(self) -> None:
        """What became of trials that processes which joined the study run."""
        now_s = self._clock.monotonic_s()
        if now_s - self._looked_s < LOOK_S:
            return
        self._looked_s = now_s
        running = self._book.first(TrialStatus.RUNNING, len(self._book))
        mine = set(self._runner.ids)
        others = [trial.trial_id for trial in running if trial.trial_id not in mine]
        if others:
            self._take_over(self._store.trials_by_id(others))

    def _add_baseline(self) -> None:
        config = self._study.config.search.baseline
        if config is None or any(trial.purpose is Purpose.BASELINE for trial in self._book):
            return
        self._add([config], purpose=Purpose.BASELINE, source="baseline")

    def _loop(self) -> StudyOutcome:
        while True:
            self._refresh(self._runner.poll())
            self._watch_helpers()
            actions = next_actions(self._view())
            if not actions:
                self._clock.sleep_s(POLL_S)
            elif actions[0].kind is ActionKind.STOP:
                return self._interrupt(actions[0].reason)
            elif actions[0].kind is ActionKind.FINISH:
                return self._finish(actions[0].reason)
            elif actions[0].kind is ActionKind.RUN:
                self._start([trial_id for action in actions if (trial_id := action.trial_id)])
            else:
                for action in actions:
                    self._carry_out(action)
            self._beat()

    def _view(self) -> StudyView:
        return StudyView(
            limits=self._limits,
            trials=self._book,
            elapsed_s=self._elapsed_s(),
            is_exhausted=self._is_exhausted and not self._proposed,
            end_reason=self._hopeless.reason if self._hopeless else "",
            stop_requested=self._stop.is_set(),
            num_earlier_checks=self._num_earlier_checks,
        )

    def _elapsed_s(self) -> float:
        """Time spent on the study, by earlier controllers too."""
        return self._spent_before_s + self._clock.monotonic_s() - self._started_s

    def _carry_out(self, action: Action) -> None:
        if action.kind is ActionKind.ASK:
            self._ask(action.count)
            return
        assert action.trial_id is not None  # noqa: S101 -- the other kinds name a trial
        trial = self._store.trials_by_id([action.trial_id])[0].trial
        config = config_of(trial)
        if action.kind is ActionKind.RETRY:
            self._add([config], trial.purpose, trial.source, trial.attempt + 1, trial.repeat)
        else:
            is_check = action.kind is ActionKind.CHECK_DRIFT
            purpose = Purpose.DRIFT if is_check else Purpose.CONFIRM
            repeat = self._book.max_repeat(trial.config_key) + 1
            self._add([config], purpose, purpose.value, repeat=repeat)

    def _start(self, trial_ids: Sequence[int]) -> None:
        """Start queued trials as far as there is room."""
        try:
            started = self._runner.start([self._queued[trial_id] for trial_id in trial_ids])
        except IllegalTransition:  # a helper was faster
            self._refresh(trial_ids)
            return
        for record in started:
            self._note(TrialSummary(trial=record))
        if not started:
            self._clock.sleep_s(POLL_S)

    def _finish(self, reason: str) -> StudyOutcome:
        tried = {trial.config_key for trial in self._book}
        for rows in untried_rows(self._study, tried, reason, self._hopeless):
            self._store.add_untried(self._study.id, rows)
        if has_drifted(self._book):
            self._observer.on_message(
                "the machine changed speed during the study: its first configuration now runs at"
                f" {drift(self._book) or 0:.2f} of its first speed; compare with care"
            )
        predictions = self._store.predictions(self._study.id)
        if (sentence := error_sentence(predictions, self._observations.values())) is not None:
            self._observer.on_message(sentence)
        self._store.set_study_status(self._study.id, StudyStatus.COMPLETED)
        return self._outcome(StudyStatus.COMPLETED, reason)

    def _interrupt(self, reason: str) -> StudyOutcome:
        ids = self._runner.ids
        self._runner.stop(reason)
        self._refresh(ids)
        self._store.set_study_status(self._study.id, StudyStatus.INTERRUPTED)
        return self._outcome(StudyStatus.INTERRUPTED, reason)

    def _outcome(self, status: StudyStatus, reason: str) -> StudyOutcome:
        completed = self._book.count(TrialStatus.COMPLETED)
        return StudyOutcome(status, reason, self._book.num_finished, completed)

    # -- trials ------------------------------------------------------------------------------

    def _ask(self, count: int) -> None:
        if len(self._proposed) < count and not self._is_exhausted:
            wanted = max(count, self._searcher.lookahead)
            if self._searcher.lookahead == 1:  # else many are asked for at once, unseen
                self._predictor.learn(list(self._observations.values()))
            told, below = list(self._told.values()), self._study.config.search.stop_below
            self._searcher.tell(told)
            self._hopeless = hopeless(self._searcher, told, self._study.candidates, below)
            found = [] if self._hopeless else self._searcher.ask(wanted)
            self._proposed.extend(found)
            self._is_exhausted = len(found) < wanted
        points = [self._proposed.popleft() for _ in range(min(count, len(self._proposed)))]
        self._add(points, Purpose.SEARCH, self._searcher.name)

    def _add(
        self,
        configs: Sequence[ParallelConfig],
        purpose: Purpose,
        source: str,
        attempt: int = 1,
        repeat: int = 0,
    ) -> None:
        """Queue trials, with what is predicted of those that run for the first time."""
        measure = self._study.config.measure
        records = [
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
            for config in configs
        ]
        is_first = attempt == 1 and repeat == 0
        predictions = self._predictor.predict(configs) if is_first else []
        for record in self._store.add_trials(records, predictions):
            self._note(TrialSummary(trial=record))

    def _note(self, row: TrialSummary) -> None:
        """Take over what the database says of a trial."""
        trial_id = _id(row.trial)
        if row.trial.status is TrialStatus.QUEUED:
            self._queued[trial_id] = row.trial
        else:
            self._queued.pop(trial_id, None)
        objective = self._study.objective
        score = None if objective is None else objective.gain(trial_of(row))
        self._book.put(trial_view(row, score))
        candidate = self._study.by_key.get(row.trial.config_key)
        observation = observation_of(row, candidate.config if candidate else None)
        if row.trial.status is TrialStatus.PRUNED:
            steps = [s.step_time_s for s in self._store.steps(trial_id) if not s.is_warmup]
            observation = preliminary(observation, steps, self._study.training.tokens_per_step)
        self._observations[trial_id] = observation
        self._told[trial_id] = observation if score is None else in_units_of(score, observation)
        if row.measurement is not None:
            if self._hopeless and row.trial.purpose is Purpose.SEARCH:
                self._is_exhausted, self._hopeless = False, None  # it ran: so may others
            rank = row.measurement.tokens_per_s if score is None else score
            if self._best is None or rank > self._best_score:
                self._best, self._best_score = row, rank

    def _refresh(self, trial_ids: Sequence[int]) -> None:
        if trial_ids:
            for row in self._store.trials_by_id(trial_ids):
                self._note(row)

    def _is_excluded(self, steps: Sequence[StepRecord]) -> bool:
        """Steps compare directly: every trial of a study runs the same global batch."""
        best, study = self._best, self._study
        if not study.config.search.early_stop or study.objective is not None:
            return False  # what its steps say of a trial's speed says nothing of another objective
        if best is None or best.measurement is None:
            return False
        measured = [step.step_time_s for step in steps if not step.is_warmup]
        return excludes(measured, trial_view(best), best.measurement.step_time_s)

    def _beat(self) -> None:
        now_s = self._clock.monotonic_s()
        if now_s - self._heartbeat_s < HEARTBEAT_S:
            return
        self._heartbeat_s = now_s
        now = datetime.now(UTC)
        self._runner.beat(now)
        self._hold.beat(now)

    def _show(self, event: TrialEvent) -> None:
        self._observer.on_event(
            event,
            progress_of(
                self._book,
                self._limits,
                best=self._best,
                num_legal_points=len(self._study.candidates),
                running=self._runner.names,
                elapsed_s=self._elapsed_s(),
            ),
        )


def _id(trial: TrialRecord) -> int:
    assert trial.id is not None  # noqa: S101 -- given by the store
    return trial.id


def run_study(
    study: Study,
    observer: StudyObserver,
    stop: threading.Event | None = None,
    *,
    searcher: Searcher | None = None,
    launcher: Launcher | None = None,
) -> StudyOutcome:
    """Run `study` until its budget or space is used up, or `stop` is set.

    `searcher` and `launcher` are used in place of those that the study names.

    Raises:
        LauncherError: trials cannot be run at all.
        StorageProblem: another controller runs the study, or the database fails.
    """
    searcher = searcher or make_searcher(study)
    launcher = launcher or make_launcher(study)
    return Controller(study, searcher, launcher, observer, stop or threading.Event()).run()
