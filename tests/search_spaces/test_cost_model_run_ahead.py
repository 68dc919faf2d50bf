"""A host that runs ahead of its device: what it holds, what a lack of memory costs, who does so."""

from dataclasses import replace

import numpy as np
import pytest

from search_spaces.cluster_io import load_cluster_spec
from search_spaces.cost_models.calibration import Calibration, calibrate_memory, calibrate_time
from search_spaces.cost_models.constants import Constants
from search_spaces.cost_models.hardware import hardware_of
from search_spaces.cost_models.points import Points, points_of
from search_spaces.cost_models.prediction import peak_memory_bytes, predict, step_time
from search_spaces.cost_models.run_ahead import BUFFERS, SLOWEST, USABLE, RunAhead, pressure
from search_spaces.cost_models.share import MOST, fit_share
from search_spaces.model_io import load_model_spec
from search_spaces.parallel_config import ParallelConfig
from search_spaces.training_spec import TrainingSpec

HARDWARE = hardware_of(load_cluster_spec("dgx-h100"))
CALM = Constants(gathered_memory=0.01, gathered_stage_memory=0.01)
AHEAD = replace(CALM, run_ahead_memory=1.0, run_ahead_stage_memory=1.0, pressure=2.0)
RECIPE = TrainingSpec(sequence_length=4096, global_batch_size=64, dtype="bf16")
MODEL = load_model_spec("llama3-8b")


def _points(*knobs: dict, is_kernel: bool = False) -> Points:
    usual = {"sequence_parallel": True, "dtype": "bf16", "zero_stage": 1, "dp": 2}
    configs = [ParallelConfig(**{**usual, **some}) for some in knobs]
    return points_of(MODEL, RECIPE, configs, is_kernel=is_kernel)


def _extra(points: Points) -> np.ndarray:
    with_lead = np.asarray(peak_memory_bytes(points, HARDWARE, AHEAD))
    return with_lead - np.asarray(peak_memory_bytes(points, HARDWARE, CALM))


def test_the_lead_is_some_fifty_gathered_activations_without_a_pipeline():
    extra = _extra(_points({"tp": 8}))[0]
    gathered = 4096 * MODEL.hidden_size * 2 * 7 / 8
    assert extra == pytest.approx(BUFFERS * gathered, rel=0.01)


def test_only_gathers_beside_compute_have_a_lead():
    points = _points({"tp": 1, "sequence_parallel": False}, {"tp": 8, "sequence_parallel": False})
    np.testing.assert_allclose(_extra(points), 0.0)
    np.testing.assert_allclose(_extra(_points({"tp": 8}, is_kernel=True)), 0.0)


def test_buffers_of_the_lead_give_way_where_there_is_no_room():
    ahead = RunAhead(single=np.array([10e9]), per_micro_batch=np.array([0.0]), room_bytes=60e9)
    needed = np.array([20e9, 49e9, 58e9, 80e9])
    held = ahead.held(needed, 1.0)
    assert np.all(np.diff(held) < 0)
    assert held[0] == pytest.approx(10e9, rel=0.01)
    assert held[-1] < 0.1e9


def test_pipelines_hold_a_lead_per_micro_batch_in_flight():
    extra = _extra(_points({"tp": 8, "pp": 4}, {"tp": 8, "pp": 8}))
    assert 0 < extra[0] < extra[1] < 2.6 * extra[0]


def test_runs_that_want_more_than_there_is_slow_down():
    room = USABLE * HARDWARE.memory_bytes
    factors = np.asarray(pressure(room * np.array([0.5, 1.0, 1.5, 3.0]), HARDWARE, AHEAD))
    np.testing.assert_allclose(factors, [1.0, 1.0, 1.5**2, SLOWEST])
    points = _points({"tp": 8}, {"tp": 8, "micro_batch_size": 32})
    slower = step_time(points, HARDWARE, AHEAD) / step_time(points, HARDWARE, CALM)
    assert slower[0] == pytest.approx(1.0)
    assert slower[1] > 1.3
    parts = predict(points, HARDWARE, AHEAD)
    np.testing.assert_allclose(sum(parts.parts_s.values()), parts.step_time_s)


def test_neighbours_tell_how_much_of_the_lead_is_used():
    """Every run on few devices holds all of it, every run on many none."""
    devices = np.array([3.0, 3.0, 4.0, 4.0, 8.0, 8.0, 9.0, 9.0])
    features = np.stack([devices, np.tile([0.0, 1.0], 4)], axis=1)
    without, lead = np.full(8, 10e9), np.full(8, 5e9)
    measured = np.where(devices < 6, 15e9, 10e9)
    found = fit_share(features, without, lead, measured)
    assert found is not None
    model, own = found
    share = model.share(np.array([[3.5, 0.5], [8.5, 0.5], [300.0, 0.5]]))
    assert share[0] > 0.85
    assert share[1] < 0.15
    assert share[2] == pytest.approx(1.0)
    assert np.all((own >= 0.0) & (own <= MOST))


def test_readings_without_any_lead_teach_no_share():
    peaks = np.full(3, 1e9)
    assert fit_share(np.zeros((3, 1)), peaks, np.zeros(3), peaks) is None


def _truth(points: Points) -> np.ndarray:
    """Peaks where large machines use none of the lead and small ones all of it."""
    whole = np.asarray(peak_memory_bytes(points, HARDWARE, AHEAD))
    none = np.asarray(peak_memory_bytes(points, HARDWARE, CALM))
    return np.where(np.asarray(points.num_devices) > 16, none, whole)


def test_calibration_learns_who_runs_ahead():
    """One constant for all cannot follow both kinds; their shares can."""
    space = [
        {"tp": tp, "pp": pp, "dp": dp, "micro_batch_size": size}
        for tp in (4, 8) for pp in (1, 2) for dp in (1, 2, 4, 8) for size in (2, 4, 8)
    ]  # fmt: skip
    points = _points(*space)
    order = np.random.RandomState(0).permutation(points.size)
    known, left = points.take(order[:24]), points.take(order[24:])
    exact = np.zeros(24, dtype=bool)
    learnt = calibrate_memory(Calibration(constants=AHEAD), known, HARDWARE, _truth(known), exact)
    assert learnt.lead is not None
    predicted = learnt.predict(left, HARDWARE)
    errors = np.abs(predicted.peak_memory_bytes / _truth(left) - 1.0)
    assert errors.mean() < 0.04
    parts = sum(predicted.memory_parts_bytes.values())
    np.testing.assert_allclose(parts, predicted.peak_memory_bytes)
    same_for_all = np.asarray(peak_memory_bytes(left, HARDWARE, learnt.constants))
    plain = np.abs(same_for_all / _truth(left) - 1.0)
    varied = np.abs(learnt.read(left, HARDWARE) / _truth(left) - 1.0)
    assert varied.mean() < 0.6 * plain.mean()


def test_stacks_without_a_lead_learn_none():
    points = _points({"tp": 4}, {"tp": 8}, {"tp": 8, "pp": 2})
    peaks = np.asarray(peak_memory_bytes(points, HARDWARE, CALM))
    learnt = calibrate_memory(
        Calibration(constants=CALM), points, HARDWARE, 1.2 * peaks, np.zeros(3, dtype=bool)
    )
    assert learnt.lead is None


def test_hundreds_of_trials_may_be_fitted():
    """From some hundred points on layers are tabled by kind, for every candidate of the fit."""
    points = _points(*[{"tp": 4, "micro_batch_size": size} for size in (1, 2, 4)]).take(
        np.arange(600) % 3
    )
    seconds = 1.3 * np.asarray(step_time(points, HARDWARE, CALM))
    learnt = calibrate_time(Calibration(constants=CALM), points, HARDWARE, seconds)
    predicted = learnt.predict(points, HARDWARE).step_time_s
    np.testing.assert_allclose(predicted, seconds, rtol=0.05)
