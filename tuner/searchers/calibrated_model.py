"""A predicted quantity of every candidate (step time, peak memory), corrected by measurements.

The log of the quantity is that of the cost model's parts, each re-weighted by an unknown factor,
plus a Gaussian process over the knobs, plus an idiosyncrasy of each configuration. How far the
weights and the process may stray from the prior is itself inferred: a grid of such scales is
averaged by marginal likelihood. A prior that predicts well thus keeps its authority, and one that
does not loses it after the measurements that show it.
"""

import math
from collections.abc import Mapping
from dataclasses import dataclass
from itertools import product

import numpy as np

from tuner.searchers.hindsight import expected_shift
from tuner.searchers.kernels import KnobKernel, Rows
from tuner.searchers.knobs import Floats
from tuner.searchers.parts import PartsPrior

MAX_TRAINING_ROWS = 128
MAX_COST = 16_000
"""Hypotheses that are averaged, times the square of the training rows."""
ENOUGH = 0.99
"""Weight of the hypotheses that are averaged."""
Mix = tuple[float, float, float, float, float]
"""Shares of the kernel's components in a process; the last two are errors of whole layouts."""
_MIXES: tuple[Mix, ...] = (
    (0.6, 0.25, 0.15, 0.0, 0.0),
    (0.25, 0.35, 0.4, 0.0, 0.0),
    (0.1, 0.2, 0.7, 0.0, 0.0),
    (0.1, 0.15, 0.15, 0.6, 0.0),
    (0.05, 0.1, 0.05, 0.8, 0.0),
    (0.1, 0.15, 0.15, 0.3, 0.3),
    (0.05, 0.1, 0.05, 0.4, 0.4),
)


@dataclass(frozen=True)
class Scales:
    """Standard deviations of the ingredients of the log under one hypothesis."""

    weights: float
    process: float
    mix: Mix
    noise: float
    log_prior: float


_WEIGHTS = {0.05: -0.7, 0.15: -0.4, 0.45: -1.0}
"""Sizes of the errors of the parts' factors, each with its log prior."""
_PROCESS = {0.015: 0.0, 0.04: 0.0, 0.1: -0.4, 0.25: -1.5}
"""Sizes of the error that is left."""
_PROCESS_ALONE = {0.1: 0.0, 0.25: -0.3, 0.6: -0.3}
"""The same where there is no prediction."""
_NOISE = (0.012, 0.03)
HINDSIGHT = 0.7
"""Share of the expected shift of predictions that look best among many: not all errors are those of
whole layouts."""
_LARGEST_SHIFTED = 0.1
"""Largest error that shifts predictions: with greater ones the shift itself is a guess."""


def _grid(is_informative: bool) -> list[Scales]:
    weights = _WEIGHTS if is_informative else {0.0: 0.0}
    process = _PROCESS if is_informative else _PROCESS_ALONE
    return [
        Scales(weight, size, mix, noise, weights[weight] + process[size])
        for weight, size, mix, noise in product(weights, process, _MIXES, _NOISE)
    ]


@dataclass(frozen=True)
class Mixture:
    """Normal distributions of each of some rows: weights (k,), means and spreads (k, rows)."""

    weights: Floats
    means: Floats
    spreads: Floats

    @classmethod
    def single(cls, mean: Floats, spread: Floats) -> "Mixture":
        """One normal distribution a row."""
        return cls(np.ones(1), mean[None, :], spread[None, :])

    def moments(self) -> tuple[Floats, Floats]:
        """Mean and standard deviation of each row."""
        mean = self.weights @ self.means
        variance = self.weights @ (self.spreads**2 + (self.means - mean) ** 2)
        return mean, np.sqrt(variance)


@dataclass(frozen=True)
class _Posterior:
    """What the most likely hypotheses, k of them, say of n training rows."""

    scales: list[Scales]
    weights: Floats
    """(k,), their sum is 1."""
    roots: Floats
    """Inverses of the lower Cholesky factors of the training covariances: (k, n, n)."""
    alphas: Floats
    """Whitened residuals: (k, n)."""

    @property
    def sizes(self) -> Floats:
        """Variances of the parts' weights, the process and the idiosyncrasy: (3, k)."""
        table = [(each.weights, each.process, each.noise) for each in self.scales]
        return np.array(table).T ** 2

    @property
    def mixes(self) -> Floats:
        """Shares of the kernel's components in the variance of the process: (k, components)."""
        return np.array([each.mix for each in self.scales])


class CalibratedModel:
    """Posterior of the log of a positive quantity of all candidates.

    Args:
        kernel: over the candidates' knobs.
        prior: the cost model's parts.
        has_hindsight: expect predictions that look best among many to be too good.
    """

    def __init__(
        self,
        kernel: KnobKernel,
        prior: PartsPrior,
        *,
        has_hindsight: bool = False,
    ) -> None:
        self._kernel = kernel
        self._prior = prior
        self._grid = _grid(prior.is_informative)
        self._offset_sd = 0.25 if prior.is_informative else 2.0
        self._shifts = self._expected_shifts() if has_hindsight else {}
        self.fit({})

    def fit(self, costs: Mapping[int, float]) -> None:
        """Condition on measured values by row; an empty mapping gives the prior back."""
        rows = _training_rows(costs)
        log_costs = np.log([costs[row] for row in rows]) if rows else np.zeros(0)
        # Without a prediction the first measurements say where the level is.
        knows_level = self._prior.is_informative or not rows
        self._level = 0.0 if knows_level else float(np.median(log_costs))
        self._rows = np.array(rows, dtype=np.intp)
        self._block = self._kernel.block(self._rows, self._rows)
        self._log_weights = self._best_weights(log_costs)
        self._shares = self._prior.shares(self._log_weights)
        base = self._prior.log_sum(self._log_weights) - self._shares @ self._log_weights
        self._base = base + self._level
        self._residual = log_costs - self._base[self._rows]
        self._posterior = self._weigh()

    def part_weights(self) -> Floats:
        """Factor on each part of the prior, at the mode."""
        return np.exp(self._log_weights)

    def mean(self) -> Floats:
        """Expected log of every candidate's quantity."""
        found, total = self._posterior, self._base.copy()
        for scales, weight in zip(found.scales, found.weights, strict=True):
            total += weight * self._shift(scales)
        if not len(self._rows):
            return total
        gains = (found.alphas[:, None, :] @ found.roots)[:, 0] * found.weights[:, None]
        weights, process, _ = found.sizes
        total += self._kernel.combine(self._rows, (found.mixes * process[:, None]).T @ gains)
        total += self._offset_sd**2 * gains.sum()
        return np.asarray(total + self._shares @ (weights @ gains @ self._shares[self._rows]))

    def predict(self, rows: Rows) -> tuple[Floats, Floats]:
        """Mean and standard deviation of the log that a trial of `rows` would measure."""
        return self.belief(rows).moments()

    def belief(self, rows: Rows) -> Mixture:
        """The same as a mixture of normal distributions, one a hypothesis."""
        found, shares = self._posterior, self._shares[rows]
        weights, process, noise = found.sizes[..., None]
        prior = weights * (shares**2).sum(axis=1) + process + noise + self._offset_sd**2
        means = np.stack([self._shift(scales)[rows] for scales in found.scales])
        if len(self._rows):
            block = self._kernel.block(self._rows, rows)
            covariance = np.tensordot(found.mixes * process, block, axes=1)
            covariance += weights[..., None] * (self._shares[self._rows] @ shares.T)
            covariance += self._offset_sd**2
            half = found.roots @ covariance
            means += (found.alphas[:, None, :] @ half)[:, 0]
            prior = prior - (half**2).sum(axis=1)
        spreads = np.sqrt(np.maximum(prior, 1e-10))
        return Mixture(found.weights, self._base[rows] + means, spreads)

    def prior_error(self) -> float:
        """Root mean square of the log error that the prior is thought to have, in use or not."""
        return math.sqrt(self._posterior.weights @ self._posterior.sizes[1])

    def _best_weights(self, log_costs: Floats) -> Floats:
        """Log weights of the parts at the mode, by Gauss-Newton under a middle hypothesis."""
        count = self._prior.num_parts
        log_weights = np.zeros(count)
        if not self._prior.is_informative or not len(log_costs):
            return log_weights
        middle = Scales(0.0, 0.05, _MIXES[1], 0.02, 0.0)
        precision = np.linalg.inv(self._process(middle, self._mixed(middle.mix)))
        parts = PartsPrior(self._prior.parts[self._rows])
        for _ in range(4):
            shares = parts.shares(log_weights)
            target = log_costs - parts.log_sum(log_weights) + shares @ log_weights
            normal = shares.T @ precision @ shares + np.eye(count) / 0.3**2
            step = np.linalg.solve(normal, shares.T @ precision @ target)
            log_weights = np.clip(step, -2.5, 2.5)
        return log_weights

    def _mixed(self, mix: Mix) -> Floats:
        """Correlation of the process among the training rows, (n, n)."""
        return np.asarray(np.tensordot(np.array(mix), self._block, axes=1))

    def _process(self, scales: Scales, mixed: Floats) -> Floats:
        """Training covariance without the weights' part, (n, n)."""
        covariance = scales.process**2 * mixed + self._offset_sd**2
        covariance[np.diag_indices_from(covariance)] += scales.noise**2
        return np.asarray(covariance)

    def _weigh(self) -> _Posterior:
        """The most likely hypotheses."""
        count = len(self._rows)
        if count == 0:
            return self._a_priori()
        shares = self._shares[self._rows]
        linear = shares @ shares.T
        mixed = np.stack([self._mixed(mix) for mix in _MIXES])
        which = [_MIXES.index(scales.mix) for scales in self._grid]
        sizes = np.array([[s.process, s.weights, s.noise] for s in self._grid]).T[..., None, None]
        covariances = sizes[0] ** 2 * mixed[which] + sizes[1] ** 2 * linear + self._offset_sd**2
        covariances += sizes[2] ** 2 * np.eye(count)
        factors = np.linalg.cholesky(covariances)
        shifts = np.stack([self._shift(scales)[self._rows] for scales in self._grid])
        alphas = _forward(factors, self._residual - shifts)
        log_determinants = np.log(np.einsum("hii->hi", factors)).sum(axis=1)
        evidence = -0.5 * (alphas**2).sum(axis=1) - log_determinants
        evidence = evidence + np.array([scales.log_prior for scales in self._grid])
        chosen = _likeliest(evidence, _affordable(count))
        weights = np.exp(evidence[chosen] - evidence.max())
        return _Posterior(
            [self._grid[index] for index in chosen],
            weights / weights.sum(),
            np.linalg.inv(factors[chosen]),
            alphas[chosen],
        )

    def _expected_shifts(self) -> dict[float, Floats]:
        """By size of the process, how far the truth is expected from each prediction."""
        predicted = self._prior.log_sum(np.zeros(self._prior.num_parts))
        sizes = {s.process for s in self._grid if s.process <= _LARGEST_SHIFTED}
        return {size: HINDSIGHT * expected_shift(predicted, size) for size in sizes}

    def _shift(self, scales: Scales) -> Floats:
        """Expected truth minus prediction, where whole layouts err: choices are among those."""
        found = self._shifts.get(scales.process)
        if found is None or not len(self._rows) or sum(scales.mix[3:]) < 0.5:
            return np.zeros(len(self._base))
        return found

    def _a_priori(self) -> _Posterior:
        weights = np.exp([scales.log_prior for scales in self._grid])
        count = len(self._grid)
        return _Posterior(
            self._grid, weights / weights.sum(), np.zeros((count, 0, 0)), np.zeros((count, 0))
        )


def _affordable(num_rows: int) -> int:
    """How many hypotheses are averaged: their cost goes with the square of the training rows."""
    return int(np.clip(MAX_COST // num_rows**2, 4, 120))


def _likeliest(evidence: Floats, limit: int) -> Rows:
    """The likeliest hypotheses, at most `limit`, that hold nearly all of the weight."""
    order = np.argsort(-evidence, kind="stable")
    weights = np.exp(evidence[order] - evidence[order[0]])
    held = np.cumsum(weights) / weights.sum()
    return order[: min(limit, int(np.searchsorted(held, ENOUGH)) + 1)]


def _forward(factors: Floats, target: Floats) -> Floats:
    """Solutions of many lower triangular systems (k, n, n) for right-hand sides (k, n)."""
    solved = np.zeros(factors.shape[:2])
    for row in range(target.shape[1]):
        known = (factors[:, row, :row] * solved[:, :row]).sum(axis=1)
        solved[:, row] = (target[:, row] - known) / factors[:, row, row]
    return solved


def _training_rows(costs: Mapping[int, float]) -> list[int]:
    """All measured rows, or of many the fastest half and an even spread over the rest."""
    rows = sorted(costs, key=lambda row: (costs[row], row))
    if len(rows) <= MAX_TRAINING_ROWS:
        return rows
    half = MAX_TRAINING_ROWS // 2
    picks = np.linspace(half, len(rows) - 1, MAX_TRAINING_ROWS - half).round().astype(int)
    return rows[:half] + [rows[index] for index in picks]
