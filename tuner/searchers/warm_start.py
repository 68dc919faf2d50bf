"""Warm start: what an earlier study measured corrects the predictions of a new one.

The earlier study may have had another batch, another number of devices or a smaller model. What
carries over is not its step times but the cost model's errors: the factor on each part, and the
error that is left as a function of the knobs. Both are learnt from the earlier study's predictions
and measurements, and applied to the new candidates' predictions. Since the searcher infers for
itself how far its prior can be trusted, a transfer that does not hold is found out like any other
wrong prior.
"""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np
from scipy.special import log_ndtr, ndtr

from trainer.contract import FailureKind
from tuner.ports import Candidate, Observation
from tuner.searchers.calibrated_model import CalibratedModel
from tuner.searchers.history import History
from tuner.searchers.kernels import KnobKernel
from tuner.searchers.knobs import Floats, varying_knobs
from tuner.searchers.memory_belief import (
    SHORTFALLS,
    MemoryScale,
    memory_scale,
    shortfall_belief,
)
from tuner.searchers.parts import parts_prior

MIN_MEASURED = 3
"""Measured points that an earlier study must have to be of use."""


@dataclass(frozen=True)
class EarlierStudy:
    """Candidates of an earlier study, with the predictions made for that study, and its trials."""

    candidates: Sequence[Candidate]
    observations: Sequence[Observation]


def warm_start(candidates: Sequence[Candidate], earlier: Sequence[EarlierStudy]) -> list[Candidate]:
    """Candidates with predictions corrected by what earlier studies measured.

    Args:
        candidates: of the new study, with predictions.
        earlier: studies of a similar model on similar machines, the most relevant last.

    Returns:
        The candidates in their order; unchanged where predictions or measurements are too few.
    """
    corrected = list(candidates)
    for study in earlier:
        measured = _measured(study)
        if len(measured) >= MIN_MEASURED and corrected:
            corrected = _corrected(corrected, measured, study)
    return corrected


@dataclass(frozen=True)
class _Measured:
    candidate: Candidate
    step_time_s: float
    peak_memory_bytes: float | None


def _measured(study: EarlierStudy) -> list[_Measured]:
    """Measured candidates of an earlier study whose step time was predicted too."""
    rows = {candidate.config: row for row, candidate in enumerate(study.candidates)}
    told = [trial for trial in study.observations if trial.step_time_s is not None]
    known = History.of(told, rows).measured
    return [
        _Measured(study.candidates[row], point.cost, point.peak_memory_bytes)
        for row, point in known.items()
        if point.cost is not None and study.candidates[row].step_time_s is not None
    ]


@dataclass(frozen=True)
class _Factors:
    """Factor on each new candidate's prediction, and the spread of its log."""

    factor: Floats
    spread: Floats


def _out_of_memory(study: EarlierStudy) -> list[Candidate]:
    """Candidates of an earlier study that could not run, for want of memory or of a reason."""
    rows = {candidate.config: row for row, candidate in enumerate(study.candidates)}
    history = History.of(study.observations, rows)
    return [
        study.candidates[row]
        for row in history.infeasible
        if history.known[row].failure in (None, FailureKind.OOM)
    ]


def _corrected(
    candidates: list[Candidate], measured: list[_Measured], study: EarlierStudy
) -> list[Candidate]:
    failed = _out_of_memory(study)
    every = [item.candidate for item in measured] + failed + candidates
    times = dict(enumerate(item.step_time_s for item in measured))
    peaks = {row: m.peak_memory_bytes for row, m in enumerate(measured) if m.peak_memory_bytes}
    kernel = KnobKernel(varying_knobs([candidate.config for candidate in every]), len(every))
    time = _factors(
        kernel,
        [c.step_time_s for c in every],
        [c.step_time_parts_s for c in every],
        times,
        len(measured),
    )
    memory = _factors(
        kernel,
        [c.peak_memory_bytes for c in every],
        [c.peak_memory_parts_bytes for c in every],
        peaks,
        len(measured),
    )
    scale, earlier_scale = _scale_of(candidates), _scale_of(study.candidates)
    if scale is not None and earlier_scale is not None and memory is not None:
        lost = _shortfall(earlier_scale, list(peaks.values()), failed, memory)
        scale = replace(scale, log_limit=scale.log_limit - lost)
    start = len(failed)
    return [
        _apply(candidate, start + row, time, memory, scale)
        for row, candidate in enumerate(candidates)
    ]


def _shortfall(
    scale: MemoryScale, peaks: Sequence[float], failed: Sequence[Candidate], memory: _Factors
) -> float:
    """By how much, in log, the memory in use fell short of the limit where trials ran out of it."""
    margins = [scale.log_limit - math.log(peak) for peak in peaks]
    belief = np.log(np.maximum(shortfall_belief(margins), 1e-300))
    for row, candidate in enumerate(failed):
        peak = float(memory.factor[row]) * (candidate.peak_memory_bytes or math.inf)
        margin = scale.log_limit - math.log(peak)
        if margin < SHORTFALLS[-1]:  # else something other than memory was the reason
            width = math.hypot(float(memory.spread[row]), 0.35 * scale.spread)
            belief = belief + log_ndtr((SHORTFALLS - margin) / width)
    weights = np.exp(belief - belief.max())
    return float(weights @ SHORTFALLS / weights.sum())


def _factors(
    kernel: KnobKernel,
    totals: Sequence[float | None],
    parts: Sequence[Mapping[str, float]],
    values: Mapping[int, float],
    start: int,
) -> _Factors | None:
    prior = parts_prior(totals, parts)
    if not prior.is_informative or len(values) < MIN_MEASURED:
        return None
    model = CalibratedModel(kernel, prior)
    model.fit(values)
    rows = np.arange(start, len(totals))
    mean, spread = model.predict(rows)
    return _Factors(np.exp(mean - prior.log_sum(np.zeros(prior.num_parts))[rows]), spread)


def _scale_of(candidates: Sequence[Candidate]) -> MemoryScale | None:
    peaks = np.array([candidate.peak_memory_bytes or 0.0 for candidate in candidates])
    return memory_scale(peaks, np.array([candidate.probability_fits for candidate in candidates]))


def _apply(
    candidate: Candidate,
    row: int,
    time: _Factors | None,
    memory: _Factors | None,
    scale: MemoryScale | None,
) -> Candidate:
    changes: dict[str, object] = {}
    if time is not None and candidate.step_time_s is not None:
        factor = float(time.factor[row])
        parts = candidate.step_time_parts_s
        changes["step_time_s"] = factor * candidate.step_time_s
        changes["step_time_parts_s"] = {name: factor * part for name, part in parts.items()}
    if memory is not None and scale is not None and candidate.peak_memory_bytes:
        factor = float(memory.factor[row])
        parts = candidate.peak_memory_parts_bytes
        peak = factor * candidate.peak_memory_bytes
        # Not less than the old spread: the limit may be felt otherwise on the new machine.
        spread = max(scale.spread, float(memory.spread[row]))
        changes["peak_memory_bytes"] = peak
        changes["peak_memory_parts_bytes"] = {name: factor * part for name, part in parts.items()}
        score = (scale.log_limit - math.log(peak)) / spread
        changes["probability_fits"] = float(ndtr(score))
    return replace(candidate, **changes)  # type: ignore[arg-type]
