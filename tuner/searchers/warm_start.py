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
from scipy.special import ndtr

from tuner.ports import Candidate, Observation
from tuner.searchers.calibrated_model import CalibratedModel
from tuner.searchers.feasibility import MemoryScale, memory_scale
from tuner.searchers.history import History
from tuner.searchers.kernels import KnobKernel
from tuner.searchers.knobs import Floats, varying_knobs
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
            corrected = _corrected(corrected, measured)
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


def _corrected(candidates: list[Candidate], measured: list[_Measured]) -> list[Candidate]:
    every = [item.candidate for item in measured] + candidates
    times = dict(enumerate(item.step_time_s for item in measured))
    peaks = {row: m.peak_memory_bytes for row, m in enumerate(measured) if m.peak_memory_bytes}
    kernel = KnobKernel(varying_knobs([candidate.config for candidate in every]), len(every))
    start = len(measured)
    time = _factors(
        kernel, [c.step_time_s for c in every], [c.step_time_parts_s for c in every], times, start
    )
    memory = _factors(
        kernel,
        [c.peak_memory_bytes for c in every],
        [c.peak_memory_parts_bytes for c in every],
        peaks,
        start,
    )
    scale = _scale_of(candidates)
    return [_apply(candidate, row, time, memory, scale) for row, candidate in enumerate(candidates)]


@dataclass(frozen=True)
class _Factors:
    """Factor on each new candidate's prediction, and the spread of its log."""

    factor: Floats
    spread: Floats


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
        # Not less than half of the old spread: the limit may be felt otherwise on the new machine.
        spread = max(0.5 * scale.spread, min(scale.spread, float(memory.spread[row])))
        changes["peak_memory_bytes"] = peak
        changes["peak_memory_parts_bytes"] = {name: factor * part for name, part in parts.items()}
        score = (scale.log_limit - math.log(peak)) / spread
        changes["probability_fits"] = float(ndtr(score))
    return replace(candidate, **changes)  # type: ignore[arg-type]
