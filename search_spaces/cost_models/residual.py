"""What the formulas leave: a small Gaussian process on the logarithm of measured over predicted.

Two kernels add up: a smooth one over the configuration and the predicted parts, and a narrow one
over the shape of the work (ranks, micro-batch, width), because every shape of GEMM and message has
an efficiency of its own. Far from every observation the correction fades to none. Kernel widths and
amplitudes are not chosen but averaged over a grid, by leave-one-out likelihood under a Student law.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import product

import numpy as np
from numpy.typing import NDArray

Matrix = NDArray[np.float64]
Vector = NDArray[np.float64]

SMOOTH_WIDTHS = (1.0, 2.0, 4.0)
SHAPE_WIDTH = 0.6
SMOOTH_AMPLITUDES = (0.02, 0.05, 0.1, 0.2)
SHAPE_AMPLITUDES = (0.0, 0.03, 0.06, 0.12, 0.2)
NOISES = (0.01, 0.02, 0.04, 0.07)
DEGREES_OF_FREEDOM = 4.0
TEMPERATURE = 0.3
"""Below 1: the grid's members are averaged more evenly than their likelihoods alone say."""
OUTLIER_SCALE = 0.12
NOVELTY_WIDTH, FAR = 1.5, 2.5
"""Intervals widen over this distance from the nearest observation, up to so many times."""
CHUNK = 16384
PRIOR_HALF_WIDTH = 0.35
"""Half-width of the 90 % interval of a logarithm before anything was measured."""


@dataclass(frozen=True, kw_only=True)
class Features:
    """Inputs of the two kernels; rows are points."""

    smooth: Matrix
    shape: Matrix


@dataclass(frozen=True, kw_only=True)
class ResidualModel:
    """A fitted correction of logarithms, with the half-width of its 90 % interval."""

    features: Features
    smooth_weights: Matrix
    """Weights of the observations for each smooth width, shape (widths, observations)."""
    shape_weights: Vector
    half_width: float

    def correct(self, features: Features) -> tuple[Vector, Vector]:
        """Correction of the logarithm and half-width of the interval, for each row."""
        count = len(features.smooth)
        shift, half = np.empty(count), np.empty(count)
        for start in range(0, count, CHUNK):
            rows = slice(start, start + CHUNK)
            smooth = _squared_distances(features.smooth[rows], self.features.smooth)
            shift[rows] = (
                _kernel(_squared_distances(features.shape[rows], self.features.shape), SHAPE_WIDTH)
                @ self.shape_weights
            )
            for width, weights in zip(SMOOTH_WIDTHS, self.smooth_weights, strict=True):
                shift[rows] += _kernel(smooth, width) @ weights
            half[rows] = self.half_width * _novelty(smooth)
        return shift, half


def _squared_distances(left: Matrix, right: Matrix) -> Matrix:
    squares = (left**2).sum(1)[:, None] + (right**2).sum(1)[None, :] - 2.0 * left @ right.T
    return np.asarray(np.maximum(squares, 0.0))


def _kernel(squared_distances: Matrix, width: float) -> Matrix:
    kernel: Matrix = np.exp(squared_distances * (-0.5 / width**2))
    return kernel


def _novelty(squared_distances: Matrix) -> Vector:
    """1 beside an observation, towards `FAR` away from all of them."""
    nearest = squared_distances.min(axis=1)
    return np.asarray(FAR - (FAR - 1.0) * np.exp(-0.5 * nearest / NOVELTY_WIDTH**2))


@dataclass(frozen=True)
class _Member:
    """One setting of the grid."""

    width_index: int
    smooth_amplitude: float
    shape_amplitude: float
    score: float
    weights: Vector
    left_out: Vector
    """Prediction of each observation by the others."""


def _members(features: Features, residuals: Vector, trust: Vector) -> list[_Member]:
    shape = _kernel(_squared_distances(features.shape, features.shape), SHAPE_WIDTH)
    distances = _squared_distances(features.smooth, features.smooth)
    members = []
    for index, width in enumerate(SMOOTH_WIDTHS):
        smooth = _kernel(distances, width)
        for grid in product(SMOOTH_AMPLITUDES, SHAPE_AMPLITUDES, NOISES):
            amplitude, shape_amplitude, noise = grid
            own = noise**2 / trust
            covariance = amplitude**2 * smooth + shape_amplitude**2 * shape + np.diag(own)
            inverse = np.linalg.inv(covariance)
            weights = inverse @ residuals
            variance = 1.0 / np.diag(inverse)
            left_out = residuals - weights * variance
            spread = np.maximum(variance - own, 0.0) + noise**2
            score = _student_score(residuals - left_out, spread)
            members.append(_Member(index, amplitude, shape_amplitude, score, weights, left_out))
    return members


def _student_score(errors: Vector, variance: Vector) -> float:
    """Logarithm of the likelihood of left-out errors, up to a constant."""
    nu = DEGREES_OF_FREEDOM
    tail = 0.5 * (nu + 1.0) * np.log1p(errors**2 / (variance * nu))
    return float(-(0.5 * np.log(variance) + tail).sum())


def fit_residual(
    features: Features, residuals: Vector, num_moved: float, prior_half_width: float
) -> ResidualModel:
    """Fit to residuals (logarithm of measured over predicted) of at least two points.

    `num_moved` constants of the formulas were fitted to the same points before: leaving one out
    here does not leave it out there, so the interval is widened for them.
    """
    trust = 1.0 / (1.0 + (residuals / OUTLIER_SCALE) ** 2)
    members = _members(features, residuals, trust)
    scores = np.array([member.score for member in members])
    shares = np.exp((scores - scores.max()) * TEMPERATURE)
    shares /= shares.sum()
    smooth = np.zeros((len(SMOOTH_WIDTHS), len(residuals)))
    shape = np.zeros(len(residuals))
    left_out = np.zeros(len(residuals))
    for share, member in zip(shares, members, strict=True):
        smooth[member.width_index] += share * member.smooth_amplitude**2 * member.weights
        shape += share * member.shape_amplitude**2 * member.weights
        left_out += share * member.left_out
    distances = _squared_distances(features.smooth, features.smooth)
    np.fill_diagonal(distances, np.inf)
    errors = np.abs(residuals - left_out) / _novelty(distances)
    return ResidualModel(
        features=features,
        smooth_weights=smooth,
        shape_weights=shape,
        half_width=conformal_half_width(errors, num_moved, prior_half_width),
    )


def conformal_half_width(
    errors: Sequence[float] | Vector, num_moved: float, prior_half_width: float
) -> float:
    """Half-width that covers 90 % of new points, from errors on left-out ones.

    The split-conformal quantile, widened for constants fitted to the same points, and blended with
    the prior's width while observations are few.
    """
    scores = np.sort(np.asarray(errors))
    count = len(scores)
    rank = min(int(np.ceil(0.9 * (count + 1))), count)
    inflation = np.sqrt((count + 2.0 * num_moved) / count)
    prior = prior_half_width * 4.0 / (4.0 + count)
    return float(np.hypot(scores[rank - 1] * inflation, prior))
