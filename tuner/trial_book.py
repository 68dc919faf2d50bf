"""What the decisions need to know of a study's trials, kept up to date in constant time a change.

A study may hold a hundred thousand trials, so nothing that is asked at every turn walks over them.
"""

from collections.abc import Iterable, Iterator
from dataclasses import dataclass

from results_db.records import Purpose, TrialStatus


@dataclass(frozen=True, kw_only=True)
class TrialView:
    """A trial as the decisions see it."""

    trial_id: int
    config_key: str
    status: TrialStatus
    purpose: Purpose = Purpose.SEARCH
    attempt: int = 1
    repeat: int = 0
    is_transient: bool = False
    tokens_per_s: float | None = None
    score: float | None = None
    """What a study with an objective orders its trials by, more is better."""
    relative_spread: float = 0.0
    """Interquartile range of the step times over their median."""
    device_s: float = 0.0
    """Wall clock of the trial times its devices."""


class TrialBook:
    """The trials of one study by id; `put` adds one or replaces what was known of it."""

    def __init__(self, trials: Iterable[TrialView] = ()) -> None:
        self._trials: dict[int, TrialView] = {}
        self._with_status: dict[TrialStatus, dict[int, None]] = {
            status: {} for status in TrialStatus
        }
        self._latest: dict[tuple[str, int], TrialView] = {}
        self._retryable: dict[tuple[str, int], None] = {}
        self._max_repeat: dict[str, int] = {}
        self.num_proposed = 0
        """Points that count against the budget of trials: first attempts of first measurements."""
        self.spent_device_s = 0.0
        for trial in trials:
            self.put(trial)

    def __iter__(self) -> Iterator[TrialView]:
        return iter(self._trials.values())

    def __len__(self) -> int:
        return len(self._trials)

    def __contains__(self, trial: object) -> bool:
        return isinstance(trial, TrialView) and self._trials.get(trial.trial_id) == trial

    def put(self, trial: TrialView) -> None:
        """Add a trial, or replace the one of the same id."""
        if (old := self._trials.get(trial.trial_id)) is not None:
            del self._with_status[old.status][old.trial_id]
            self._count(old, -1)
        self._trials[trial.trial_id] = trial
        self._with_status[trial.status][trial.trial_id] = None
        self._count(trial, 1)
        self._max_repeat[trial.config_key] = max(
            trial.repeat, self._max_repeat.get(trial.config_key, 0)
        )
        self._note_attempt(trial)

    def _count(self, trial: TrialView, sign: int) -> None:
        is_first = trial.attempt == 1 and trial.repeat == 0
        is_search = trial.purpose is Purpose.SEARCH
        if is_first and is_search and trial.status is not TrialStatus.CANCELLED:
            self.num_proposed += sign
        self.spent_device_s += sign * trial.device_s

    def _note_attempt(self, trial: TrialView) -> None:
        identity = (trial.config_key, trial.repeat)
        latest = self._latest.get(identity)
        if latest is not None and latest.attempt > trial.attempt:
            return
        self._latest[identity] = trial
        if trial.status is TrialStatus.FAILED and trial.is_transient:
            self._retryable[identity] = None
        else:
            self._retryable.pop(identity, None)

    def count(self, status: TrialStatus) -> int:
        """Trials in this status."""
        return len(self._with_status[status])

    @property
    def num_finished(self) -> int:
        """Trials in a terminal status."""
        return sum(len(ids) for status, ids in self._with_status.items() if status.is_terminal)

    def first(self, status: TrialStatus, limit: int) -> list[TrialView]:
        """Up to `limit` trials in this status, in the order in which they came into it."""
        ids = self._with_status[status]
        return [self._trials[trial_id] for trial_id, _ in zip(ids, range(limit), strict=False)]

    def retryable(self, max_retries: int, limit: int) -> list[TrialView]:
        """Up to `limit` transient failures with attempts left and no later attempt."""
        found: list[TrialView] = []
        for identity in self._retryable:
            if len(found) == limit:
                break
            if (trial := self._latest[identity]).attempt <= max_retries:
                found.append(trial)
        return found

    def max_repeat(self, config_key: str) -> int:
        """Highest repeat of a point so far."""
        return self._max_repeat.get(config_key, 0)

    def is_tried(self, config_key: str) -> bool:
        """Whether any trial of this point exists."""
        return config_key in self._max_repeat
