"""What to expect of a prediction that looks best among many: less than it says.

A prediction is the truth and an error. Among thousands, those that are lowest are low in part
because of their error, the more so the larger the errors are. How much follows from the predictions
alone: with errors of standard deviation `s`, the expected truth lies above the prediction `b` by
`s^2` times the slope of the log density of all predictions at `b` (Tweedie's formula, Efron 2011).
"""

import numpy as np

from tuner.searchers.knobs import Floats

_BANDWIDTH = 0.7
"""Of the density's kernel, in units of the errors."""
_MOST = 2.0
"""Largest shift, in units of the errors."""


def expected_shift(predicted: Floats, error: float) -> Floats:
    """Expected truth minus prediction, for predictions with errors of this standard deviation.

    Args:
        predicted: all predictions, with errors that have nothing to do with the truth.
        error: in the unit of the predictions, above 0.
    """
    step = error * _BANDWIDTH / 4
    low, high = float(predicted.min()) - 4 * step, float(predicted.max()) + 4 * step
    if high - low > 1e5 * step:
        return np.zeros(len(predicted))
    edges = np.linspace(low, high, max(int((high - low) / step), 2) + 1)
    centres = (edges[:-1] + edges[1:]) / 2
    counts, _ = np.histogram(predicted, edges)
    distance = np.arange(-16, 17) / 4
    kernel = np.exp(-0.5 * distance**2)
    density = np.convolve(counts, kernel)[16:-16]
    slope = np.convolve(counts, -distance * kernel)[16:-16] / (error * _BANDWIDTH)
    score = slope / np.maximum(density, 1e-9)
    shift = np.clip(error**2 * score, -_MOST * error, _MOST * error)
    return np.asarray(np.interp(predicted, centres, shift))
