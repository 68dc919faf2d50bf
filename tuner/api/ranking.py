"""Configurations of a study by what it is after: tokens a second, or the user's objective."""

from bisect import bisect_right
from collections.abc import Iterable
from dataclasses import dataclass

from results_db.intervals import Interval, combine
from results_db.queries import LeaderboardRow
from search_spaces.parallel_config import ParallelConfig
from tuner.custom import Objective
from tuner.outcomes import config_from
from tuner.trial import Trial


@dataclass(frozen=True, kw_only=True)
class Ranked:
    """One configuration with its medians over all its completed trials.

    `position` is 1 + the number of configurations that are better beyond doubt; those that the
    measurements cannot tell apart share a position.
    """

    position: int
    config: ParallelConfig
    score: float
    """The study's objective: tokens a second, or what the user's function gave."""
    score_low: float
    score_high: float
    tokens_per_s: float
    step_time_s: float
    peak_memory_bytes: int
    mfu: float | None
    num_trials: int
    trial_number: int
    """The first completed trial of the configuration."""

    @property
    def label(self) -> str:
        """The configuration for people."""
        return self.config.short()


def by_speed(rows: Iterable[LeaderboardRow]) -> list[Ranked]:
    """The database's leaderboard."""
    return [
        _ranked(
            row,
            row.position,
            Interval(row.tokens_per_s, row.tokens_per_s_low, row.tokens_per_s_high),
        )
        for row in rows
    ]


def by_objective(
    rows: Iterable[LeaderboardRow], trials: Iterable[Trial], objective: Objective
) -> list[Ranked]:
    """The leaderboard in the order of an objective.

    The interval of a trial's score is what the objective says at both ends of its step time's
    interval, so that an objective which does not depend on time has none.

    Raises:
        ConfigError: the objective failed for one of the trials.
    """
    spans: dict[str, list[Interval]] = {}
    for trial in trials:
        if (span := _span(trial, objective)) is not None:
            spans.setdefault(trial.config.config_key, []).append(span)
    known = [(row, combine(spans[row.config_key])) for row in rows if row.config_key in spans]
    sign = 1.0 if objective.direction == "maximize" else -1.0
    lows = sorted(min(sign * span.low, sign * span.high) for _, span in known)
    ranked = []
    for row, span in known:
        high = max(sign * span.low, sign * span.high)
        ranked.append(_ranked(row, 1 + len(lows) - bisect_right(lows, high), span))
    return sorted(ranked, key=lambda row: (row.position, -sign * row.score))


def _ranked(row: LeaderboardRow, position: int, score: Interval) -> Ranked:
    return Ranked(
        position=position,
        config=config_from(row.knobs),
        score=score.median,
        score_low=score.low,
        score_high=score.high,
        tokens_per_s=row.tokens_per_s,
        step_time_s=row.step_time_s,
        peak_memory_bytes=row.peak_memory_bytes,
        mfu=row.mfu,
        num_trials=row.num_trials,
        trial_number=row.trial_number,
    )


def _span(trial: Trial, objective: Objective) -> Interval | None:
    middle = objective.score(trial)
    if middle is None:
        return None
    ends = [objective.score(end) for end in trial.bounds()]
    values = sorted([middle, *(value for value in ends if value is not None)])
    return Interval(middle, values[0], values[-1])
