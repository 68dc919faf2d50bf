"""What the measurements say of the leaders: drift of the machine, order, and what to repeat."""

import math
import statistics
from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass

from results_db.records import Purpose, TrialStatus
from tuner.trial_book import TrialView


def to_check_drift(
    trials: Collection[TrialView], *, num_earlier_checks: int = 0, is_repeating: bool = False
) -> TrialView | None:
    """The first measured point, when it is to be measured again to see whether the speeds compare.

    That is once the search is over, and again when points were measured after the last check or
    when repeats go on in another session, as the machine may have changed in between.

    Args:
        trials: all of the study, in the order in which they were queued.
        num_earlier_checks: checks that were there when this session began.
        is_repeating: whether leaders are still to be measured again.
    """
    completed = [trial for trial in trials if trial.status is TrialStatus.COMPLETED]
    if len(completed) < 2:
        return None
    checks = [trial for trial in trials if trial.purpose is Purpose.DRIFT]
    last_check_id = max((trial.trial_id for trial in checks), default=0)
    is_behind = any(
        trial.trial_id > last_check_id and trial.purpose is not Purpose.CONFIRM
        for trial in completed
    )
    is_of_another_session = is_repeating and len(checks) == num_earlier_checks
    return completed[0] if is_behind or is_of_another_session else None


def drift(trials: Iterable[TrialView]) -> float | None:
    """Speed of the reference point in a later check over its first speed; the check furthest off.

    None where it was not measured again.
    """
    trials = list(trials)
    checks = [t for t in trials if t.purpose is Purpose.DRIFT and t.tokens_per_s]
    ratios = []
    for again in checks:
        first = next(
            trial
            for trial in trials
            if trial.config_key == again.config_key and trial.tokens_per_s is not None
        )
        if first.tokens_per_s and again.tokens_per_s:
            ratios.append(again.tokens_per_s / first.tokens_per_s)
    return max(ratios, key=lambda ratio: abs(math.log(ratio)), default=None)


def has_drifted(trials: Collection[TrialView], tolerance: float = 0.1) -> bool:
    """Whether the machine changed speed by more than `tolerance` and the reference's own spread."""
    ratio = drift(trials)
    if ratio is None:
        return False
    spread = max((t.relative_spread for t in trials if t.purpose is Purpose.DRIFT), default=0.0)
    return abs(ratio - 1.0) > max(tolerance, 2.0 * spread)


@dataclass(frozen=True)
class _Leader:
    """A measured point: its scores over repeats and the interval that they span."""

    trial: TrialView
    num_repeats: int
    median: float
    low: float
    high: float


def _score(trial: TrialView) -> float | None:
    return trial.tokens_per_s if trial.score is None else trial.score


def _leaders(trials: Iterable[TrialView]) -> list[_Leader]:
    """Measured points, fastest first."""
    measured: dict[str, list[TrialView]] = {}
    repeats: dict[str, int] = {}
    for trial in trials:
        if trial.status.is_terminal:
            repeats[trial.config_key] = max(repeats.get(trial.config_key, 0), trial.repeat)
        if trial.status is TrialStatus.COMPLETED and _score(trial) is not None:
            measured.setdefault(trial.config_key, []).append(trial)
    leaders = []
    for key, group in measured.items():
        lows = [(_score(t) or 0.0) * (1 - t.relative_spread / 2) for t in group]
        highs = [(_score(t) or 0.0) * (1 + t.relative_spread / 2) for t in group]
        median = statistics.median(_score(t) or 0.0 for t in group)
        leaders.append(_Leader(group[0], repeats[key], median, min(lows), max(highs)))
    return sorted(leaders, key=lambda leader: (-leader.median, leader.trial.config_key))


def to_confirm(trials: Iterable[TrialView], top: int, max_repeats: int) -> TrialView | None:
    """The unsettled leader with the fewest repeats, so that the repeats are interleaved.

    A leader is settled once it was repeated and its interval overlaps neither neighbour's.
    """
    leaders = _leaders(trials)
    foremost = leaders[:top]
    if len(leaders) < 2:
        return None
    unsettled = [
        leader
        for place, leader in enumerate(foremost)
        if leader.num_repeats < max_repeats
        and (leader.num_repeats == 0 or _overlaps_neighbour(foremost, place))
    ]
    return min(unsettled, key=lambda leader: leader.num_repeats).trial if unsettled else None


def _overlaps_neighbour(leaders: Sequence[_Leader], place: int) -> bool:
    mine = leaders[place]
    near = [leaders[i] for i in (place - 1, place + 1) if 0 <= i < len(leaders)]
    return any(mine.low <= other.high and other.low <= mine.high for other in near)


MIN_STEPS_TO_EXCLUDE = 3
EXCLUDING_FACTOR = 1.5


def excludes(measured_step_times_s: Sequence[float], best: TrialView, best_step_s: float) -> bool:
    """Whether a trial's first measured steps already exclude it from the lead.

    Even the fastest of at least `MIN_STEPS_TO_EXCLUDE` steps takes `EXCLUDING_FACTOR` times the
    leader's upper quartile: on a shared machine a smaller distance may be other people's load.
    """
    if len(measured_step_times_s) < MIN_STEPS_TO_EXCLUDE:
        return False
    upper_s = best_step_s * (1 + best.relative_spread)
    return min(measured_step_times_s) > EXCLUDING_FACTOR * upper_s
