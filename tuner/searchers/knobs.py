"""Knobs of the candidates as columns of numbers and labels."""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from search_spaces.parallel_config import KNOBS, ParallelConfig

Floats = NDArray[np.float64]

_DEGREES = frozenset(
    {"dp", "tp", "tp_depth", "cp", "ep", "pp", "virtual_stages", "micro_batch_size"}
    | {"zero_shard_degree"}
)
"""Knobs whose effect goes with their ratio, so that their logarithm is the better feature."""
PLACEMENT_KNOBS = frozenset({"dp", "tp", "cp", "ep", "pp"})
"""Knobs that decide which devices hold what."""
LAYOUT_KNOBS = PLACEMENT_KNOBS | {"tp_layout", "pipeline_schedule", "recompute"}
"""Knobs that decide which code runs where; a cost model's error jumps between their values."""


@dataclass(frozen=True)
class Knob:
    """One knob that varies: the value of each candidate, a number, or text when it has no order."""

    name: str
    values: tuple[float, ...] | tuple[str, ...]

    @property
    def is_numeric(self) -> bool:
        """Whether its values have an order and a distance."""
        return not isinstance(self.values[0], str)

    @property
    def levels(self) -> list[float] | list[str]:
        """Its distinct values, sorted."""
        return sorted(set(self.values))  # type: ignore[type-var, return-value]


def varying_knobs(configs: Sequence[ParallelConfig]) -> list[Knob]:
    """The knobs that have more than one value among `configs`, in the order of `KNOBS`."""
    found = []
    for name in KNOBS:
        raw = [getattr(config, name) for config in configs]
        if len(set(raw)) < 2:
            continue
        numeric = all(isinstance(value, int) for value in raw)
        values = tuple(float(value) if numeric else str(value) for value in raw)
        found.append(Knob(name, values))  # type: ignore[arg-type]
    return found


def rows_by_values(
    knobs: Sequence[Knob], rows: Sequence[int]
) -> dict[tuple[float | str, ...], int]:
    """Each of `rows` by the values of all knobs there."""
    columns = [[knob.values[row] for row in rows] for knob in knobs]
    return dict(zip(zip(*columns, strict=True), rows, strict=True))


def coordinates(name: str, values: Floats) -> Floats:
    """Where the values of a numeric knob lie: log2 of degrees, the number itself otherwise."""
    return np.log2(np.maximum(values, 0.5)) if name in _DEGREES else values


def encode(knobs: Sequence[Knob]) -> Floats:
    """Features (candidates, columns): coordinates of numbers, and one 0/1 column a label."""
    columns: list[Floats] = []
    for knob in knobs:
        if knob.is_numeric:
            columns.append(coordinates(knob.name, np.asarray(knob.values, dtype=float)))
        else:
            labels = np.asarray(knob.values)
            levels = knob.levels[1:] if len(knob.levels) == 2 else knob.levels
            columns += [(labels == level).astype(float) for level in levels]
    return np.stack(columns, axis=1) if columns else np.zeros((0, 0))
