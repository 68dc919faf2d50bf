"""A Gaussian process over the candidates that is told values and inequalities.

Inequalities are handled by expectation propagation (Rasmussen & Williams 2006, section 3.6).
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from scipy.special import log_ndtr

from tuner.searchers.calibrated_model import Mix
from tuner.searchers.kernels import KnobKernel, Rows
from tuner.searchers.knobs import Floats

_SWEEPS = 8


@dataclass(frozen=True)
class Evidence:
    """What is known of a latent at one row: its value, or on which side of 0 it lies.

    `sign` 0 says that the latent is `value`, with standard deviation `noise`; +1 or -1 that it is
    above or below `value`, blurred by `noise`.
    """

    row: int
    sign: int
    noise: float
    value: float = 0.0


@dataclass(frozen=True)
class Blocks:
    """What the covariances of some rows with others are made of, before any size: (rows, others).

    Processes that differ in their sizes alone share them.
    """

    mixed: Floats
    linear: Floats

    @classmethod
    def of(cls, kernel: KnobKernel, mix: Mix, linear: Floats, rows: Rows, others: Rows) -> "Blocks":
        """The kernel's components mixed, and the products of the linear part's columns."""
        mixed = np.tensordot(np.array(mix), kernel.block(rows, others), axes=1)
        return cls(mixed, linear[rows] @ linear[others].T)


class LatentProcess:
    """A Gaussian process over the candidates, told values and inequalities.

    Args:
        kernel: over the knobs.
        mean: prior mean of every candidate.
        linear: columns (candidates, k) of a linear part with independent coefficients.
        slope: standard deviation of those coefficients.
        scale: standard deviation of the process over the knobs.
        offset: standard deviation of a common offset.
        mix: shares of the kernel's components.
    """

    def __init__(
        self,
        kernel: KnobKernel,
        mean: Floats,
        linear: Floats,
        *,
        slope: float = 1.0,
        scale: float,
        offset: float,
        mix: Mix,
    ) -> None:
        self._kernel, self._mean, self._linear = kernel, mean, linear
        self._slope, self._scale, self._offset = slope, scale, offset
        self._mix = mix

    def fit(self, evidence: Sequence[Evidence], blocks: Blocks | None = None) -> None:
        """Condition on `evidence`, at most one item a row; `blocks` of its rows, if at hand."""
        self._rows = np.array([item.row for item in evidence], dtype=np.intp)
        covariance = self._covariance(self._rows, blocks)
        mean = self._mean[self._rows]
        signs = np.array([item.sign for item in evidence], dtype=float)
        noise = np.array([item.noise for item in evidence], dtype=float)
        values = np.array([item.value for item in evidence], dtype=float)
        precision, target = _propagate(covariance, mean, signs, noise, values)
        total = covariance + np.diag(1 / precision)
        self._root = np.linalg.inv(np.linalg.cholesky(total)) if len(evidence) else total
        self._alpha = self._root @ (target - mean)

    def predict(self, rows: Rows, blocks: Blocks | None = None) -> tuple[Floats, Floats]:
        """Mean and standard deviation of the latent at `rows`.

        `blocks`: of the evidence's rows with `rows`, if at hand.
        """
        half = self._root @ self._covariance(rows, blocks)
        slopes = self._slope**2 * (self._linear[rows] ** 2).sum(axis=1)
        prior = self._scale**2 + self._offset**2 + slopes
        variance = prior - (half**2).sum(axis=0)
        return self._mean[rows] + half.T @ self._alpha, np.sqrt(np.maximum(variance, 1e-12))

    def _covariance(self, rows: Rows, blocks: Blocks | None) -> Floats:
        if blocks is None:
            blocks = Blocks.of(self._kernel, self._mix, self._linear, self._rows, rows)
        covariance = self._scale**2 * blocks.mixed + self._slope**2 * blocks.linear
        return np.asarray(covariance + self._offset**2)


def _propagate(
    covariance: Floats, mean: Floats, signs: Floats, noise: Floats, values: Floats
) -> tuple[Floats, Floats]:
    """Gaussian sites (precision, target) that stand for the evidence: parallel, damped EP."""
    is_value = signs == 0
    precision = np.where(is_value, 1 / noise**2, 1e-6)
    target = np.where(is_value, values, mean)
    if is_value.all():
        return precision, target
    for _ in range(_SWEEPS):
        total = covariance + np.diag(1 / precision)
        gain = np.linalg.solve(total, covariance).T
        posterior_mean = mean + gain @ (target - mean)
        posterior_variance = np.maximum(
            np.diag(covariance) - (gain * covariance).sum(axis=1), 1e-12
        )
        cavity_precision = np.maximum(1 / posterior_variance - precision, 1e-6)
        cavity_variance = 1 / cavity_precision
        cavity_mean = cavity_variance * (posterior_mean / posterior_variance - precision * target)
        moments = _truncated_moments(
            cavity_mean - values, cavity_variance, np.where(is_value, 1, signs), noise
        )
        new_precision = np.clip(1 / moments[1] - cavity_precision, 1e-6, 1e8)
        shift = (moments[0] + values) / moments[1] - cavity_precision * cavity_mean
        blend = np.where(is_value, precision, 0.4 * precision + 0.6 * new_precision)
        new_shift = 0.4 * precision * target + 0.6 * shift
        target = np.where(is_value, values, new_shift / blend)
        precision = blend
    return precision, target


def _truncated_moments(
    mean: Floats, variance: Floats, signs: Floats, noise: Floats
) -> tuple[Floats, Floats]:
    """Mean and variance of a Gaussian times probit(sign * x / noise)."""
    width = np.sqrt(variance + noise**2)
    z = signs * mean / width
    ratio = np.exp(-0.5 * z**2 - 0.5 * math.log(2 * math.pi) - log_ndtr(z))
    new_mean = mean + signs * variance * ratio / width
    shrink = np.clip(ratio * (z + ratio), 0.0, 1.0)
    new_variance = variance - variance**2 * shrink / width**2
    return new_mean, np.maximum(new_variance, 1e-12)
