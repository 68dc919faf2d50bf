"""Probability that a candidate runs, moved by every failure, success and measured peak.

Two reasons are kept apart. Memory: the log of the peak is the log of the predicted parts, each
re-weighted, plus a Gaussian process over the knobs; a measured peak is an observation of it, an
out-of-memory says that it is above the limit, a success without a peak that it is below. Everything
else (rules that only the trainer knows, crashes): a Gaussian process classifier over the knobs.
Inequalities are handled by expectation propagation (Rasmussen & Williams 2006, section 3.6).
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from scipy.special import log_ndtr, ndtr, ndtri

from trainer.contract import FailureKind
from tuner.searchers.calibrated_model import Mix
from tuner.searchers.history import History, Known
from tuner.searchers.kernels import KnobKernel, Rows
from tuner.searchers.knobs import Floats
from tuner.searchers.parts import PartsPrior

_CERTAIN = 1e-9
_SWEEPS = 8
SHORTFALLS = np.linspace(0.0, 0.24, 13)
"""Log units by which the memory in use at the limit may fall short of it: allocators fragment, and
some bytes are not theirs to count."""


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


class LatentProcess:
    """A Gaussian process over the candidates, told values and inequalities.

    Args:
        kernel: over the knobs.
        mean: prior mean of every candidate.
        linear: columns (candidates, k) of a linear part with independent unit coefficients.
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
        scale: float,
        offset: float,
        mix: Mix,
    ) -> None:
        self._kernel, self._mean, self._linear = kernel, mean, linear
        self._scale, self._offset, self._mix = scale, offset, np.array(mix)

    def fit(self, evidence: Sequence[Evidence]) -> None:
        """Condition on `evidence`, at most one item a row."""
        self._rows = np.array([item.row for item in evidence], dtype=np.intp)
        covariance = self._covariance(self._rows)
        mean = self._mean[self._rows]
        signs = np.array([item.sign for item in evidence], dtype=float)
        noise = np.array([item.noise for item in evidence], dtype=float)
        values = np.array([item.value for item in evidence], dtype=float)
        precision, target = _propagate(covariance, mean, signs, noise, values)
        total = covariance + np.diag(1 / precision)
        self._root = np.linalg.inv(np.linalg.cholesky(total)) if len(evidence) else total
        self._alpha = self._root @ (target - mean)

    def predict(self, rows: Rows) -> tuple[Floats, Floats]:
        """Mean and standard deviation of the latent at `rows`."""
        half = self._root @ self._covariance(rows)
        prior = self._scale**2 + self._offset**2 + (self._linear[rows] ** 2).sum(axis=1)
        variance = prior - (half**2).sum(axis=0)
        return self._mean[rows] + half.T @ self._alpha, np.sqrt(np.maximum(variance, 1e-12))

    def _covariance(self, rows: Rows) -> Floats:
        mixed = np.tensordot(self._mix, self._kernel.block(self._rows, rows), axes=1)
        linear = self._linear[self._rows] @ self._linear[rows].T
        return np.asarray(self._scale**2 * mixed + self._offset**2 + linear)


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


class FeasibilityModel:
    """Probability of running for all candidates.

    Args:
        kernel: over the knobs.
        memory: predicted peak of every candidate as parts; uninformative where unknown.
        probabilities: of fitting, as the cost model gave them.
    """

    def __init__(self, kernel: KnobKernel, memory: PartsPrior, probabilities: Floats) -> None:
        self._num_rows = len(probabilities)
        self._is_uncertain = bool((probabilities < 1 - _CERTAIN).any())
        peaks = memory.parts.sum(axis=1) if memory.is_informative else np.zeros(self._num_rows)
        self._scale = memory_scale(peaks, probabilities)
        self._memory = self._memory_process(kernel, memory, probabilities)
        self._other = LatentProcess(
            kernel,
            np.full(self._num_rows, 1.9),
            np.zeros((self._num_rows, 0)),
            scale=1.0,
            offset=0.5,
            mix=(0.3, 0.3, 0.4, 0.0),
        )
        self.fit(History({}))

    def _memory_process(
        self, kernel: KnobKernel, memory: PartsPrior, probabilities: Floats
    ) -> LatentProcess:
        """The margin: log limit minus log peak, so that above zero fits."""
        if self._scale is not None:
            spread = float(np.clip(self._scale.spread, 0.03, 0.5))
            zero = np.zeros(memory.num_parts)
            mean = self._scale.log_limit - memory.log_sum(zero)
            linear = 0.6 * spread * memory.shares(zero)
        else:
            spread = 0.15
            mean = spread * ndtri(np.clip(probabilities, 1e-6, 1 - 1e-6))
            linear = np.zeros((self._num_rows, 0))
        self._spread = spread
        return LatentProcess(
            kernel, mean, linear, scale=0.6 * spread, offset=0.35 * spread, mix=(0.3, 0.2, 0.2, 0.3)
        )

    def fit(self, history: History) -> None:
        """Condition on a study's outcomes."""
        known = {row: each for row, each in history.known.items() if not each.is_running}
        blur = max(0.15 * self._spread, 0.01)
        memory, unclear = [], []
        for row, each in known.items():
            if each.is_infeasible and each.failure is None and not each.is_measured:
                unclear.append(row)
            else:
                memory += self._memory_evidence(row, each, blur)
        measured = [item for item in memory if item.sign >= 0]
        self._shortfall = shortfall_belief([item.value for item in measured if item.sign == 0])
        self._memory.fit(_thinned(measured))
        blamed = [item.row for item in memory if item.sign < 0]
        blamed += self._blame_memory(unclear)
        if blamed:
            self._learn_shortfall(blamed, measured)
            typical = float(self._shortfall @ SHORTFALLS)
            memory = measured + [Evidence(row, -1, blur, typical) for row in blamed]
            self._memory.fit(_thinned(memory))
        other = [item for row, each in known.items() for item in _other_evidence(row, each)]
        other += [Evidence(row, -1, 0.5) for row in unclear if row not in blamed]
        self._other.fit(_thinned(other))
        self._has_other = any(item.sign < 0 for item in other)

    def _learn_shortfall(self, rows: list[int], measured: list[Evidence]) -> None:
        """Move the belief in the shortfall by points that ran out of memory.

        Says something only where peaks were measured: without, a shortfall and a wrong prediction
        are the same thing.
        """
        if not any(item.sign == 0 for item in measured):
            return
        mean, spread = self._memory.predict(np.array(rows, dtype=np.intp))
        width = np.hypot(spread, 0.35 * self._spread)[:, None]
        fails = log_ndtr((SHORTFALLS - mean[:, None]) / width).sum(axis=0)
        weights = self._shortfall * np.exp(fails - fails.max())
        self._shortfall = weights / weights.sum()

    def _blame_memory(self, rows: list[int]) -> list[int]:
        """Of points that failed without a reason given, those that likely ran out of memory."""
        if not rows or not self._is_uncertain:
            return []
        fits = self._fits(np.array(rows, dtype=np.intp))
        return [row for row, probability in zip(rows, fits, strict=True) if probability < 0.8]

    def _memory_evidence(self, row: int, known: Known, blur: float) -> list[Evidence]:
        if not self._is_uncertain and known.failure is not FailureKind.OOM:
            return []
        if known.is_measured:
            if self._scale is not None and known.peak_memory_bytes:
                margin = self._scale.log_limit - math.log(known.peak_memory_bytes)
                return [Evidence(row, 0, blur, margin)]
            return [Evidence(row, 1, blur)]
        return [Evidence(row, -1, blur)] if known.failure is FailureKind.OOM else []

    def _fits(self, rows: Rows) -> Floats:
        mean, spread = self._memory.predict(rows)
        margin = mean[:, None] - SHORTFALLS
        width = np.hypot(spread, 0.35 * self._spread)[:, None]
        return np.asarray(ndtr(margin / width) @ self._shortfall)

    def predict(self, rows: Rows) -> Floats:
        """Probability that each of `rows` runs."""
        fits = self._fits(rows)
        if not self._has_other:
            return fits
        mean, spread = self._other.predict(rows)
        return np.asarray(fits * ndtr(mean / np.hypot(spread, 1.0)))


def _other_evidence(row: int, known: Known) -> list[Evidence]:
    """What an outcome with a known reason says of failures that are not the memory's."""
    if known.is_measured:
        return [Evidence(row, 1, 0.5)]
    if known.failure is FailureKind.OOM or (known.is_infeasible and known.failure is None):
        return []
    # A transient failure says little of the point, a broken rule much.
    return [Evidence(row, -1, 0.5 if known.is_infeasible else 1.5)]


def _thinned(evidence: list[Evidence], limit: int = 128) -> list[Evidence]:
    """At most `limit` items, the latest half and an even spread over the earlier ones."""
    if len(evidence) <= limit:
        return evidence
    half = limit // 2
    picks = np.linspace(0, len(evidence) - half - 1, limit - half).round().astype(int)
    return [evidence[index] for index in picks] + evidence[-half:]
