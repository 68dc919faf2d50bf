"""Ranks that share cores: idle ones leave their cores to others, collectives wait for all."""

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from search_spaces.cluster_spec import ClusterSpec
from search_spaces.cost_models.analytic import AnalyticCostModel
from search_spaces.cost_models.pipeline import _crowded_bubble
from search_spaces.model_io import load_model_spec
from search_spaces.parallel_config import ParallelConfig
from search_spaces.training_spec import TrainingSpec

MODEL = load_model_spec("gpt2-mini")
TRAINING = TrainingSpec(sequence_length=64, global_batch_size=8)


def _parts(ranks_per_core: float, **knobs: object) -> dict[str, float]:
    cluster = ClusterSpec(devices_per_node=4, ranks_per_core=ranks_per_core)
    point = ParallelConfig.model_validate({"dtype": "fp32", **knobs})
    (estimate,) = AnalyticCostModel(MODEL, TRAINING, cluster).estimate_many([point])
    return dict(estimate.parts_s)


def test_a_bubble_costs_nothing_while_the_cores_have_work():
    knobs = {"pp": 4, "micro_batch_size": 2}
    alone, shared = _parts(1.0, **knobs), _parts(2.0, **knobs)
    assert alone["pipeline_bubble"] > 0.2 * alone["compute"]
    assert shared["pipeline_bubble"] == 0.0
    assert shared["compute"] == alone["compute"], "the rates are those of a rank among busy ones"


def test_a_chain_longer_than_the_work_still_shows():
    """One micro-batch on four stages: one rank works at a time, at twice its share of a core."""
    knobs = {"pp": 4, "micro_batch_size": 8}
    alone, shared = _parts(1.0, **knobs), _parts(2.0, **knobs)
    assert 0 < shared["pipeline_bubble"] < alone["pipeline_bubble"]


@settings(max_examples=100, deadline=None)
@given(st.floats(1e-6, 1e3), st.floats(0, 1e3), st.floats(1, 64))
def test_the_step_takes_the_work_or_the_chain(busy_s, bubble_s, speedup):
    step_s = busy_s + _crowded_bubble(busy_s, bubble_s, speedup)
    assert step_s == pytest.approx(max(busy_s, (busy_s + bubble_s) / speedup))
    assert step_s <= busy_s + bubble_s + 1e-9 * (busy_s + bubble_s)


@pytest.mark.parametrize(
    ("part", "knobs"),
    [
        ("tensor_parallel", {"tp": 4, "micro_batch_size": 1}),
        ("data_parallel", {"dp": 4, "micro_batch_size": 1, "zero_stage": 3}),
    ],
)
def test_collectives_of_many_wait_longer_and_hide_behind_nothing(part, knobs):
    assert _parts(2.0, **knobs)[part] > 1.5 * _parts(1.0, **knobs)[part]
