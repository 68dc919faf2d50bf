"""`SearchSpace`: the legal points of a study, enumerated, sampled and explained."""

import heapq
import math
import random
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from search_spaces.cluster_spec import ClusterSpec
from search_spaces.constraints import CONSTRAINTS, Setting, Violation, judge
from search_spaces.constraints.base import Constraint, either, nearest_values, value_text
from search_spaces.domains import Domain, default_domains, make_domains
from search_spaces.enumeration import nothing_legal, plan_levels, walk
from search_spaces.errors import SpaceError
from search_spaces.model_spec import ModelSpec
from search_spaces.parallel_config import KNOBS, ParallelConfig
from search_spaces.training_spec import TrainingSpec

__all__ = ["Domain", "SearchSpace", "config_distance", "default_domains"]


class SearchSpace:
    """All legal configurations of a model and recipe on a cluster, within the knobs' domains.

    Args:
        model: what is trained.
        training: the recipe.
        cluster: the machines.
        domains: values of the knobs by name; a knob left out takes its default domain.
        use_all_devices: whether the ranks must be all devices of the cluster, or may be fewer.
        rules: further rules of the user, asked after those of the house.

    Raises:
        SpaceError: a domain names an unknown knob or an impossible value.
    """

    def __init__(
        self,
        model: ModelSpec,
        training: TrainingSpec,
        cluster: ClusterSpec,
        domains: Mapping[str, Sequence[Any]] | None = None,
        *,
        use_all_devices: bool = True,
        rules: Sequence[Constraint] = (),
    ) -> None:
        self.setting = Setting(model, training, cluster, use_all_devices, tuple(rules))
        self.rules: tuple[Constraint, ...] = (*CONSTRAINTS, *rules)
        defaults = default_domains(model, training, cluster, use_all_devices=use_all_devices)
        chosen = make_domains({**defaults, **(domains or {})})
        self.domains: dict[str, Domain] = {knob: chosen[knob] for knob in KNOBS}
        self._levels = plan_levels(self.domains.values(), self.rules)
        self._points: list[ParallelConfig] | None = None

    def __iter__(self) -> Iterator[ParallelConfig]:
        """Legal points in a fixed order, made one at a time."""
        return walk(self._levels, self.setting)

    def __len__(self) -> int:
        """Number of legal points."""
        return len(self._legal_points())

    def __contains__(self, config: object) -> bool:
        """Same as `contains`."""
        return isinstance(config, ParallelConfig) and self.contains(config)

    def enumerate(self) -> list[ParallelConfig]:
        """All legal points, without duplicates, in a fixed order.

        Raises:
            SpaceError: there is none; the message says which rule refused the last ones.
        """
        points = self._legal_points()
        if not points:
            raise nothing_legal(list(self.domains.values()), self.setting)
        return list(points)

    def sample(self, count: int, seed: int = 0) -> list[ParallelConfig]:
        """`count` different legal points, uniformly at random; all of them when there are fewer.

        Raises:
            SpaceError: no point is legal, or `count` is negative.
        """
        if count < 0:
            raise SpaceError(f"cannot sample {count} points", "give 0 or more")
        points = self.enumerate()
        return random.Random(seed).sample(points, min(count, len(points)))

    def contains(self, config: ParallelConfig) -> bool:
        """Whether the configuration is within the domains and breaks no rule."""
        in_domains = all(getattr(config, knob) in domain for knob, domain in self.domains.items())
        return in_domains and self.is_legal(config)

    def is_legal(self, config: ParallelConfig) -> bool:
        """Whether the configuration breaks no rule, be it within the domains or not."""
        return all(rule.allows(config, self.setting) for rule in self.rules)

    def explain(self, config: ParallelConfig) -> list[Violation]:
        """Why the configuration is not a point of the space; empty when it is one.

        Broken rules come first, then values outside of their domains (rule `domain`).
        """
        return self.violations(config) + self._outside(config)

    def violations(self, config: ParallelConfig) -> list[Violation]:
        """The rules that the configuration breaks, be it within the domains or not."""
        return judge(config, self.setting)

    def nearest(self, config: ParallelConfig, count: int = 3) -> list[ParallelConfig]:
        """The legal points with the fewest changed knobs, and among those the smallest changes."""
        points = self._legal_points()
        return heapq.nsmallest(count, points, key=lambda point: config_distance(config, point))

    def _outside(self, config: ParallelConfig) -> list[Violation]:
        found = []
        for knob, domain in self.domains.items():
            value = getattr(config, knob)
            if value not in domain:
                near = nearest_values(list(domain), value)
                legal = either(value_text(item, knob) for item in near)
                message = f"{knob} {value_text(value, knob)} is outside of its domain: {legal}"
                found.append(Violation("domain", (knob,), message, {knob: near}))
        return found

    def _legal_points(self) -> list[ParallelConfig]:
        if self._points is None:
            self._points = list(walk(self._levels, self.setting))
        return self._points


def config_distance(first: ParallelConfig, second: ParallelConfig) -> tuple[int, float]:
    """How far two configurations are apart: knobs that differ, then the sum of their log ratios."""
    changed, ratios = 0, 0.0
    for one, other in zip(vars(first).values(), vars(second).values(), strict=True):
        if one != other:
            changed += 1
            if isinstance(one, int) and isinstance(other, int):
                ratios += abs(math.log((one + 1) / (other + 1)))
    return changed, ratios
