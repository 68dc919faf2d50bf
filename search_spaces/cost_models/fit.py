"""Robust non-linear least squares with a ridge towards the prior, for a handful of constants."""

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

Vector = NDArray[np.float64]
Matrix = NDArray[np.float64]

NUM_ITERATIONS = 15
NUM_ROUNDS = 3
NUM_JUMPS = 8
JUMPS = (-4.0, -2.0, -1.0, 1.0, 2.0, 4.0)
WIDE, FAR_END = 3.0, 1.7
"""From this standard deviation of its prior on, a constant is tried so many of them further too."""
STEP = 1e-4
"""Step of the finite differences, in units of the logarithm of a constant."""


@dataclass(frozen=True, kw_only=True)
class RidgeProblem:
    """Residuals to bring to zero, starting from and held to a prior mean.

    `residuals` maps a matrix of candidate vectors, shape (candidates, constants), to residuals of
    shape (candidates, rows), so that a Jacobian costs one call.
    """

    residuals: Callable[[Matrix], Matrix]
    prior_mean: Vector
    prior_spread: Vector
    noise: float
    """Standard deviation of a good row's residual: from there on, rows weigh less."""


def _robust_weights(scaled: Vector) -> Vector:
    """Weights of the Cauchy loss: a row far off counts almost nothing."""
    weights: Vector = 1.0 / (1.0 + (scaled / 2.0) ** 2)
    return weights


def _objective(scaled: Matrix, deviations: Matrix) -> Vector:
    loss = 4.0 * np.log1p((scaled / 2.0) ** 2)
    total: Vector = loss.sum(axis=-1) + (deviations**2).sum(axis=-1)
    return total


def solve(problem: RidgeProblem) -> Vector:
    """The best vector found from the prior, and from the far ends of priors that are wide open.

    A constant of unknown size that matters a thousandfold more than the prior says is else taken
    for several others that matter a little more each.
    """
    best, value = _improve(problem, problem.prior_mean)
    rows = problem.residuals(problem.prior_mean[None, :])
    for index in np.flatnonzero(problem.prior_spread >= WIDE):
        start = problem.prior_mean.copy()
        start[index] += FAR_END * problem.prior_spread[index]
        if np.array_equal(problem.residuals(start[None, :]), rows):
            continue  # nothing depends on it here
        candidate, reached = _improve(problem, start)
        if reached < value:
            best, value = candidate, reached
    return best


def _improve(problem: RidgeProblem, start: Vector) -> tuple[Vector, float]:
    """Alternate jumps along single constants with descents; the vector and its objective.

    A constant that a maximum hides has no slope to follow, so jumps must find it first.
    """
    best, value = start, float(_value(problem, start[None, :])[0])
    for _ in range(NUM_ROUNDS):
        candidate = _descend(problem, _jump(problem, best))
        reached = float(_value(problem, candidate[None, :])[0])
        if not reached < value * (1.0 - 1e-3):
            break
        best, value = candidate, reached
    return best, value


def _jump(problem: RidgeProblem, start: Vector) -> Vector:
    """Greedy search over large steps of one constant at a time."""
    count = start.size
    scale = np.minimum(problem.prior_spread, 1.0)[None, :]
    moves = np.concatenate([jump * np.eye(count) * scale for jump in JUMPS])
    current, value = start, _value(problem, start[None, :])[0]
    for _ in range(NUM_JUMPS):
        values = _value(problem, current + moves)
        choice = int(values.argmin())
        if not values[choice] < value * (1.0 - 1e-3):
            break
        current, value = current + moves[choice], values[choice]
    return current


def _value(problem: RidgeProblem, vectors: Matrix) -> Vector:
    rows = problem.residuals(vectors) / problem.noise
    value = _objective(rows, (vectors - problem.prior_mean) / problem.prior_spread)
    return np.where(np.isfinite(value), value, np.inf)


def _descend(problem: RidgeProblem, start: Vector) -> Vector:
    """Levenberg-Marquardt on the re-weighted problem."""
    current = start.copy()
    count = current.size
    damping = 1e-2
    rows = problem.residuals(current[None, :])[0] / problem.noise
    best = _objective(rows, (current - problem.prior_mean) / problem.prior_spread)
    dampings = 10.0 ** np.arange(-1.0, 4.0)
    for _ in range(NUM_ITERATIONS):
        probes = problem.residuals(current + STEP * np.eye(count)) / problem.noise
        jacobian = (probes - rows) / STEP
        weights = _robust_weights(rows)
        ridge = 1.0 / problem.prior_spread**2
        normal = (jacobian * weights) @ jacobian.T + np.diag(ridge)
        gradient = (jacobian * weights) @ rows + ridge * (current - problem.prior_mean)
        diagonal = np.diag(np.diag(normal))
        steps = np.stack(
            [np.linalg.solve(normal + damping * d * diagonal, gradient) for d in dampings]
        )
        trials = current - np.clip(steps, -2.0, 2.0)
        values = _value(problem, trials)
        choice = int(values.argmin())
        if not values[choice] < best * (1.0 - 1e-7):
            break
        damping = float(np.clip(damping * dampings[choice], 1e-8, 1e4))
        improvement = best - values[choice]
        current, best = trials[choice], values[choice]
        rows = problem.residuals(current[None, :])[0] / problem.noise
        if improvement < 1e-4 * max(1.0, best):
            break
    return current
