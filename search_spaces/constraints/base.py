"""What a rule is, what it says of a point that breaks it, and which values near it would pass."""

import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Final, get_args

from search_spaces.cluster_spec import ClusterSpec
from search_spaces.layers import balanced_split
from search_spaces.model_spec import ModelSpec
from search_spaces.parallel_config import ParallelConfig
from search_spaces.training_spec import TrainingSpec

_MOST_CANDIDATES: Final = 512
_MOST_SHOWN: Final = 8
_MOST_STAGES_SHOWN: Final = 16


@dataclass(frozen=True)
class Setting:
    """What a configuration is judged against.

    `use_all_devices` asks for a world size equal to the cluster's devices; otherwise fewer will do.
    `rules` are the user's own, asked after those of the house.
    """

    model: ModelSpec
    training: TrainingSpec
    cluster: ClusterSpec
    use_all_devices: bool = True
    rules: tuple["Constraint", ...] = ()


@dataclass(frozen=True)
class Violation:
    """One rule that a configuration breaks.

    `message` is a sentence for people that names the wrong values and legal ones. `legal_values`
    maps each knob, changed alone, to the values nearest to the present one that pass the rule and
    break no other; a knob that cannot mend it alone is left out.
    """

    rule: str
    knobs: tuple[str, ...]
    message: str
    legal_values: Mapping[str, tuple[Any, ...]] = field(default_factory=dict)


@dataclass(frozen=True)
class Constraint:
    """One rule of the space.

    `allows` reads only the knobs named in `knobs`: the enumeration calls it as soon as those are
    set, whatever the others hold. `reason` says in a clause why a configuration that `allows`
    refuses cannot run. `suggests` tells whether other values of its knobs are worth naming, which
    asks the rule about many of them.
    """

    name: str
    knobs: tuple[str, ...]
    allows: Callable[[ParallelConfig, Setting], bool]
    reason: Callable[[ParallelConfig, Setting], str]
    suggests: bool = True

    def check(
        self, config: ParallelConfig, setting: Setting, kept: Sequence["Constraint"] = ()
    ) -> Violation | None:
        """The violation with the legal values near it; none when the configuration is allowed.

        `kept` are rules that the configuration obeys and that no value suggested may break.
        """
        if self.allows(config, setting):
            return None
        legal = self._legal_values(config, setting, (self, *kept)) if self.suggests else {}
        message = self.reason(config, setting) + describe_legal_values(legal)
        return Violation(self.name, self.knobs, message, legal)

    def _legal_values(
        self, config: ParallelConfig, setting: Setting, rules: Sequence["Constraint"]
    ) -> dict[str, tuple[Any, ...]]:
        found: dict[str, tuple[Any, ...]] = {}
        for knob in self.knobs:
            passing = [
                value
                for value in candidate_values(knob, config, setting)
                if _all_allow(rules, config.model_copy(update={knob: value}), setting)
            ]
            if passing:
                found[knob] = nearest_values(passing, getattr(config, knob))
        return found


def _all_allow(rules: Iterable[Constraint], config: ParallelConfig, setting: Setting) -> bool:
    return all(rule.allows(config, setting) for rule in rules)


_NONE_TEXT: Final = {"stage_layers": "even", "recompute_layers": "all"}


def value_text(value: Any, knob: str = "") -> str:
    """A knob's value as people write it in a study file."""
    if value is None:
        return _NONE_TEXT.get(knob, "none")
    if isinstance(value, bool):
        return str(value).lower()
    if isinstance(value, tuple):
        shown = ", ".join(map(str, value[:_MOST_STAGES_SHOWN]))
        rest = len(value) - _MOST_STAGES_SHOWN
        return f"[{shown}, and {rest} more]" if rest > 0 else f"[{shown}]"
    return str(value)


def describe_legal_values(legal: Mapping[str, tuple[Any, ...]]) -> str:
    """`"; legal with the other knobs kept: tp 1, 2 or 4; pp 2"`, or nothing when none would do."""
    if not legal:
        return ""
    parts = [
        f"{knob} {either(value_text(value, knob) for value in values)}"
        for knob, values in legal.items()
    ]
    return f"; legal with the other knobs kept: {'; or '.join(parts)}"


def either(words: Iterable[str]) -> str:
    """`a, b or c`."""
    *most, last = words
    return f"{', '.join(most)} or {last}" if most else last


def divisors(number: int) -> tuple[int, ...]:
    """All divisors of a positive number, ascending."""
    small = [k for k in range(1, math.isqrt(number) + 1) if number % k == 0]
    return tuple(sorted({*small, *(number // k for k in small)}))


def choices(knob: str) -> tuple[Any, ...]:
    """The values of a knob that takes words or flags; empty for numbers and splits."""
    annotation = ParallelConfig.model_fields[knob].annotation
    return (False, True) if annotation is bool else get_args(annotation)


_BY_DEVICES: Final = ("dp", "tp", "tp_depth", "cp", "ep", "pp")


def candidate_values(knob: str, config: ParallelConfig, setting: Setting) -> Iterable[Any]:
    """Values of a knob that are worth a thought when looking for legal ones."""
    model, training = setting.model, setting.training
    if knob in _BY_DEVICES:
        return _numbers(1, setting.cluster.num_devices)
    match knob:
        case "micro_batch_size":
            return _numbers(1, training.global_batch_size)
        case "virtual_stages":
            return _numbers(1, model.num_layers)
        case "zero_stage":
            return range(4)
        case "zero_shard_degree":
            return [0, *divisors(config.dp * config.cp)]
        case "recompute_layers":
            return [None, *_numbers(0, model.num_layers)]
        case "stage_layers":
            even = balanced_split(model.num_layers, config.num_stages)
            return [None, even] if min(even) else [None]
        case _:
            return choices(knob)


def _numbers(low: int, high: int) -> list[int]:
    dense = range(low, min(high, _MOST_CANDIDATES) + 1)
    return sorted({*dense, *(value for value in divisors(high) if value >= low)})


def nearest_values(values: list[Any], present: Any) -> tuple[Any, ...]:
    """A few of `values`, the nearest by ratio to the present one, in their own order."""
    if not isinstance(present, int) or isinstance(present, bool):
        return tuple(values[:_MOST_SHOWN])

    def distance(value: Any) -> float:
        return 0.0 if value is None else abs(math.log((value + 0.5) / (present + 0.5)))

    kept = sorted(values, key=distance)[:_MOST_SHOWN]
    return tuple(value for value in values if value in kept)
