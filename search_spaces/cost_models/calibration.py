"""`Calibration`: constants and corrections learnt from measured points."""

from collections.abc import Callable
from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

from search_spaces.cost_models.constants import (
    CPU_SPREADS,
    MEMORY_SPREADS,
    TIME_SPREADS,
    Constants,
    to_vector,
    with_matrix,
    with_vector,
)
from search_spaces.cost_models.features import memory_features, time_features
from search_spaces.cost_models.fit import RidgeProblem, solve
from search_spaces.cost_models.hardware import Hardware
from search_spaces.cost_models.points import Column, Points
from search_spaces.cost_models.prediction import (
    PRIOR_MEMORY_HALF_WIDTH,
    Prediction,
    peak_memory_bytes,
    predict,
    step_time,
)
from search_spaces.cost_models.residual import PRIOR_HALF_WIDTH, ResidualModel, fit_residual

Vector = NDArray[np.float64]
Predictor = Callable[[Points, Hardware, Constants], Column]

TIME_NOISE, MEMORY_NOISE = 0.03, 0.05
"""Standard deviation of a good measurement about the right formulas, relative."""
MOST_OBSERVATIONS = 160
"""The residual model keeps the last so many: its cost grows with their cube."""


@dataclass(frozen=True, kw_only=True)
class Calibration:
    """What is known beyond the formulas: nothing at first."""

    constants: Constants
    time_residual: ResidualModel | None = None
    memory_residual: ResidualModel | None = None

    def predict(self, points: Points, hardware: Hardware, *, has_parts: bool = True) -> Prediction:
        """Formulas with the constants, then the corrections and their intervals.

        Without `has_parts` the parts may be left out, for speed.
        """
        is_corrected = self.time_residual is not None or self.memory_residual is not None
        raw = predict(points, hardware, self.constants, has_parts=has_parts or is_corrected)
        result = raw
        if self.time_residual is not None:
            shift, half = self.time_residual.correct(time_features(points, raw))
            result = replace(
                result,
                step_time_s=raw.step_time_s * np.exp(shift),
                parts_s={name: part * np.exp(shift) for name, part in raw.parts_s.items()},
                step_time_half_width=half,
            )
        if self.memory_residual is not None:
            shift, half = self.memory_residual.correct(memory_features(points, raw))
            scaled = {n: part * np.exp(shift) for n, part in raw.memory_parts_bytes.items()}
            result = replace(
                result,
                peak_memory_bytes=raw.peak_memory_bytes * np.exp(shift),
                memory_parts_bytes=scaled,
                memory_half_width=half,
            )
        return result


def calibrate_time(
    start: Calibration, points: Points, hardware: Hardware, measured_s: Vector
) -> Calibration:
    """Learn from step times; `start` gives the prior's constants."""
    if not len(measured_s):
        return start
    spreads = {**TIME_SPREADS, "gemm": hardware.traits.gemm_spread}
    if hardware.is_cpu:
        spreads |= CPU_SPREADS
    logs = np.log(measured_s)

    def residuals(candidates: Constants) -> Vector:
        return np.asarray(np.log(step_time(points, hardware, candidates)) - logs)

    constants, moved = _fit(start.constants, spreads, residuals, TIME_NOISE)
    recent = slice(max(len(logs) - MOST_OBSERVATIONS, 0), None)
    few = points.take(recent)
    raw = predict(few, hardware, constants)
    left = logs[recent] - np.log(raw.step_time_s)
    model = None
    if len(left) > 1:
        model = fit_residual(time_features(few, raw), left, moved, PRIOR_HALF_WIDTH)
    return replace(start, constants=constants, time_residual=model)


def calibrate_memory(
    start: Calibration,
    points: Points,
    hardware: Hardware,
    measured_bytes: Vector,
    is_bound: NDArray[np.bool_],
    reading: Predictor = peak_memory_bytes,
) -> Calibration:
    """Learn from peaks; where `is_bound` the need is only known to exceed the value (OOM).

    `reading` predicts what was read: usually the peak over all ranks.
    """
    if not len(measured_bytes):
        return start
    logs = np.log(measured_bytes)

    def residuals(candidates: Constants) -> Vector:
        errors = np.log(reading(points, hardware, candidates)) - logs
        return np.asarray(np.where(is_bound, np.minimum(errors, 0.0), errors))

    constants, moved = _fit(start.constants, MEMORY_SPREADS, residuals, MEMORY_NOISE)
    exact = np.flatnonzero(~is_bound)[-MOST_OBSERVATIONS:]
    model = None
    if len(exact) > 1:
        few = points.take(exact)
        raw = predict(few, hardware, constants)
        left = logs[exact] - np.log(reading(few, hardware, constants))
        features = memory_features(few, raw)
        model = fit_residual(features, left, moved, PRIOR_MEMORY_HALF_WIDTH)
    return replace(start, constants=constants, memory_residual=model)


def _fit(
    prior: Constants,
    spreads: dict[str, float],
    residuals: Callable[[Constants], Vector],
    noise: float,
) -> tuple[Constants, float]:
    """Fitted constants, and how many of them moved."""
    names = list(spreads)
    mean = to_vector(prior, names)
    deviation = np.array([spreads[name] for name in names])
    problem = RidgeProblem(
        residuals=lambda matrix: residuals(with_matrix(prior, names, matrix)),
        prior_mean=mean,
        prior_spread=deviation,
        noise=noise,
    )
    best = solve(problem)
    moved = float((np.abs(best - mean) > 0.1 * deviation).sum())
    return with_vector(prior, names, best), moved
