"""Laws that every prediction obeys, and published figures that it must come near to."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from search_spaces.cluster_io import load_cluster_spec
from search_spaces.cluster_spec import ClusterSpec
from search_spaces.cost_models.analytic import AnalyticCostModel
from search_spaces.cost_models.constants import Constants
from search_spaces.cost_models.hardware import hardware_of, traits_of
from search_spaces.cost_models.memory import rank_parameters
from search_spaces.cost_models.points import Points, config_columns, points_of
from search_spaces.cost_models.prediction import PARTS, predict, step_time
from search_spaces.cost_models.stages import stage_layers
from search_spaces.counts import hardware_flops_per_step, num_parameters
from search_spaces.layers import stage_layer_counts
from search_spaces.model_io import load_model_spec
from search_spaces.model_spec import ModelSpec
from search_spaces.parallel_config import ParallelConfig
from search_spaces.pipeline_schedules import stages_of_rank
from search_spaces.training_spec import TrainingSpec

MODEL = load_model_spec("llama-mini")
RECIPE = TrainingSpec(sequence_length=256, global_batch_size=64)
CLUSTERS = [ClusterSpec(devices_per_node=8), load_cluster_spec("dgx-a100-80")]

configs = st.builds(
    ParallelConfig,
    dp=st.sampled_from((1, 2, 4)),
    tp=st.sampled_from((1, 2, 4)),
    tp_layout=st.sampled_from(("1d", "2d")),
    sequence_parallel=st.booleans(),
    cp=st.sampled_from((1, 2)),
    ep=st.just(1),
    pp=st.sampled_from((1, 2, 4)),
    virtual_stages=st.sampled_from((1, 2)),
    pipeline_schedule=st.sampled_from(("gpipe", "1f1b", "interleaved", "zero_bubble", "zbv")),
    micro_batch_size=st.sampled_from((1, 2, 4)),
    zero_stage=st.integers(0, 3),
    zero_shard_degree=st.sampled_from((0, 2)),
    recompute=st.sampled_from(("none", "selective", "full")),
    recompute_layers=st.sampled_from((None, 0, 1)),
    dtype=st.sampled_from(("fp32", "bf16")),
    reduce_dtype=st.sampled_from(("fp32", "bf16")),
    compile=st.booleans(),
    optimizer_offload=st.booleans(),
)


@pytest.mark.parametrize("cluster", CLUSTERS, ids=lambda c: c.device_kind)
@given(config=configs)
@settings(deadline=None, max_examples=60)
def test_estimates_are_finite_and_their_parts_add_up(cluster, config):
    estimate = AnalyticCostModel(MODEL, RECIPE, cluster).estimate(config)
    assert tuple(estimate.parts_s) == PARTS
    assert min(estimate.parts_s.values()) >= 0
    assert sum(estimate.parts_s.values()) == pytest.approx(estimate.step_time_s)
    assert min(estimate.memory_parts_bytes.values()) >= 0
    assert sum(estimate.memory_parts_bytes.values()) == pytest.approx(estimate.peak_memory_bytes)
    assert 0 < estimate.step_time_low_s < estimate.step_time_s < estimate.step_time_high_s


@given(config=configs)
@settings(deadline=None, max_examples=60)
def test_no_step_is_faster_than_the_arithmetic_allows(config):
    """Flash attention skips the masked half, so half of the attention's square may be missing."""
    cluster = load_cluster_spec("dgx-a100-80")
    config = config.with_knobs(virtual_stages=1)
    estimate = AnalyticCostModel(MODEL, RECIPE, cluster).estimate(config)
    peak = cluster.peak_flops_per_s["bf16" if config.dtype == "bf16" else "fp32"]
    model_share = config.tp * config.cp * config.dp * config.pp
    least = 0.5 * hardware_flops_per_step(MODEL, RECIPE, config) / (peak * model_share)
    assert estimate.step_time_s >= least


@given(many=st.lists(configs, min_size=2, max_size=8))
@settings(deadline=None, max_examples=25)
def test_many_configurations_are_predicted_as_each_alone(many):
    costs = AnalyticCostModel(MODEL, RECIPE, CLUSTERS[0])
    for config, together in zip(many, costs.estimate_many(many), strict=True):
        alone = costs.estimate(config)
        assert together.step_time_s == pytest.approx(alone.step_time_s)
        assert together.peak_memory_bytes == pytest.approx(alone.peak_memory_bytes)
        assert together.parts_s == pytest.approx(alone.parts_s)


def test_shared_work_is_tabulated_without_a_change_of_any_prediction():
    """Many points go by the table of layer kinds and in chunks, few are computed one by one."""
    some = [
        ParallelConfig(tp=tp, pp=pp, dp=dp, micro_batch_size=size, zero_stage=stage, recompute=kind)
        for tp in (1, 2, 8)
        for pp in (1, 2)
        for dp in (1, 4)
        for size in (1, 2)
        for stage in (0, 3)
        for kind in ("none", "full")
    ]
    hardware = hardware_of(CLUSTERS[1])
    points = points_of(MODEL, RECIPE, some)
    few = predict(points, hardware, Constants())
    repeats = np.arange(20_000) % len(some)
    many = predict(points.take(repeats), hardware, Constants())
    np.testing.assert_allclose(many.step_time_s, few.step_time_s[repeats])
    np.testing.assert_allclose(many.peak_memory_bytes, few.peak_memory_bytes[repeats])


@pytest.mark.parametrize("name", ["gpt2-124m", "llama-mini", "mixtral-8x7b", "llama3-8b"])
@pytest.mark.parametrize(("tp", "ep"), [(1, 1), (2, 1), (1, 2)])
def test_ranks_hold_the_model_once(name, tp, ep):
    """Up to the final norm, which is too small to count; learned positions lie on every rank."""
    model = load_model_spec(name)
    ep = ep if model.num_experts else 1
    points = points_of(model, RECIPE, [ParallelConfig(tp=tp, ep=ep, dp=ep)])
    held = float(rank_parameters(points, float(model.num_layers), 1.0, 1.0)[0])
    experts = ep if model.num_experts else 1
    whole = num_parameters(model)
    positions = model.max_positions * model.hidden_size if model.family == "gpt2" else 0
    assert whole / (tp * experts) * 0.999 <= held <= (whole / tp + positions) * 1.001


@given(
    layers=st.integers(1, 40),
    pp=st.integers(1, 8),
    virtual_stages=st.integers(1, 3),
    is_v_shaped=st.booleans(),
)
@settings(deadline=None)
def test_layers_are_dealt_like_the_trainer_deals_them(layers, pp, virtual_stages, is_v_shaped):
    model = MODEL.model_copy(update={"num_layers": layers})
    chunks = 2 if is_v_shaped else virtual_stages
    schedule = "zbv" if is_v_shaped else "interleaved"
    config = ParallelConfig(pp=pp, virtual_stages=chunks, pipeline_schedule=schedule)
    counts = stage_layer_counts(layers, config)
    ranks = [
        sum(counts[stage] for stage in stages_of_rank(schedule, rank, pp, chunks))
        for rank in range(pp)
    ]
    first, middle, last = stage_layers(points_of(model, RECIPE, [config]))
    assert first == ranks[0]
    assert last == ranks[-1]
    assert middle == max(ranks[1:-1], default=0)


def test_uneven_stages_cost_what_the_fullest_costs():
    """Eight layers dealt 1, 2, 2, 3 work at the pace of three, not of two."""
    model = MODEL.model_copy(update={"num_layers": 8, "vocab_size": 64})
    recipe = TrainingSpec(sequence_length=256, global_batch_size=512)
    costs = AnalyticCostModel(model, recipe, CLUSTERS[0])
    even = costs.estimate(ParallelConfig(pp=4))
    uneven = costs.estimate(ParallelConfig(pp=4, stage_layers=(1, 2, 2, 3)))
    assert uneven.parts_s["compute"] / even.parts_s["compute"] == pytest.approx(1.5, rel=0.05)


def test_slower_links_and_devices_never_speed_a_step_up():
    cluster = load_cluster_spec("dgx-a100-80")
    slow_link = cluster.intra_node.model_copy(update={"bytes_per_s": 1e9})
    slower = [
        cluster.model_copy(update={"intra_node": slow_link, "inter_node": slow_link}),
        cluster.model_copy(update={"memory_bytes_per_s": 1e11}),
        cluster.model_copy(update={"peak_flops_per_s": {"fp32": 1e12, "bf16": 1e13}}),
    ]
    points = points_of(
        MODEL,
        RECIPE,
        [ParallelConfig(tp=2, pp=2, dp=4, zero_stage=1), ParallelConfig(dp=8, zero_stage=3)],
    )
    fast = step_time(points, hardware_of(cluster), Constants())
    for other in slower:
        assert np.all(step_time(points, hardware_of(other), Constants()) >= fast)


@pytest.mark.parametrize("schedule", ["gpipe", "1f1b", "interleaved", "zero_bubble"])
def test_sharding_and_recomputing_never_need_more_memory(schedule):
    costs = AnalyticCostModel(MODEL, RECIPE, CLUSTERS[1])
    base = ParallelConfig(dp=4, pp=2, pipeline_schedule=schedule, dtype="bf16")
    peaks = [
        costs.estimate(base.with_knobs(zero_stage=stage)).peak_memory_bytes for stage in range(3)
    ]
    assert peaks == sorted(peaks, reverse=True)
    plain = costs.estimate(base.with_knobs(micro_batch_size=4))
    full = costs.estimate(base.with_knobs(micro_batch_size=4, recompute="full"))
    assert full.memory_parts_bytes["activations"] < plain.memory_parts_bytes["activations"]
    assert full.step_time_s > plain.step_time_s


def test_inference_takes_the_forward_pass_alone():
    prefill = RECIPE.model_copy(update={"workload": "inference"})
    config = ParallelConfig(tp=2, pp=2, dp=2)
    training = AnalyticCostModel(MODEL, RECIPE, CLUSTERS[1]).estimate(config)
    inference = AnalyticCostModel(MODEL, prefill, CLUSTERS[1]).estimate(config)
    assert inference.step_time_s < 0.6 * training.step_time_s
    assert inference.parts_s["optimizer"] == inference.parts_s["data_parallel"] == 0
    assert inference.peak_memory_bytes < training.peak_memory_bytes


def test_2d_overtakes_1d_as_devices_grow():
    """Optimus (2104.05343): 1D is ahead on 4 devices, 2D on 64, each with the batch it holds."""
    cluster = load_cluster_spec("frontera-rtx5000")

    def throughput(hidden: int, tp: int, layout: str, batch: int) -> float:
        model = _gpt(24, hidden, 32)
        recipe = TrainingSpec(sequence_length=512, global_batch_size=batch)
        costs = AnalyticCostModel(model, recipe, cluster)
        config = ParallelConfig(tp=tp, tp_layout=layout, micro_batch_size=batch, recompute="full")
        return batch / costs.estimate(config).step_time_s

    assert throughput(2048, 4, "1d", 60) > throughput(2048, 4, "2d", 96)
    assert throughput(8192, 64, "2d", 384) > 1.2 * throughput(8192, 64, "1d", 30)


def test_traits_follow_the_device_name():
    assert traits_of("NVIDIA H200", "cuda") is traits_of("NVIDIA H100 80GB HBM3", "cuda")
    assert traits_of("something new", "cuda") is traits_of("A100", "cuda")
    assert traits_of("x", "cpu") is traits_of("cpu", "cpu")


def _gpt(layers: int, hidden: int, heads: int) -> ModelSpec:
    return ModelSpec(
        name="gpt", family="gpt2", num_layers=layers, hidden_size=hidden, num_heads=heads,
        num_kv_heads=heads, head_dim=hidden // heads, ffn_size=4 * hidden, vocab_size=51200,
        max_positions=2048, tied_embeddings=True,
    )  # fmt: skip


# layers, hidden, heads, tp, pp, dp, virtual stages, micro-batch, global batch, seconds:
# Megatron-LM, arXiv 2104.04473, table 1; times follow from its throughput by its equation 3
MEGATRON = [
    (24, 2304, 24, 1, 1, 32, 1, 16, 512, 3.528),
    (48, 8192, 64, 8, 2, 32, 1, 4, 1536, 14.453),
    (80, 12288, 96, 8, 8, 24, 2, 2, 2304, 24.817),
    (128, 25600, 160, 8, 64, 6, 1, 1, 3072, 102.63),
]


@pytest.mark.parametrize("row", MEGATRON, ids=lambda row: f"h{row[1]}")
def test_megatron_table_1_is_met_without_a_fit(row):
    layers, hidden, heads, tp, pp, dp, chunks, size, batch, seconds = row
    recipe = TrainingSpec(sequence_length=2048, global_batch_size=batch, dtype="fp16")
    config = ParallelConfig(
        tp=tp, pp=pp, dp=dp, virtual_stages=chunks, micro_batch_size=size, recompute="full",
        pipeline_schedule="interleaved" if chunks > 1 else "1f1b", dtype="fp16",
        reduce_dtype="bf16",
    )  # fmt: skip
    points = points_of(_gpt(layers, hidden, heads), recipe, [config], attention=1.0)
    hardware = hardware_of(load_cluster_spec("dgx-a100-80"))
    assert float(step_time(points, hardware, Constants())[0]) == pytest.approx(seconds, rel=0.06)


def test_columns_may_be_scalars_or_arrays():
    config = ParallelConfig(tp=2, pp=2, dp=2)
    arrays = points_of(MODEL, RECIPE, [config])
    scalars = Points(
        **{
            name: float(np.asarray(getattr(arrays, name)).ravel()[0])
            for name in Points.__dataclass_fields__
        }
    )
    hardware = hardware_of(CLUSTERS[0])
    assert float(step_time(scalars, hardware, Constants())) == pytest.approx(
        float(step_time(arrays, hardware, Constants())[0])
    )
    assert set(config_columns([config])) <= set(Points.__dataclass_fields__)
