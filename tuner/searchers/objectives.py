"""Several objectives at once: throughput, peak memory, and cost per token."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

import numpy as np

from search_spaces.parallel_config import ParallelConfig
from tuner.searchers.history import Known
from tuner.searchers.knobs import Floats

ObjectiveName = Literal["throughput", "memory", "cost"]
"""Step time; peak bytes of the fullest rank; device-seconds per token."""


def log_objectives(
    names: Sequence[ObjectiveName], config: ParallelConfig, known: Known
) -> tuple[float, ...] | None:
    """Logs of the objectives of one measured point, lower is better; none when one is missing."""
    if known.cost is None or ("memory" in names and not known.peak_memory_bytes):
        return None
    values: dict[ObjectiveName, float] = {
        "throughput": known.cost,
        "memory": known.peak_memory_bytes or 1.0,
        "cost": known.cost * config.world_size,
    }
    return tuple(float(np.log(values[name])) for name in names)


def draw_weights(count: int, rng: np.random.Generator) -> Floats:
    """Weights of the objectives, uniform on the simplex."""
    return np.asarray(rng.dirichlet(np.ones(count)))


@dataclass(frozen=True)
class Scalarisation:
    """Augmented Chebyshev: `max_i w_i (f_i - ideal_i) / range_i` plus a twentieth of the sum."""

    ideal: Floats
    extent: Floats
    weights: Floats

    @classmethod
    def of(cls, table: Floats, weights: Floats) -> "Scalarisation":
        """Normalised by the best and the median of each column of `table` (points, objectives)."""
        ideal = table.min(axis=0)
        return cls(ideal, np.maximum(np.median(table, axis=0) - ideal, 1e-3), weights)

    def values(self, table: Floats) -> Floats:
        """One number a point, lower is better."""
        scaled = self.weights * (table - self.ideal) / self.extent
        return np.asarray(scaled.max(axis=1) + 0.05 * scaled.sum(axis=1))

    def spread(self, spreads: Floats) -> Floats:
        """Standard deviation of `values`, taken as that of the objective that moves it most."""
        return np.asarray(np.maximum((self.weights * spreads / self.extent).max(axis=1), 1e-6))
