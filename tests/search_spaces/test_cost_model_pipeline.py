"""The closed forms of pipelines against replays of the schedules' own actions."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from search_spaces.cluster_spec import ClusterSpec
from search_spaces.cost_models.constants import Constants
from search_spaces.cost_models.hardware import hardware_of
from search_spaces.cost_models.head import EndTimes
from search_spaces.cost_models.layer import LayerTimes
from search_spaces.cost_models.memory import in_flight
from search_spaces.cost_models.pipeline import pipeline_times
from search_spaces.cost_models.points import SCHEDULES, Points
from search_spaces.cost_models.stages import stage_layers
from search_spaces.layers import balanced_split
from search_spaces.pipeline_schedules.simulate import StageTimes, simulate

CHUNKS = {"gpipe": 1, "1f1b": 1, "interleaved": 2, "zero_bubble": 1, "zbv": 2}
BOUNDS_EVEN = {"gpipe": 1e-9, "1f1b": 1e-9, "interleaved": 1e-9, "zero_bubble": 1e-9, "zbv": 0.05}
"""Relative error of the closed form on equal stages and free hops."""
BOUND_UNEVEN = 0.2
"""The same where stages differ by a layer and micro-batches are as few as ranks."""
HARDWARE = hardware_of(ClusterSpec(devices_per_node=64))


def _points(schedule: str, pp: int, micro_batches: int, layers: int) -> Points:
    return Points(
        num_layers=float(layers), hidden_size=1.0, ffn_size=1.0, num_heads=1.0, num_kv_heads=1.0,
        head_dim=1.0, vocab_size=1.0, gated=1.0, tied=0.0, sequence_length=1.0,
        global_batch_size=float(micro_batches), pp=float(pp),
        virtual_stages=float(CHUNKS[schedule]), schedule=SCHEDULES[schedule],
    )  # fmt: skip


def _closed_form(points: Points, forward: float, inputs: float, weight: float, hop: float) -> float:
    layer = LayerTimes(
        forward_s=forward, backward_s=inputs + weight, weight_gradient_s=weight, recompute_s=0.0,
        compute_s=0.0, tensor_parallel_s=0.0, context_parallel_s=0.0, expert_parallel_s=0.0,
        host_s=0.0, contention_s=0.0,
    )  # fmt: skip
    constants = Constants(host_micro_batch_s=0.0, hop_s=hop, hop_factor=0.0)
    ends = EndTimes(0.0, 0.0, 0.0)
    times = pipeline_times(points, stage_layers(points), layer, ends, HARDWARE, constants)
    return float(times.busy_s + times.bubble_s + times.hops_s)


def _replay(
    schedule: str, pp: int, micro_batches: int, layers: int, times: tuple[float, float, float],
    hop: float,
) -> float:  # fmt: skip
    chunks = CHUNKS[schedule]
    held = balanced_split(layers, pp * chunks)
    forward, inputs, weight = times
    stages = StageTimes(
        forward_s=[forward * n for n in held],
        backward_s=[(inputs + weight) * n for n in held],
        input_grad_s=[inputs * n for n in held],
        weight_grad_s=[weight * n for n in held],
    )
    return simulate(schedule, pp, micro_batches, chunks, stages, hop).makespan_s


@pytest.mark.parametrize("schedule", CHUNKS)
@given(
    pp=st.sampled_from((2, 3, 4, 8)),
    rounds=st.integers(1, 4),
    inputs=st.sampled_from((1.0, 1.2, 1.5)),
)
@settings(deadline=None, max_examples=20)
def test_even_stages_equal_the_replay(schedule, pp, rounds, inputs):
    layers = 2 * pp * CHUNKS[schedule]
    times = (1.0, inputs, 2.0 - inputs)
    replayed = _replay(schedule, pp, rounds * pp, layers, times, 0.0)
    predicted = _closed_form(_points(schedule, pp, rounds * pp, layers), *times, 0.0)
    assert predicted == pytest.approx(replayed, rel=BOUNDS_EVEN[schedule])


@pytest.mark.parametrize("schedule", CHUNKS)
@given(
    pp=st.sampled_from((2, 3, 4, 8)),
    rounds=st.integers(1, 4),
    extra=st.integers(0, 3),
    hop=st.sampled_from((0.0, 0.02)),
)
@settings(deadline=None, max_examples=20)
def test_uneven_stages_and_hops_stay_within_the_bound(schedule, pp, rounds, extra, hop):
    layers = 2 * pp * CHUNKS[schedule] + min(extra, pp - 1)
    times = (1.0, 1.0, 1.0)
    replayed = _replay(schedule, pp, rounds * pp, layers, times, hop)
    predicted = _closed_form(_points(schedule, pp, rounds * pp, layers), *times, hop)
    assert predicted == pytest.approx(replayed, rel=BOUND_UNEVEN)


@pytest.mark.parametrize("schedule", ["gpipe", "1f1b", "interleaved", "zero_bubble"])
@pytest.mark.parametrize("pp", [2, 4, 8])
@pytest.mark.parametrize("rounds", [1, 4])
def test_activations_in_flight_equal_the_replay(schedule, pp, rounds):
    chunks = CHUNKS[schedule]
    times = StageTimes.equal(pp * chunks, 1.0, 1.0, 1.0)
    replayed = simulate(schedule, pp, rounds * pp, chunks, times).peak_in_flight
    points = _points(schedule, pp, rounds * pp, pp * chunks)
    predicted = [float(in_flight(points, float(rank))) for rank in range(pp)]
    np.testing.assert_allclose(predicted, [count / chunks for count in replayed])
