"""The walk over the legal points of a space, one knob a level.

Each rule is asked as soon as all knobs that it reads are set, so that a branch without legal points
is left at its root: the time goes with the number of legal points and not with the size of the
product of the domains.
"""

from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any, Final

from search_spaces.constraints import CONSTRAINTS
from search_spaces.constraints.base import Constraint, Setting, either, value_text
from search_spaces.domains import Domain
from search_spaces.errors import SpaceError
from search_spaces.parallel_config import ParallelConfig

# Knobs that decide most come first; the others follow in the order of `ParallelConfig`.
_ORDER: Final = ("tp_layout", "tp_depth", "tp", "cp", "pp", "dp", "ep", "micro_batch_size",
                 "virtual_stages", "stage_layers", "pipeline_schedule")  # fmt: skip

Refused = Callable[[int, Constraint, ParallelConfig], None]


@dataclass(frozen=True)
class Level:
    """One knob of the walk, with the rules that can be asked once it is set."""

    knob: str
    values: tuple[Any, ...]
    rules: tuple[Constraint, ...]


def plan_levels(
    domains: Iterable[Domain], rules: Iterable[Constraint] = CONSTRAINTS
) -> list[Level]:
    """Put knobs in the order of the walk; those with one value first, as they prune for nothing."""
    places = {knob: place for place, knob in enumerate(_ORDER)}
    order = sorted(
        domains, key=lambda domain: (len(domain) > 1, places.get(domain.knob, len(_ORDER)))
    )
    levels: list[Level] = []
    seen: set[str] = set()
    waiting = list(rules)
    for domain in order:
        seen.add(domain.knob)
        ready = [rule for rule in waiting if seen.issuperset(rule.knobs)]
        waiting = [rule for rule in waiting if not seen.issuperset(rule.knobs)]
        levels.append(Level(domain.knob, domain.values, tuple(ready)))
    return levels


def walk(
    levels: list[Level], setting: Setting, refused: Refused | None = None
) -> Iterator[ParallelConfig]:
    """Legal points in the order of the levels.

    `refused(depth, rule, partial)` hears of every branch left; the partial configuration's knobs
    beyond `depth` levels have no meaning, and it changes after the call.
    """
    partial = ParallelConfig()
    # The model is frozen for its users; the walk writes the one that it alone holds.
    return _walk(levels, 0, partial, vars(partial), setting, refused)


def _walk(
    levels: list[Level],
    depth: int,
    partial: ParallelConfig,
    knobs: dict[str, Any],
    setting: Setting,
    refused: Refused | None,
) -> Iterator[ParallelConfig]:
    level = levels[depth]
    is_last = depth + 1 == len(levels)
    for value in level.values:
        knobs[level.knob] = value
        for rule in level.rules:
            if not rule.allows(partial, setting):
                if refused is not None:
                    refused(depth, rule, partial)
                break
        else:
            if is_last:
                yield ParallelConfig.model_validate(knobs)
            else:
                yield from _walk(levels, depth + 1, partial, knobs, setting, refused)


def nothing_legal(domains: Sequence[Domain], setting: Setting) -> SpaceError:
    """Say of a space without legal points which rule is to blame, with one of its victims.

    That is a rule without which there would be legal points; where no single rule is, the one
    that refused the points which came furthest in the walk.
    """
    rules = (*CONSTRAINTS, *setting.rules)
    for rule in rules:
        others = [other for other in rules if other is not rule]
        example = next(walk(plan_levels(domains, others), setting), None)
        if example is not None:
            return _blame(rule, example, domains, setting, "alone refused the last ones")
    rule, example = _last_refused(plan_levels(domains, rules), setting)
    return _blame(rule, example, domains, setting, "and others refused the last ones")


def _last_refused(levels: list[Level], setting: Setting) -> tuple[Constraint, ParallelConfig]:
    """The rule that left most branches on the deepest level reached, and one such branch."""
    deepest = -1
    counts: Counter[str] = Counter()
    examples: dict[str, tuple[Constraint, ParallelConfig]] = {}

    def note(depth: int, rule: Constraint, partial: ParallelConfig) -> None:
        nonlocal deepest
        if depth > deepest:
            deepest = depth
            counts.clear()
            examples.clear()
        if depth == deepest:
            counts[rule.name] += 1
            examples.setdefault(rule.name, (rule, partial.model_copy()))

    for _ in walk(levels, setting, note):
        pass
    return examples[counts.most_common(1)[0][0]]


def _blame(
    rule: Constraint,
    example: ParallelConfig,
    domains: Sequence[Domain],
    setting: Setting,
    verdict: str,
) -> SpaceError:
    tried = {domain.knob: domain.values for domain in domains if domain.knob in rule.knobs}
    return SpaceError(
        f"no configuration of the space is legal: rule {rule.name} {verdict}, for example because "
        f"{rule.reason(example, setting)}",
        _widen_hint(rule, example, setting, tried),
    )


def _widen_hint(
    rule: Constraint, example: ParallelConfig, setting: Setting, tried: dict[str, tuple[Any, ...]]
) -> str:
    violation = rule.check(example, setting)
    legal = violation.legal_values if violation else {}
    ways = [
        f"{knob} {either(value_text(value, knob) for value in values)}"
        f" (its domain has {either(value_text(value, knob) for value in tried[knob])})"
        for knob, values in legal.items()
    ]
    if ways:
        return "legal here would be " + " or ".join(ways)
    if not rule.suggests:
        return "widen the knobs' domains, or change the rule"
    if rule.knobs:
        return f"change the domains of {', '.join(rule.knobs)}"
    return "change the recipe or the model"
