"""Laws of what the default searcher believes: hindsight, sizes of errors, sharpness of memory."""

import math

import numpy as np
from scipy.special import ndtr

from search_spaces.parallel_config import ParallelConfig
from trainer.contract import FailureKind
from tuner.ports import Observation, ObservationState
from tuner.searchers.calibrated_model import CalibratedModel
from tuner.searchers.feasibility import FeasibilityModel
from tuner.searchers.hindsight import expected_shift
from tuner.searchers.history import History
from tuner.searchers.kernels import KnobKernel
from tuner.searchers.knobs import varying_knobs
from tuner.searchers.parts import PartsPrior

CONFIGS = [
    ParallelConfig(tp=tp, pp=pp, dp=32 // (tp * pp), micro_batch_size=micro, recompute=recompute)
    for tp in (1, 2, 4, 8)
    for pp in (1, 2, 4)
    for micro in (1, 2, 4, 8)
    for recompute in ("none", "full")
]
ROWS = {config: row for row, config in enumerate(CONFIGS)}
EVERY = np.arange(len(CONFIGS))
LIMIT = 40e9


def kernel() -> KnobKernel:
    return KnobKernel(varying_knobs(CONFIGS), len(CONFIGS))


def test_the_best_of_many_predictions_is_too_good() -> None:
    """With normal truths the shift is known: the prediction shrinks towards the mean."""
    rng = np.random.default_rng(0)
    truth = rng.standard_normal(40_000)
    predicted = truth + 0.5 * rng.standard_normal(40_000)
    shift = expected_shift(predicted, 0.5)
    near = np.abs(predicted) < 2
    assert np.abs(shift - (-0.2 * predicted))[near].max() < 0.06
    lowest = np.argsort(predicted)[:200]
    assert (truth - predicted)[lowest].mean() > 0.3  # too good to be true
    assert abs((truth - predicted - shift)[lowest].mean()) < 0.12


def test_small_errors_shift_nothing() -> None:
    predicted = np.random.default_rng(1).standard_normal(5000)
    assert np.abs(expected_shift(predicted, 0.001)).max() <= 0.002
    assert np.isfinite(expected_shift(np.zeros(7), 0.1)).all()
    assert np.isfinite(expected_shift(np.array([0.0, 1e9]), 1e-3)).all()


def test_without_hindsight_or_data_predictions_stand() -> None:
    prior = PartsPrior(np.random.default_rng(2).uniform(1, 2, (len(CONFIGS), 2)))
    for has_hindsight in (False, True):
        model = CalibratedModel(kernel(), prior, has_hindsight=has_hindsight)
        assert np.allclose(model.mean(), np.log(prior.parts.sum(axis=1)))


def test_weights_of_hypotheses_are_a_distribution() -> None:
    rng = np.random.default_rng(3)
    model = CalibratedModel(kernel(), PartsPrior(rng.uniform(1, 2, (len(CONFIGS), 2))))
    for count in (0, 1, 2, 10, 60):
        model.fit({row: float(rng.uniform(1, 3)) for row in range(count)})
        belief = model.belief(EVERY)
        assert math.isclose(belief.weights.sum(), 1.0, rel_tol=1e-9)
        assert belief.means.shape == belief.spreads.shape == (len(belief.weights), len(CONFIGS))
        mean, spread = belief.moments()
        assert np.allclose(mean, model.mean(), atol=2e-3)
        assert (spread >= belief.spreads.min(axis=0) - 1e-12).all()


def _peaks() -> np.ndarray:
    states = np.array([16e9 * 16 / (c.tp * c.pp) for c in CONFIGS])
    activations = np.array(
        [4e9 * c.micro_batch_size / c.tp * (0.2 if c.recompute == "full" else 1.0) for c in CONFIGS]
    )
    return np.stack([states / 4, activations], axis=1)


def _odds(error: float, count: int = 16) -> tuple[np.ndarray, np.ndarray]:
    """Probabilities of fitting, and true peaks, after peaks that were off by this log error."""
    parts = _peaks()
    total = parts.sum(axis=1)
    odds = ndtr(np.log(LIMIT / total) / 0.12)
    model = FeasibilityModel(kernel(), PartsPrior(parts), odds)
    true = total * np.exp(error * np.random.default_rng(5).standard_normal(len(total)))
    told = [
        Observation(
            config=CONFIGS[row],
            state=ObservationState.COMPLETED,
            step_time_s=1.0,
            peak_memory_bytes=int(true[row]),
        )
        for row in np.flatnonzero(true < LIMIT)[:: max(1, int((true < LIMIT).sum()) // count)]
    ]
    model.fit(History.of(told, ROWS))
    return model.predict(EVERY), true


def test_peaks_that_agree_leave_little_doubt() -> None:
    """Where predictions came true, points clear of the limit are sure; where not, they are not."""
    parts = _peaks().sum(axis=1)
    clear = (parts > 0.8 * LIMIT) & (parts < 0.9 * LIMIT)
    assert clear.any()
    sharp, _ = _odds(0.005)
    blurred, _ = _odds(0.15)
    assert sharp[clear].mean() > 0.9
    assert blurred[clear].mean() < sharp[clear].mean() - 0.05


def test_odds_stay_odds_whatever_happened() -> None:
    parts = _peaks()
    odds = ndtr(np.log(LIMIT / parts.sum(axis=1)) / 0.12)
    model = FeasibilityModel(kernel(), PartsPrior(parts), odds)
    oom = ObservationState.INFEASIBLE
    for kind in (FailureKind.OOM, None, FailureKind.ILLEGAL):
        told = [Observation(config=config, state=oom, failure=kind) for config in CONFIGS]
        model.fit(History.of(told, ROWS))
        found = model.predict(EVERY)
        assert ((found >= 0) & (found <= 1)).all()
