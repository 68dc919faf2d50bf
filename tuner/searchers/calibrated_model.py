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
from scipy.linalg import solve_triangular

from tuner.searchers.kernels import KnobKernel, Rows
from tuner.searchers.knobs import Floats
from tuner.searchers.parts import PartsPrior

MAX_TRAINING_ROWS = 128
Mix = tuple[float, float, float, float]
"""Shares of the kernel's components in a process."""
_MIXES: tuple[Mix, ...] = (
    (0.6, 0.25, 0.15, 0.0),
    (0.25, 0.35, 0.4, 0.0),
    (0.1, 0.2, 0.7, 0.0),
    (0.1, 0.15, 0.15, 0.6),
    (0.05, 0.1, 0.05, 0.8),
)


@dataclass(frozen=True)
class Scales:
    """Standard deviations of the ingredients of the log under one hypothesis."""

    weights: float
    process: float
    mix: Mix
    noise: float
    log_prior: float


def _grid(is_informative: bool) -> list[Scales]:
    weights = ((0.05, -0.7), (0.15, -0.4), (0.45, -0.7)) if is_informative else ((0.0, 0.0),)
    process = (0.015, 0.04, 0.1, 0.25) if is_informative else (0.1, 0.25, 0.6)
    noise = (0.012, 0.03)
    return [
        Scales(weight, size, mix, idiosyncrasy, log_prior - 0.3 * (size > 0.2))
        for (weight, log_prior), size, mix, idiosyncrasy in product(weights, process, _MIXES, noise)
    ]


@dataclass(frozen=True)
class _Hypothesis:
    """A posterior under one choice of scales."""

    scales: Scales
    weight: float
    root: Floats
    """Inverse of the lower Cholesky factor of the training covariance."""
    alpha: Floats


class CalibratedModel:
    """Posterior of the log of a positive quantity of all candidates.

    Args:
        kernel: over the candidates' knobs.
        prior: the cost model's parts.
        max_hypotheses: how many of the grid's most likely members are averaged.
    """

    def __init__(self, kernel: KnobKernel, prior: PartsPrior, *, max_hypotheses: int = 4) -> None:
        self._kernel = kernel
        self._prior = prior
        self._max_hypotheses = max_hypotheses
        self._grid = _grid(prior.is_informative)
        self._offset_sd = 0.25 if prior.is_informative else 2.0
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
        self._hypotheses = self._weigh()

    def part_weights(self) -> Floats:
        """Factor on each part of the prior, at the mode."""
        return np.exp(self._log_weights)

    def mean(self) -> Floats:
        """Expected log of every candidate's quantity."""
        total = np.zeros(len(self._base))
        for hypothesis in self._hypotheses:
            total += hypothesis.weight * self._mean_under(hypothesis)
        return self._base + total

    def predict(self, rows: Rows) -> tuple[Floats, Floats]:
        """Mean and standard deviation of the log that a trial of `rows` would measure."""
        means, variances = [], []
        for hypothesis in self._hypotheses:
            covariance = self._covariance(hypothesis.scales, rows)
            half = hypothesis.root @ covariance
            means.append(half.T @ hypothesis.alpha)
            variances.append(self._variance(hypothesis.scales, rows) - (half**2).sum(axis=0))
        weight = np.array([hypothesis.weight for hypothesis in self._hypotheses])[:, None]
        stacked = np.stack(means)
        mean = (weight * stacked).sum(axis=0)
        spread = (weight * (np.stack(variances) + (stacked - mean) ** 2)).sum(axis=0)
        return self._base[rows] + mean, np.sqrt(np.maximum(spread, 1e-10))

    def prior_error(self) -> float:
        """Root mean square of the log error that the prior is thought to have, in use or not."""
        return math.sqrt(sum(h.weight * h.scales.process**2 for h in self._hypotheses))

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

    def _weigh(self) -> list[_Hypothesis]:
        """The most likely hypotheses, with normalised weights."""
        count = len(self._rows)
        if count == 0:
            return [
                _Hypothesis(scales, weight, np.zeros((0, 0)), np.zeros(0))
                for scales, weight in self._a_priori()
            ]
        shares = self._shares[self._rows]
        linear = shares @ shares.T
        mixed = np.stack([self._mixed(mix) for mix in _MIXES])
        which = [_MIXES.index(scales.mix) for scales in self._grid]
        sizes = np.array([[s.process, s.weights, s.noise] for s in self._grid]).T[..., None, None]
        covariances = sizes[0] ** 2 * mixed[which] + sizes[1] ** 2 * linear + self._offset_sd**2
        covariances += sizes[2] ** 2 * np.eye(count)
        factors = np.linalg.cholesky(covariances)
        alphas = _forward(factors, self._residual)
        log_determinants = np.log(np.einsum("hii->hi", factors)).sum(axis=1)
        evidence = -0.5 * (alphas**2).sum(axis=1) - log_determinants
        evidence = evidence + np.array([scales.log_prior for scales in self._grid])
        chosen = np.argsort(-evidence)[: self._max_hypotheses]
        weights = np.exp(evidence[chosen] - evidence[chosen[0]])
        weights = weights / weights.sum()
        identity = np.eye(count)
        return [
            _Hypothesis(
                self._grid[index],
                float(weight),
                solve_triangular(factors[index], identity, lower=True),
                alphas[index],
            )
            for index, weight in zip(chosen, weights, strict=True)
            if weight > 0.02
        ]

    def _a_priori(self) -> list[tuple[Scales, float]]:
        """A few members of the grid that stand for it before anything is measured."""
        order = sorted(self._grid, key=lambda scales: -scales.log_prior)[: self._max_hypotheses]
        return [(scales, 1 / len(order)) for scales in order]

    def _mean_under(self, hypothesis: _Hypothesis) -> Floats:
        if not len(self._rows):
            return np.zeros(len(self._base))
        gain = hypothesis.root.T @ hypothesis.alpha
        scales = hypothesis.scales
        spread = scales.process**2 * np.array(scales.mix)
        correction = self._kernel.combine(self._rows, spread[:, None] * gain)
        correction += self._offset_sd**2 * gain.sum()
        weights = scales.weights**2 * (gain @ self._shares[self._rows])
        return np.asarray(correction + self._shares @ weights)

    def _covariance(self, scales: Scales, rows: Rows) -> Floats:
        """Of training rows with `rows`: (training, rows)."""
        mixed = np.tensordot(np.array(scales.mix), self._kernel.block(self._rows, rows), axes=1)
        linear = self._shares[self._rows] @ self._shares[rows].T
        return np.asarray(
            scales.process**2 * mixed + self._offset_sd**2 + scales.weights**2 * linear
        )

    def _variance(self, scales: Scales, rows: Rows) -> Floats:
        spread = scales.weights**2 * (self._shares[rows] ** 2).sum(axis=1)
        return np.asarray(spread + scales.process**2 + self._offset_sd**2 + scales.noise**2)


def _forward(factors: Floats, target: Floats) -> Floats:
    """Solutions of many lower triangular systems (k, n, n) for one right-hand side: (k, n)."""
    solved = np.zeros(factors.shape[:2])
    for row in range(len(target)):
        known = (factors[:, row, :row] * solved[:, :row]).sum(axis=1)
        solved[:, row] = (target[row] - known) / factors[:, row, row]
    return solved


def _training_rows(costs: Mapping[int, float]) -> list[int]:
    """All measured rows, or of many the fastest half and an even spread over the rest."""
    rows = sorted(costs, key=lambda row: (costs[row], row))
    if len(rows) <= MAX_TRAINING_ROWS:
        return rows
    half = MAX_TRAINING_ROWS // 2
    picks = np.linspace(half, len(rows) - 1, MAX_TRAINING_ROWS - half).round().astype(int)
    return rows[:half] + [rows[index] for index in picks]
