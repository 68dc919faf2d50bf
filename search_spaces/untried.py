"""Why points were not run: every point of the domains' product has one reason.

No rule of thumb is among them: a point is left out because it breaks a rule, because its memory is
predicted not to fit, because the trials taught that it would hardly run, or because the search
ended before its turn.
"""

import math
from dataclasses import dataclass
from typing import Final

from search_spaces.constraints.base import Constraint
from search_spaces.enumeration import plan_levels, walk
from search_spaces.parallel_config import ParallelConfig
from search_spaces.space import SearchSpace

MEMORY_RULE: Final = "memory"
BUDGET_RULE: Final = "budget"
UNLIKELY_RULE: Final = "unlikely"
UNLIKELY_TO_FIT: Final = 0.05
"""A point whose predicted probability to fit is below this is said to be untried for its memory."""


@dataclass(frozen=True)
class UntriedReason:
    """Why one point was not run: `rule` for queries, `reason` as a sentence for people."""

    rule: str
    reason: str


@dataclass(frozen=True)
class Refusal:
    """How many points of the domains' product one rule refused, with an example's reason.

    A point that breaks several rules is counted for the first one asked, so that the counts and the
    number of legal points add up to the size of the product.
    """

    rule: str
    num_points: int
    example: str


def reason_untried(
    space: SearchSpace,
    config: ParallelConfig,
    *,
    stop_reason: str,
    chance: float | None = None,
    peak_memory_bytes: float | None = None,
    probability_fits: float = 1.0,
) -> UntriedReason:
    """Why a point was not run.

    Args:
        space: the study's space.
        config: the point.
        stop_reason: why the search ended, for points that had nothing against them.
        chance: probability of running, 0 to 1, for which a search left the point out; none where
            it would have tried it.
        peak_memory_bytes: what the cost model predicted, where it did.
        probability_fits: the cost model's probability, 0 to 1, that the point fits.
    """
    violations = space.explain(config)
    if violations:
        return UntriedReason(violations[0].rule, violations[0].message)
    if probability_fits < UNLIKELY_TO_FIT:
        limit = space.setting.cluster.memory_bytes / 2**30
        need = "more" if peak_memory_bytes is None else f"{peak_memory_bytes / 2**30:.1f} GiB"
        return UntriedReason(MEMORY_RULE, f"predicted to need {need} of {limit:.1f} GiB per device")
    if chance is not None:
        odds = "less than 0.1%" if chance < 0.001 else f"{chance:.1%}"
        return UntriedReason(UNLIKELY_RULE, f"a chance of {odds} to run, by what failed")
    return UntriedReason(BUDGET_RULE, stop_reason)


def refusals(space: SearchSpace) -> list[Refusal]:
    """What the rules took out of the product of the domains, the greatest part first.

    Counted exactly, branch by branch; the product itself is never formed.
    """
    levels = plan_levels(space.domains.values(), space.rules)
    sizes = [len(level.values) for level in levels]
    below = [math.prod(sizes[depth + 1 :]) for depth in range(len(levels))]
    counts: dict[str, int] = {}
    examples: dict[str, str] = {}

    def note(depth: int, rule: Constraint, partial: ParallelConfig) -> None:
        counts[rule.name] = counts.get(rule.name, 0) + below[depth]
        if rule.name not in examples:
            examples[rule.name] = rule.reason(partial, space.setting)

    for _ in walk(levels, space.setting, note):
        pass
    order = sorted(counts, key=lambda name: (-counts[name], name))
    return [Refusal(name, counts[name], examples[name]) for name in order]
