"""Medians with an interval that says how far two of them must lie apart to differ.

McGill, Tukey and Larsen, "Variations of Box Plots" (1978): the notch `median ± 1.57 IQR / sqrt(n)`;
two medians differ at about the 95 % level when their notches do not overlap.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from statistics import median

NOTCH = 1.57


@dataclass(frozen=True)
class Interval:
    """A median with its notch, in the unit of the values."""

    median: float
    low: float
    high: float


def quartile_range(values: Sequence[float]) -> float:
    """Third minus first quartile, by linear interpolation."""
    ordered = sorted(values)
    return _quantile(ordered, 0.75) - _quantile(ordered, 0.25)


def _quantile(ordered: Sequence[float], fraction: float) -> float:
    place = fraction * (len(ordered) - 1)
    below = math.floor(place)
    above = min(below + 1, len(ordered) - 1)
    return ordered[below] + (place - below) * (ordered[above] - ordered[below])


def throughput_interval(
    tokens_per_step: int, step_time_s: float, step_time_iqr_s: float, num_steps: int
) -> Interval:
    """Tokens/s of one trial: the notch of its step time, turned into throughput."""
    half_s = NOTCH * max(step_time_iqr_s, 0.0) / math.sqrt(max(num_steps, 1))
    # the notch of few, very noisy steps may reach past zero; a step takes some time all the same
    fastest_s = max(step_time_s - half_s, 0.1 * step_time_s)
    return Interval(
        tokens_per_step / step_time_s,
        tokens_per_step / (step_time_s + half_s),
        tokens_per_step / fastest_s,
    )


def combine(trials: Sequence[Interval]) -> Interval:
    """Median over repeats of a configuration.

    Its interval is the wider of two notches: the trials' own, averaged over repeats, and that of
    the spread between the repeats; the latter sees what no single trial can (another placement, a
    warmer machine).
    """
    centre = median(trial.median for trial in trials)
    root = math.sqrt(len(trials))
    between = NOTCH * quartile_range([trial.median for trial in trials]) / root
    below = max(median(trial.median - trial.low for trial in trials) / root, between)
    above = max(median(trial.high - trial.median for trial in trials) / root, between)
    return Interval(centre, max(centre - below, 0.0), centre + above)
