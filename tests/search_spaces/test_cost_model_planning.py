"""Plans: ranking, the front, changes near a point, more nodes, scaling."""

import numpy as np
import pytest

from search_spaces.cluster_io import load_cluster_spec
from search_spaces.cost_models.analytic import AnalyticCostModel
from search_spaces.cost_models.planning import (
    best_of,
    changed_knobs,
    changes_near,
    memory_by_rank,
    memory_limit_bytes,
    nodes_that_fit,
    pareto,
    plan_point,
    rank,
    scaling,
    with_nodes,
)
from search_spaces.model_io import load_model_spec
from search_spaces.parallel_config import ParallelConfig
from search_spaces.space import SearchSpace
from search_spaces.training_spec import TrainingSpec

MODEL = load_model_spec("llama3-8b")
RECIPE = TrainingSpec(sequence_length=2048, global_batch_size=32, dtype="bf16")
CLUSTER = with_nodes(load_cluster_spec("dgx-a100-80"), 1)
DOMAINS = {"pipeline_schedule": ("1f1b",), "virtual_stages": (1,), "zero_stage": (0, 1, 3)}


def _space(cluster=CLUSTER, **domains) -> tuple[SearchSpace, AnalyticCostModel]:
    space = SearchSpace(MODEL, RECIPE, cluster, {**DOMAINS, **domains})
    return space, AnalyticCostModel(MODEL, RECIPE, cluster)


def test_the_ranking_holds_all_points_that_fit_and_no_other():
    space, costs = _space()
    configs = space.enumerate()
    order, times, peaks = rank(costs, configs)
    assert 0 < len(order) < len(configs)
    assert np.all(np.diff(times[order]) >= 0)
    assert set(order) == set(np.flatnonzero(peaks <= memory_limit_bytes(CLUSTER)))
    best = plan_point(costs, configs[order[0]])
    assert best.fits
    assert best.tokens_per_s == pytest.approx(RECIPE.tokens_per_step / times[order[0]])
    assert 0.1 < best.mfu < 0.8


def test_the_front_gives_memory_for_speed():
    space, costs = _space()
    order, times, peaks = rank(costs, space.enumerate())
    front = pareto(order, peaks)
    assert front[0] == order[0]
    assert np.all(np.diff(times[front]) >= 0)
    assert np.all(np.diff(peaks[front]) < 0)
    for index in order:
        assert any(times[f] <= times[index] and peaks[f] <= peaks[index] / 0.9 for f in front)


def test_memory_by_rank_adds_up_and_peaks_where_the_estimate_does():
    _, costs = _space()
    config = ParallelConfig(tp=2, pp=4, dtype="bf16", micro_batch_size=2)
    table = memory_by_rank(costs, config)
    assert len(table) == 4
    for row in table:
        assert row["total"] == pytest.approx(sum(v for k, v in row.items() if k != "total"))
    peak = costs.estimate(config).peak_memory_bytes
    assert max(row["total"] for row in table) == pytest.approx(peak)
    assert table[3]["logits"] > table[0]["logits"] == 0


def test_changes_near_are_legal_and_single():
    space, _ = _space()
    config = ParallelConfig(tp=2, pp=2, dp=2, dtype="bf16")
    near = changes_near(space, config)
    assert len(near) > 5
    for other in near:
        assert space.is_legal(other)
        assert other.world_size == config.world_size
        assert 1 <= len(changed_knobs(config, other)) <= 2
    assert {"zero_stage": 1} in [changed_knobs(config, other) for other in near]
    assert {"tp": 4, "pp": 1} in [changed_knobs(config, other) for other in near]


def test_where_nothing_fits_more_nodes_do():
    model = load_model_spec("llama3-70b")
    space = SearchSpace(model, RECIPE, CLUSTER, {**DOMAINS, "recompute": ("none",)})
    costs = AnalyticCostModel(model, RECIPE, CLUSTER)
    assert best_of(space, costs) is None
    found = nodes_that_fit(space, costs)
    assert found is not None
    nodes, point = found
    assert nodes in (2, 4, 8)
    assert point.fits
    assert point.config.world_size == 8 * nodes


def test_scaling_studies_keep_or_grow_the_batch():
    space, costs = _space(sequence_parallel=(False,))
    weak = scaling(space, costs, [1, 2], is_weak=True)
    strong = scaling(space, costs, [1, 2], is_weak=False)
    assert [row.global_batch_size for row in weak] == [32, 64]
    assert [row.global_batch_size for row in strong] == [32, 32]
    assert weak[0].efficiency == strong[0].efficiency == 1.0
    assert strong[1].efficiency <= weak[1].efficiency * 1.001
    assert strong[1].best.estimate.step_time_s < strong[0].best.estimate.step_time_s
