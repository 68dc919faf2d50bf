"""By how much the best configuration is faster than the baseline and the median, with intervals."""

import math
from dataclasses import dataclass

from results_db.intervals import NOTCH, quartile_range
from tuner.web.study_data import StudyData


@dataclass(frozen=True)
class Gain:
    """Throughput of the best over a reference; 1.2 is 20 % faster."""

    reference: str
    """`baseline` or `median configuration`."""
    tokens_per_s: float
    """Of the reference."""
    ratio: float
    low: float
    high: float
    """`low`..`high`: about 95 %, the errors of both taken as independent."""

    @property
    def is_certain(self) -> bool:
        """Whether the interval excludes no gain."""
        return self.low > 1.0


def gains_of(data: StudyData) -> list[Gain]:
    """Gains over the baseline, where one ran, and over the median configuration."""
    best = data.best
    if best is None or len(data.leaderboard) < 2:
        return []
    own = (best.tokens_per_s, best.tokens_per_s_low, best.tokens_per_s_high)
    found = []
    base = data.baseline
    if base is not None and base.config_key != best.config_key:
        reference = (base.tokens_per_s, base.tokens_per_s_low, base.tokens_per_s_high)
        found.append(_gain("baseline", own, reference))
    speeds = [row.tokens_per_s for row in data.leaderboard]
    middle = data.median_tokens_per_s or 0.0
    half = NOTCH * quartile_range(speeds) / math.sqrt(len(speeds))
    middling = (middle, max(middle - half, min(speeds)), min(middle + half, max(speeds)))
    return [*found, _gain("median configuration", own, middling)]


def _gain(
    name: str, own: tuple[float, float, float], reference: tuple[float, float, float]
) -> Gain:
    """The ratio with the relative errors of both added in squares, as independent ones do."""
    ratio = own[0] / reference[0]
    below = math.hypot(
        _share(own[0] - own[1], own[0]), _share(reference[2] - reference[0], reference[0])
    )
    above = math.hypot(
        _share(own[2] - own[0], own[0]), _share(reference[0] - reference[1], reference[0])
    )
    return Gain(name, reference[0], ratio, ratio / (1 + below), ratio * (1 + above))


def _share(part: float, whole: float) -> float:
    return max(part, 0.0) / whole
