"""Memory against published figures and against what ranks must hold."""

import numpy as np
import pytest

from search_spaces.cluster_io import load_cluster_spec
from search_spaces.cost_models.analytic import AnalyticCostModel
from search_spaces.cost_models.constants import Constants
from search_spaces.cost_models.hardware import hardware_of
from search_spaces.cost_models.kernel_memory import COMPILED_BYTES
from search_spaces.cost_models.memory import (
    CPU_BASE_BYTES,
    densities,
    layer_activation_bytes,
    stage_memory,
)
from search_spaces.cost_models.points import ATTENTION_FLASH1, ATTENTION_FUSED, points_of
from search_spaces.model_io import load_model_spec
from search_spaces.model_spec import ModelSpec
from search_spaces.parallel_config import ParallelConfig
from search_spaces.training_spec import TrainingSpec


def _gpt(layers: int, hidden: int, heads: int, vocab: int = 51200) -> ModelSpec:
    return ModelSpec(
        name="gpt", family="gpt2", num_layers=layers, hidden_size=hidden, num_heads=heads,
        num_kv_heads=heads, head_dim=hidden // heads, ffn_size=4 * hidden, vocab_size=vocab,
        max_positions=2048, tied_embeddings=True,
    )  # fmt: skip


# layers, hidden, heads, micro-batch, GiB without recomputation, GiB with selective recomputation
# and sequence parallelism: first stage, tp 8, arXiv 2205.05198, figure 1 (not interleaved)
ACTIVATIONS = [(48, 6144, 64, 4, 59.25, 9.5625), (128, 25600, 160, 1, 131.25, 26.5625)]


@pytest.mark.parametrize("row", ACTIVATIONS, ids=["22b", "1t"])
def test_activations_equal_figure_1_of_2205_05198(row):
    layers, hidden, heads, size, plain_gib, selective_gib = row
    recipe = TrainingSpec(sequence_length=2048, global_batch_size=512, dtype="fp16")
    common = {"tp": 8, "micro_batch_size": size, "dtype": "fp16"}
    plain = ParallelConfig(**common)
    selective = ParallelConfig(**common, recompute="selective", sequence_parallel=True)
    points = points_of(
        _gpt(layers, hidden, heads), recipe, [plain, selective], attention=ATTENTION_FUSED
    )
    sharded = Constants(gathered_memory=0.0, gathered_stage_memory=0.0)
    kept = np.asarray(layer_activation_bytes(points, sharded)[0]) * layers / 2**30
    np.testing.assert_allclose(kept, [plain_gib, selective_gib], rtol=0.01)


# rank, MiB allocated at most: GPT 175B on 128 GCDs of Frontier, tp 4, pp 16, dp 2, ZeRO-1, full
# recomputation; github.com/sajal-vt/Megatron-DeepSpeed-ORNL, log gpt175b_megatron_16N (2023-11-10)
FRONTIER_LOG = [(0, 33901.5), (1, 31435.5), (7, 29635.5), (14, 27535.5), (15, 29137.8)]


def test_every_stage_of_the_frontier_run_is_within_5_percent():
    recipe = TrainingSpec(sequence_length=2048, global_batch_size=320, dtype="fp16")
    config = ParallelConfig(
        tp=4, pp=16, dp=2, zero_stage=1, recompute="full", dtype="fp16", reduce_dtype="bf16"
    )
    model = _gpt(96, 12288, 96, vocab=50688)
    points = points_of(model, recipe, [config], attention=ATTENTION_FLASH1, gradient_bytes=2.0)
    hardware = hardware_of(load_cluster_spec("frontier"))
    allocated = Constants(fragmentation=1.0, base_memory_bytes=1.0)
    ranks = np.array([rank for rank, _ in FRONTIER_LOG], dtype=np.float64)
    parts = stage_memory(
        points, densities(points, hardware, allocated), 6.0, ranks, ranks == 0, ranks == 15
    )
    predicted = np.asarray(parts.total) / 2**20
    np.testing.assert_allclose(predicted, [mib for _, mib in FRONTIER_LOG], rtol=0.05)


def test_probability_of_fitting_falls_with_the_need():
    cluster = load_cluster_spec("dgx-a100-80")
    recipe = TrainingSpec(sequence_length=2048, global_batch_size=64, dtype="bf16")
    costs = AnalyticCostModel(load_model_spec("llama3-8b"), recipe, cluster)
    chances = [
        costs.probability_fits(
            ParallelConfig(dp=8, zero_stage=stage, dtype="bf16"), cluster.memory_bytes
        )
        for stage in (0, 1, 2, 3)
    ]
    assert chances == sorted(chances)
    assert chances[0] < 0.05
    estimate = costs.estimate(ParallelConfig(dp=8, zero_stage=3, dtype="bf16"))
    assert estimate.probability_fits(estimate.peak_memory_bytes) == pytest.approx(0.5)


def test_a_mixture_holds_its_share_of_experts():
    cluster = load_cluster_spec("dgx-a100-80")
    recipe = TrainingSpec(sequence_length=2048, global_batch_size=64, dtype="bf16")
    costs = AnalyticCostModel(load_model_spec("mixtral-8x7b"), recipe, cluster)
    whole = costs.estimate(ParallelConfig(dp=8, dtype="bf16"))
    split = costs.estimate(ParallelConfig(dp=8, ep=8, dtype="bf16"))
    assert split.memory_parts_bytes["weights"] < 0.2 * whole.memory_parts_bytes["weights"]
    assert split.parts_s["expert_parallel"] > whole.parts_s["expert_parallel"] == 0


def test_the_kernel_never_holds_all_logits():
    """Its loss walks over blocks; other stacks hold every logit in fp32."""
    cluster = load_cluster_spec("dgx-a100-80")
    recipe = TrainingSpec(sequence_length=8192, global_batch_size=8, dtype="bf16")
    model = load_model_spec("llama3-8b")
    config = ParallelConfig(dp=8, zero_stage=3, recompute="full", dtype="bf16")
    own, other = (
        AnalyticCostModel(model, recipe, cluster, is_kernel=is_kernel).estimate(config)
        for is_kernel in (True, False)
    )
    assert own.memory_parts_bytes["logits"] < 1.5 * 2**30
    assert other.memory_parts_bytes["logits"] > 8 * 8192 * model.vocab_size


@pytest.mark.parametrize("stage", [2, 3])
def test_gradients_under_way_count_three_layers_at_most(stage):
    """Deeper models hold no more of them; on CPU each is received into a buffer of its size."""
    recipe = TrainingSpec(sequence_length=64, global_batch_size=8)
    cluster = load_cluster_spec("laptop")
    config = ParallelConfig(dp=4, zero_stage=stage, recompute="full")
    buffers = []
    for layers in (8, 16):
        model = load_model_spec("gpt2-124m").model_copy(update={"num_layers": layers})
        parts = AnalyticCostModel(model, recipe, cluster).estimate(config).memory_parts_bytes
        buffers.append(parts["buffers"])
    layer_bytes = 4 * 12 * 768**2
    assert buffers[0] == pytest.approx(buffers[1], rel=0.01)
    assert buffers[0] > 5 * layer_bytes * 0.99


def mesh_parts(batch: int, **knobs) -> dict[str, float]:
    recipe = TrainingSpec(sequence_length=512, global_batch_size=batch)
    costs = AnalyticCostModel(load_model_spec("gpt2-124m"), recipe, load_cluster_spec("laptop"))
    return dict(costs.estimate(ParallelConfig(**knobs)).memory_parts_bytes)


def test_a_mesh_holds_panels_of_every_operand_and_result():
    """Of 2 sequences of 512 tokens over 2 rows: left and right operand, and their gradients."""
    parts = mesh_parts(2, tp=4, tp_layout="2d", micro_batch_size=2)
    hidden, ffn, tokens = 768, 4 * 768, 512
    assert parts["buffers"] == pytest.approx(2 * 4 * (tokens * ffn + hidden * ffn / 2))
    assert mesh_parts(2, tp=4, micro_batch_size=2)["buffers"] == 0


def test_layers_of_a_deeper_mesh_hold_what_a_flat_one_does():
    """Each has its own sequences and the same weights."""
    flat = mesh_parts(2, tp=4, tp_layout="2d", micro_batch_size=2)
    deep = mesh_parts(4, tp=8, tp_layout="2.5d", tp_depth=2, micro_batch_size=4)
    assert deep == pytest.approx(flat)


def test_gradients_summed_over_the_depth_can_be_the_peak():
    """Few tokens and layers that recompute: the copy of all gradients outgrows activations."""
    knobs = {"micro_batch_size": 4, "recompute": "full", "tp_layout": "2.5d"}
    recipe = TrainingSpec(sequence_length=16, global_batch_size=4)
    costs = AnalyticCostModel(load_model_spec("gpt2-124m"), recipe, load_cluster_spec("laptop"))
    parts = costs.estimate(ParallelConfig(tp=8, tp_depth=2, **knobs)).memory_parts_bytes
    made = parts["activations"] + parts["logits"] + parts["buffers"]
    assert made > parts["gradients"]


@pytest.mark.parametrize(("dtype", "has_code"), [("bf16", True), ("fp32", False)])
def test_code_of_bf16_products_counts_on_cpu_alone(dtype, has_code):
    recipe = TrainingSpec(sequence_length=512, global_batch_size=4, dtype=dtype)
    config = ParallelConfig(dp=2, dtype=dtype)
    model, laptop = load_model_spec("gpt2-124m"), load_cluster_spec("laptop")
    runtime = AnalyticCostModel(model, recipe, laptop).estimate(config)
    code = runtime.memory_parts_bytes["runtime"] - CPU_BASE_BYTES
    assert code == pytest.approx((15 + 4 * 4) * COMPILED_BYTES if has_code else 0.0)
