"""`Calibration`: constants and corrections learnt from measured points."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from typing import Any

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
from search_spaces.cost_models.features import memory_features, share_features, time_features
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
from search_spaces.cost_models.run_ahead import NEGLIGIBLE
from search_spaces.cost_models.share import ShareModel, fit_share

Vector = NDArray[np.float64]
Predictor = Callable[[Points, Hardware, Constants], Column]

TIME_NOISE, MEMORY_NOISE = 0.03, 0.05
"""Standard deviation of a good measurement about the right formulas, relative."""
LEAD = ("run_ahead_memory", "run_ahead_stage_memory")
"""Constants whose share varies from run to run."""
MOST_OBSERVATIONS = 160
"""The residual model keeps the last so many: its cost grows with their cube."""


@dataclass(frozen=True, kw_only=True)
class Calibration:
    """What is known beyond the formulas: nothing at first."""

    constants: Constants
    time_residual: ResidualModel | None = None
    memory_residual: ResidualModel | None = None
    lead: ShareModel | None = None
    """How much of the host's lead each configuration uses, where the stack has any."""

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
            factor = np.exp(shift)
            if self.lead is not None:
                factor = factor * self.read(points, hardware) / raw.peak_memory_bytes
            scaled = {n: part * factor for n, part in raw.memory_parts_bytes.items()}
            result = replace(
                result,
                peak_memory_bytes=raw.peak_memory_bytes * factor,
                memory_parts_bytes=scaled,
                memory_half_width=half,
            )
        return result

    def read(
        self, points: Points, hardware: Hardware, reading: Predictor = peak_memory_bytes
    ) -> Column:
        """Bytes by the formulas, with what was learnt of the host's lead; no other correction."""
        if self.lead is None:
            return reading(points, hardware, self.constants)
        share = self.lead.share(share_features(points))
        return reading(points, hardware, _with_share(self.constants, share))


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
    spreads: Mapping[str, float] = MEMORY_SPREADS,
) -> Calibration:
    """Learn from peaks; where `is_bound` the need is only known to exceed the value (OOM).

    `reading` predicts what was read: usually the peak over all ranks. `spreads` tells how far the
    logarithm of each constant may move: less where the stack's buffers are known.
    """
    if not len(measured_bytes):
        return start
    logs = np.log(measured_bytes)

    def residuals(candidates: Constants) -> Vector:
        errors = np.log(reading(points, hardware, candidates)) - logs
        return np.asarray(np.where(is_bound, np.minimum(errors, 0.0), errors))

    constants, moved = _fit(start.constants, spreads, residuals, MEMORY_NOISE)
    exact = np.flatnonzero(~is_bound)[-MOST_OBSERVATIONS:]
    few = points.take(exact)
    learnt = replace(start, constants=constants)
    if len(exact) > 1:
        learnt = _with_lead(
            learnt, start.constants, few, hardware, measured_bytes[exact], reading, spreads
        )
        raw = predict(few, hardware, learnt.constants)
        left = logs[exact] - np.log(learnt.read(few, hardware, reading))
        features = memory_features(few, raw)
        model = fit_residual(features, left, moved, PRIOR_MEMORY_HALF_WIDTH)
        learnt = replace(learnt, memory_residual=model)
    return learnt


def _with_share(constants: Constants, share: Column) -> Constants:
    """Constants of the host's lead that vary from point to point."""
    values: dict[str, Any] = {name: getattr(constants, name) * share for name in LEAD}
    return replace(constants, **values)


def _with_lead(
    learnt: Calibration,
    prior: Constants,
    points: Points,
    hardware: Hardware,
    measured_bytes: Vector,
    reading: Predictor,
    spreads: Mapping[str, float],
) -> Calibration:
    """How much of the lead each run used, then the other constants once that is known."""
    constants = learnt.constants
    if max(constants.run_ahead_memory, constants.run_ahead_stage_memory) < NEGLIGIBLE:
        return learnt
    without = np.asarray(reading(points, hardware, _with_share(constants, 0.0)))
    lead = np.asarray(reading(points, hardware, constants)) - without
    found = fit_share(share_features(points), without, lead, measured_bytes)
    if found is None:
        return learnt
    model, own = found
    logs = np.log(measured_bytes)

    def residuals(candidates: Constants) -> Vector:
        return np.asarray(np.log(reading(points, hardware, _with_share(candidates, own))) - logs)

    fitted: dict[str, Any] = {name: getattr(constants, name) for name in LEAD}
    names = {name: spread for name, spread in spreads.items() if name not in LEAD}
    moved, _ = _fit(replace(prior, **fitted), names, residuals, MEMORY_NOISE)
    return replace(learnt, constants=moved, lead=model)


def _fit(
    prior: Constants,
    spreads: Mapping[str, float],
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
