"""Belief in how far each candidate's memory stays below the limit.

The log of the peak is the log of the predicted parts, each re-weighted, plus a Gaussian process
over the knobs, plus an idiosyncrasy of each configuration. How large these errors are is inferred
from the measured peaks: a grid of sizes is averaged by marginal likelihood, so that predictions
which come true leave little doubt about the next point.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from itertools import product

import numpy as np
from scipy.linalg import solve_triangular
from scipy.special import log_ndtr, ndtr, ndtri

from tuner.searchers.kernels import KnobKernel, Rows
from tuner.searchers.knobs import Floats
from tuner.searchers.latent_process import Blocks, Evidence, LatentProcess
from tuner.searchers.parts import PartsPrior

SHORTFALLS = np.linspace(0.0, 0.24, 13)
"""Log units by which the memory in use at the limit may fall short of it: allocators fragment, and
some bytes are not theirs to count."""
_MIX = (0.3, 0.2, 0.2, 0.3, 0.0)
_OFFSET = 0.35
BLUR = 0.3
"""How much the limit itself varies between runs, in units of the spread: no peak tells it."""
_MAX_SIZES = 3
"""How many of the grid's most likely members are averaged."""


@dataclass(frozen=True)
class MemoryScale:
    """The limit and the spread of the predicted memory's log error, as the candidates tell them."""

    log_limit: float
    spread: float


def memory_scale(peaks: Floats, probabilities: Floats) -> MemoryScale | None:
    """Recover limit and spread from predicted peaks and probabilities of fitting.

    `probability = Phi((log limit - log peak) / spread)` makes the probit a line over the log peak.
    None when no line is there: too few uncertain points, or another formula.
    """
    inside = (probabilities > 1e-6) & (probabilities < 1 - 1e-6) & (peaks > 0)
    if np.unique(peaks[inside]).size < 3:
        return None
    logs, probits = np.log(peaks[inside]), ndtri(probabilities[inside])
    slope, intercept = np.polyfit(logs, probits, 1)
    error = probits - (slope * logs + intercept)
    if slope > -0.5 or error.std() > 0.1 * max(probits.std(), 1e-9):
        return None
    return MemoryScale(-intercept / slope, -1 / slope)


def shortfall_belief(margins: Sequence[float]) -> Floats:
    """Belief in each of `SHORTFALLS` after points ran at these margins below the limit."""
    logs = -0.5 * (SHORTFALLS / 0.04) ** 2
    for margin in margins:
        logs = logs + log_ndtr((margin - SHORTFALLS) / 0.015)
    weights = np.exp(logs - logs.max())
    return np.asarray(weights / weights.sum())


@dataclass(frozen=True)
class Sizes:
    """How large the prediction's errors may be, in units of the spread that it admits."""

    parts: float
    process: float
    idiosyncrasy: float
    log_prior: float = 0.0


_ERRATIC = 1.0
"""An idiosyncrasy that makes neighbours' peaks say little of each other; rare."""
BEFORE = Sizes(0.6, 0.6, 0.35)
"""Before peaks were measured."""
_GRID = [
    Sizes(parts, process, idiosyncrasy, -2.0 * (idiosyncrasy == _ERRATIC))
    for parts, process, idiosyncrasy in product(
        (0.4, 1.2), (0.15, 0.4, 0.8), (0.12, 0.35, _ERRATIC)
    )
]
_MIN_PEAKS = 2
"""Measured peaks from which on the sizes are inferred."""


@dataclass(frozen=True)
class _Weighed:
    process: LatentProcess
    noise: float
    """Standard deviation of the log of a peak around what the process says."""
    weight: float


class MemoryBelief:
    """The margin, log limit minus log peak, of every candidate: above zero fits.

    Args:
        kernel: over the knobs.
        memory: predicted peak of every candidate as parts; uninformative where unknown.
        probabilities: of fitting, as the cost model gave them.
    """

    def __init__(self, kernel: KnobKernel, memory: PartsPrior, probabilities: Floats) -> None:
        peaks = memory.parts.sum(axis=1) if memory.is_informative else np.zeros(len(probabilities))
        self._kernel = kernel
        self.scale = memory_scale(peaks, probabilities)
        if self.scale is not None:
            self.spread = float(np.clip(self.scale.spread, 0.03, 0.5))
            zero = np.zeros(memory.num_parts)
            self._mean = self.scale.log_limit - memory.log_sum(zero)
            self._shares = memory.shares(zero)
        else:
            self.spread = 0.15
            self._mean = self.spread * ndtri(np.clip(probabilities, 1e-6, 1 - 1e-6))
            self._shares = np.zeros((len(probabilities), 0))
        self._weighed: list[_Weighed] = []
        self._rows: Rows = np.zeros(0, dtype=np.intp)

    def fit(self, evidence: Sequence[Evidence]) -> None:
        """Condition on measured margins, and on the side of the limit that others are on.

        The noise of `evidence` is not read: it is inferred.
        """
        self._weighed = self._weigh([item for item in evidence if item.sign == 0])
        self._rows = np.array([item.row for item in evidence], dtype=np.intp)
        blocks = self._blocks(self._rows, self._rows)
        for each in self._weighed:
            each.process.fit([replace(item, noise=each.noise) for item in evidence], blocks)

    def _blocks(self, rows: Rows, others: Rows) -> Blocks:
        return Blocks.of(self._kernel, _MIX, self._shares, rows, others)

    def _weigh(self, peaks: Sequence[Evidence]) -> list[_Weighed]:
        if len(peaks) < _MIN_PEAKS:
            return [_Weighed(self._process(BEFORE), self._noise(BEFORE), 1.0)]
        evidence = self._evidence(peaks)
        chosen = np.argsort(-evidence, kind="stable")[:_MAX_SIZES]
        weights = np.exp(evidence[chosen] - evidence.max())
        weights = weights / weights.sum()
        return [
            _Weighed(self._process(_GRID[index]), self._noise(_GRID[index]), float(weight))
            for index, weight in zip(chosen, weights, strict=True)
            if weight > 0.05
        ]

    def _evidence(self, peaks: Sequence[Evidence]) -> Floats:
        """Log probability density of the measured margins under each of the grid's sizes."""
        rows = np.array([item.row for item in peaks], dtype=np.intp)
        error = np.array([item.value for item in peaks]) - self._mean[rows]
        blocks, found = self._blocks(rows, rows), []
        for sizes in _GRID:
            covariance = sizes.parts**2 * blocks.linear + sizes.process**2 * blocks.mixed
            covariance += _OFFSET**2
            covariance = self.spread**2 * covariance + self._noise(sizes) ** 2 * np.eye(len(rows))
            factor = np.linalg.cholesky(covariance)
            whitened = solve_triangular(factor, error, lower=True)
            log_density = -0.5 * whitened @ whitened - np.log(np.diag(factor)).sum()
            found.append(sizes.log_prior + log_density)
        return np.array(found)

    def _noise(self, sizes: Sizes) -> float:
        return max(sizes.idiosyncrasy * self.spread, 0.01)

    def _process(self, sizes: Sizes) -> LatentProcess:
        return LatentProcess(
            self._kernel,
            self._mean,
            self._shares,
            slope=sizes.parts * self.spread,
            scale=sizes.process * self.spread,
            offset=_OFFSET * self.spread,
            mix=_MIX,
        )

    def above(self, rows: Rows, margins: Floats) -> Floats:
        """Probability that each of `rows` has more than each of `margins`: (rows, margins)."""
        total = np.zeros((len(rows), len(margins)))
        blocks = self._blocks(self._rows, rows)
        for each in self._weighed:
            mean, spread = each.process.predict(rows, blocks)
            width = np.hypot(np.hypot(spread, each.noise), BLUR * self.spread)[:, None]
            total += each.weight * ndtr((mean[:, None] - margins) / width)
        return total / sum(each.weight for each in self._weighed)
