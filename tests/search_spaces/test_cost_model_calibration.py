"""Calibration by trials: what it recovers, how it doubts, and that it is quick."""

import time
from dataclasses import replace

import numpy as np
import pytest

from search_spaces.cluster_spec import ClusterSpec
from search_spaces.cost_models.analytic import AnalyticCostModel
from search_spaces.cost_models.calibrate import refit
from search_spaces.cost_models.constants import Constants, from_mapping, to_vector, with_vector
from search_spaces.cost_models.fit import RidgeProblem, solve
from search_spaces.cost_models.residual import conformal_half_width
from search_spaces.model_io import load_model_spec
from search_spaces.parallel_config import ParallelConfig
from search_spaces.training_spec import TrainingSpec

CLUSTER = ClusterSpec(devices_per_node=8, memory_bytes=8 * 2**30)
RECIPE = TrainingSpec(sequence_length=128, global_batch_size=64)
SPACE = [
    ParallelConfig(tp=tp, pp=pp, dp=8 // (tp * pp), micro_batch_size=size, zero_stage=stage)
    for tp in (1, 2, 4)
    for pp in (1, 2)
    for size in (1, 2, 4)
    for stage in (0, 1, 2)
]


def _model(constants: Constants | None = None) -> AnalyticCostModel:
    return AnalyticCostModel(load_model_spec("llama-mini"), RECIPE, CLUSTER, constants)


def _measure(truth: AnalyticCostModel, noise: float, seed: int = 0):
    """Trials of a machine that obeys the formulas with other constants, and some noise."""
    random = np.random.RandomState(seed)
    return [
        (config, e.step_time_s * np.exp(noise * random.randn()), e.peak_memory_bytes)
        for config, e in zip(SPACE, truth.estimate_many(SPACE), strict=True)
    ]


TRUTH = _model(
    replace(Constants(), gemm=2.5, intra_node=3.0, host_forward_s=4e-3, activations_memory=1.6)
)


def _errors(model: AnalyticCostModel, rows) -> np.ndarray:
    predicted = model.estimate_many([config for config, _, _ in rows])
    return np.array(
        [abs(e.step_time_s / time_s - 1) for e, (_, time_s, _) in zip(predicted, rows, strict=True)]
    )


def test_a_dozen_trials_teach_the_machine():
    rows = _measure(TRUTH, noise=0.02)
    order = np.random.RandomState(1).permutation(len(rows))
    known, left = [rows[i] for i in order[:12]], [rows[i] for i in order[12:]]
    prior, learnt = _model(), refit(_model(), known)
    assert _errors(learnt, left).mean() < 0.06
    assert _errors(learnt, left).mean() < 0.25 * _errors(prior, left).mean()


def test_the_interval_covers_what_was_not_fitted():
    rows = _measure(TRUTH, noise=0.05, seed=3)
    order = np.random.RandomState(2).permutation(len(rows))
    learnt = refit(_model(), [rows[i] for i in order[:20]])
    left = [rows[i] for i in order[20:]]
    inside = [
        e.step_time_low_s <= seconds <= e.step_time_high_s
        for e, (_, seconds, _) in zip(
            learnt.estimate_many([config for config, _, _ in left]), left, strict=True
        )
    ]
    assert np.mean(inside) >= 0.85


def test_a_broken_trial_does_not_bend_the_model():
    rows = _measure(TRUTH, noise=0.01)[::3]
    config, seconds, peak = rows[4]
    bent = [*rows[:4], (config, 12 * seconds, peak), *rows[5:]]
    left = _measure(TRUTH, noise=0.0)[1::3]
    assert _errors(refit(_model(), bent), left).mean() < 0.1


def test_measured_peaks_move_the_memory():
    rows = _measure(TRUTH, noise=0.0)[::2]
    learnt = refit(_model(), rows)
    config, _, peak = _measure(TRUTH, noise=0.0)[3]
    before = abs(_model().estimate(config).peak_memory_bytes / peak - 1)
    assert abs(learnt.estimate(config).peak_memory_bytes / peak - 1) < 0.5 * before


def test_running_out_of_memory_is_a_lower_bound():
    config = SPACE[-1]
    prior = _model().estimate(config).peak_memory_bytes
    learnt = refit(_model(), [(config, None, 3.0 * prior)])
    assert learnt.estimate(config).peak_memory_bytes > 1.2 * prior
    unmoved = refit(_model(), [(config, None, 0.5 * prior)])
    assert unmoved.estimate(config).peak_memory_bytes == pytest.approx(prior, rel=0.01)


def test_nothing_measured_is_the_prior_and_refits_leave_no_trace():
    rows = _measure(TRUTH, noise=0.01)[:10]
    once = refit(_model(), rows)
    again = refit(refit(_model(), rows[:3]), rows)
    assert once.estimate(SPACE[0]) == again.estimate(SPACE[0])
    assert refit(once, []).estimate(SPACE[0]) == _model().estimate(SPACE[0])


def test_a_single_trial_is_enough_to_refit():
    config, seconds, peak = _measure(TRUTH, noise=0.0)[0]
    learnt = refit(_model(), [(config, seconds, peak)])
    before = abs(np.log(_model().estimate(config).step_time_s / seconds))
    assert abs(np.log(learnt.estimate(config).step_time_s / seconds)) < before


def test_a_refit_takes_well_under_a_second():
    """Processor time of this thread, so that a busy machine does not fail it."""
    rows = _measure(TRUTH, noise=0.02)
    refit(_model(), rows[:5])
    start = time.thread_time()
    refit(_model(), rows)
    assert time.thread_time() - start < 1.5


def test_the_solver_finds_a_constant_that_a_maximum_hides():
    """The slope at the start is nil: only a jump finds that the second constant matters."""

    def residuals(matrix: np.ndarray) -> np.ndarray:
        floor = np.maximum(1.0, np.exp(matrix[:, [1]]))
        return np.log(floor * np.exp(matrix[:, [0]] * 0.0)) - np.log(np.full(6, 5.0))

    problem = RidgeProblem(
        residuals=residuals,
        prior_mean=np.array([0.0, -3.0]),
        prior_spread=np.array([1.0, 3.0]),
        noise=0.05,
    )
    assert np.exp(solve(problem)[1]) == pytest.approx(5.0, rel=0.05)


def test_the_solver_finds_a_constant_that_others_imitate():
    """Small steps of the first and second explain most rows; the truth is a far third."""
    sizes = np.array([1.0, 2.0, 4.0, 8.0, 16.0, 32.0])

    def times(matrix: np.ndarray) -> np.ndarray:
        plain, slope, far = (np.exp(matrix[:, [i]]) for i in range(3))
        return np.log(plain + 1e-3 * slope * sizes**0.9 + 1e-6 * far * sizes)

    truth = times(np.array([[0.0, 0.0, np.log(1000.0)]]))
    problem = RidgeProblem(
        residuals=lambda matrix: times(matrix) - truth,
        prior_mean=np.zeros(3),
        prior_spread=np.array([0.3, 0.3, 4.0]),
        noise=0.001,
    )
    assert solve(problem)[2] == pytest.approx(np.log(1000.0), abs=0.3)


def test_intervals_narrow_as_trials_come_in():
    few = conformal_half_width([0.02] * 3, 0, 0.35)
    many = conformal_half_width([0.02] * 60, 0, 0.35)
    assert many < 0.05 < few < 0.35


def test_constants_survive_a_round_trip():
    moved = with_vector(Constants(), ["gemm", "hop_s"], np.log([2.0, 1e-5]))
    assert moved.gemm == pytest.approx(2.0)
    assert from_mapping({**vars(moved), "unknown": 1.0}) == moved
    np.testing.assert_allclose(to_vector(moved, ["gemm"]), [np.log(2.0)])
