"""How much of the host's possible lead a configuration uses, learnt from its neighbours' memory.

Whether a host runs ahead depends on the machine, its network and the version of a stack as much as
on the configuration: runs of the same shape hold all of those buffers or none. A Gaussian process
over a few coordinates, with the fitted constants as its mean, follows what the neighbours held, and
says nothing where there are none.
"""

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

Matrix = NDArray[np.float64]
Vector = NDArray[np.float64]

WIDTH = 3.0
AMPLITUDE, NOISE = 1.0, 0.25
"""Of the share, relative to the fitted constants."""
READING_NOISE = 0.05
"""Relative standard deviation of a reading about the right formulas."""
MOST = 2.0
LEAST_BYTES = 1.0


@dataclass(frozen=True, kw_only=True)
class ShareModel:
    """A fitted share: 1 far from every observation."""

    features: Matrix
    weights: Vector

    def share(self, features: Matrix) -> Vector:
        """Factor on the constants of the host's lead, for each row."""
        return np.clip(1.0 + _kernel(features, self.features) @ self.weights, 0.0, MOST)


def _kernel(left: Matrix, right: Matrix) -> Matrix:
    squares = (left**2).sum(1)[:, None] + (right**2).sum(1)[None, :] - 2.0 * left @ right.T
    kernel: Matrix = AMPLITUDE**2 * np.exp(np.maximum(squares, 0.0) * (-0.5 / WIDTH**2))
    return kernel


def fit_share(
    features: Matrix, without: Vector, lead: Vector, measured: Vector
) -> tuple[ShareModel, Vector] | None:
    """Fit to readings, given the need `without` any lead and the bytes of the whole `lead`.

    Also returns the share of every observation itself, which lies between what its neighbours say
    and its own reading. None where no reading tells anything.
    """
    lead = np.maximum(lead, LEAST_BYTES)
    if not np.any(lead > READING_NOISE * measured):
        return None
    seen = np.clip((measured - without) / lead, -0.3, MOST)
    variance = (READING_NOISE * measured / lead) ** 2 + NOISE**2
    covariance = _kernel(features, features)
    weights: Vector = np.asarray(np.linalg.solve(covariance + np.diag(variance), seen - 1.0))
    expected = 1.0 + covariance @ weights
    own = expected + (seen - expected) * NOISE**2 / variance
    return ShareModel(features=features, weights=weights), np.clip(own, 0.0, MOST)
