"""Each rule on the inputs that have bitten users of other tools, with what it says."""

import re
from pathlib import Path
from typing import Any

import pytest

import search_spaces.constraints
from search_spaces.cluster_spec import ClusterSpec
from search_spaces.constraints import CONSTRAINTS, Setting, Violation, find_violations
from search_spaces.constraints.base import divisors, either, nearest_values, value_text
from search_spaces.constraints.kernel_support import UNSUPPORTED
from search_spaces.constraints.tensor_mesh import mesh_side
from search_spaces.layers import balanced_split, max_layers_per_stage, stage_layer_counts
from search_spaces.model_io import load_model_spec
from search_spaces.model_spec import ModelSpec
from search_spaces.parallel_config import ParallelConfig
from search_spaces.training_spec import TrainingSpec

TINY = load_model_spec("gpt2-tiny")
TRAINING = TrainingSpec(sequence_length=64, global_batch_size=8)


def model(**changes: Any) -> ModelSpec:
    return ModelSpec.model_validate(TINY.model_dump() | changes)


def broken(
    config: ParallelConfig,
    spec: ModelSpec = TINY,
    training: TrainingSpec = TRAINING,
    devices: int = 0,
) -> dict[str, Violation]:
    """Violations by rule; the kernel's gaps are left out, as they shrink."""
    cluster = ClusterSpec(devices_per_node=devices or config.world_size)
    found = find_violations(config, spec, training, cluster)
    gaps = {entry.name for entry in UNSUPPORTED}
    return {violation.rule: violation for violation in found if violation.rule not in gaps}


def only(found: dict[str, Violation], rule: str) -> Violation:
    assert set(found) == {rule}, found
    return found[rule]


def test_a_legal_point_breaks_nothing() -> None:
    assert broken(ParallelConfig(dp=2, tp=2, pp=2, sequence_parallel=True, zero_stage=3)) == {}


def test_product_4_on_8_devices() -> None:
    violation = only(broken(ParallelConfig(dp=2, tp=2), devices=8), "devices")
    assert violation.message.startswith("dp 2 x tp 2 x pp 1 makes 4 ranks, but the cluster has 8")
    assert violation.legal_values == {"tp": (4,), "cp": (2,), "pp": (2,), "dp": (4,)}


def test_30_layers_on_pp_4_are_never_cut_to_28() -> None:
    spec = model(num_layers=30)
    violation = only(broken(ParallelConfig(pp=4), spec), "stage_layers")
    assert "do not divide the 30 layers" in violation.message
    assert violation.legal_values["pp"] == (1, 2, 3)
    assert violation.legal_values["stage_layers"] == ((7, 8, 8, 7),)
    assert broken(ParallelConfig(pp=4, stage_layers=(7, 8, 8, 7)), spec) == {}


def test_40_layers_on_pp_8_with_2_virtual_stages() -> None:
    config = ParallelConfig(pp=8, virtual_stages=2, pipeline_schedule="interleaved")
    violation = only(broken(config, model(num_layers=40)), "stage_layers")
    assert "pp 8 x virtual_stages 2 = 16 stages do not divide the 40 layers" in violation.message
    assert violation.legal_values["virtual_stages"] == (5,)  # 1 would not be interleaved


def test_pp_1_with_a_cut_model_is_refused() -> None:
    violation = only(broken(ParallelConfig(stage_layers=(5,))), "stage_layers")
    assert "adds up to 5 layers, but the model has 8" in violation.message


@pytest.mark.parametrize(
    ("split", "words"),
    [
        ((4, 4), "is the even split"),
        ((3, 4), "adds up to 7 layers"),
        ((3, 3, 2), "has 3 entries, but pp x virtual_stages makes 2 stages"),
        ((0, 8), "leaves a stage without layers"),
    ],
)
def test_wrong_splits(split: tuple[int, ...], words: str) -> None:
    violation = only(broken(ParallelConfig(pp=2, stage_layers=split)), "stage_layers")
    assert words in violation.message
    assert violation.legal_values["stage_layers"] == (None,)
    assert "stage_layers even" in violation.message


def test_more_stages_than_layers() -> None:
    violation = only(broken(ParallelConfig(pp=16)), "stage_layers")
    assert "more than the model's 8 layers" in violation.message


def test_uneven_stages_are_legal_and_counted() -> None:
    config = ParallelConfig(pp=4, stage_layers=(1, 2, 2, 3))
    assert broken(config) == {}
    assert stage_layer_counts(8, config) == (1, 2, 2, 3)
    assert max_layers_per_stage(8, config) == 3


def test_kv_groups() -> None:
    two_groups = model(family="llama", num_heads=8, num_kv_heads=2, head_dim=8, ffn_size=128)
    assert broken(ParallelConfig(tp=8), two_groups) == {}  # each KV head is held by four ranks
    six = model(family="llama", num_heads=12, num_kv_heads=6, head_dim=8, ffn_size=96)
    violation = only(broken(ParallelConfig(tp=4), six), "attention_heads")
    assert "tp 4 neither divides nor is a multiple of the 6 KV heads" in violation.message
    assert violation.legal_values["tp"] == (1, 2, 3)


def test_heads_and_feed_forward() -> None:
    found = broken(ParallelConfig(tp=3))
    assert set(found) == {"attention_heads", "feed_forward"}
    assert "tp 3 does not divide the 4 attention heads" in found["attention_heads"].message
    assert found["attention_heads"].message.endswith("legal with the other knobs kept: tp 1 or 2")
    assert "feed-forward width 256" in found["feed_forward"].message


def test_global_batch_is_exact() -> None:
    violation = only(broken(ParallelConfig(dp=2, micro_batch_size=3)), "global_batch")
    assert "micro_batch_size 3 x dp 2 does not divide the global batch of 8" in violation.message
    assert violation.legal_values == {"micro_batch_size": (1, 2, 4)}


@pytest.mark.parametrize(
    ("knobs", "words"),
    [
        ({"pp": 1, "pipeline_schedule": "gpipe"}, "pp 1 has no pipeline"),
        ({"pp": 1, "virtual_stages": 2}, "pp 1 has no pipeline"),
        ({"pp": 2, "pipeline_schedule": "interleaved"}, "virtual_stages of 2 or more"),
        ({"pp": 2, "virtual_stages": 2}, "virtual_stages 2 is not 1"),
        ({"pp": 2, "pipeline_schedule": "zbv"}, "virtual_stages 2"),
        ({"pp": 2, "pipeline_schedule": "zbv", "virtual_stages": 4}, "virtual_stages 2"),
    ],
)
def test_schedules_that_cannot_run(knobs: dict[str, Any], words: str) -> None:
    violation = only(broken(ParallelConfig(**knobs)), "pipeline_schedule")
    assert words in violation.message
    assert violation.legal_values


@pytest.mark.parametrize("schedule", ["gpipe", "1f1b", "zero_bubble"])
def test_fewer_micro_batches_than_stages_run(schedule: Any) -> None:
    """2 micro-batches on pp 4: every action list ends, only the bubble is large."""
    config = ParallelConfig(pp=4, micro_batch_size=4, pipeline_schedule=schedule)
    assert broken(config) == {}


def test_interleaved_runs_on_two_pipeline_ranks() -> None:
    config = ParallelConfig(pp=2, pipeline_schedule="interleaved", virtual_stages=2)
    assert broken(config) == {}


def test_sequence_parallel() -> None:
    violation = only(broken(ParallelConfig(dp=2, sequence_parallel=True)), "sequence_parallel")
    assert "needs tp of 2 or more" in violation.message
    odd = TrainingSpec(sequence_length=63)
    violation = only(
        broken(ParallelConfig(tp=2, sequence_parallel=True), training=odd), "sequence_parallel"
    )
    assert "63 tokens" in violation.message


def test_zero() -> None:
    violation = only(broken(ParallelConfig(tp=2, zero_stage=2)), "zero_stage")
    assert violation.legal_values["zero_stage"] == (0,)
    cases = {
        (4, 0, 2): "needs zero_stage 1 or more",
        (4, 1, 3): "does not divide dp x cp = 4",
        (4, 3, 4): "is the whole data group, which is written 0",
        (4, 3, 1): "shards nothing",
    }
    for (dp, stage, degree), words in cases.items():
        config = ParallelConfig(dp=dp, zero_stage=stage, zero_shard_degree=degree)
        assert words in only(broken(config), "zero_shard_degree").message
    assert broken(ParallelConfig(dp=4, zero_stage=3, zero_shard_degree=2)) == {}
    assert broken(ParallelConfig(dp=2, cp=2, zero_stage=3, zero_shard_degree=2)) == {}


def test_tensor_meshes() -> None:
    assert broken(ParallelConfig(tp=4, tp_layout="2d", micro_batch_size=2)) == {}
    assert broken(ParallelConfig(tp=8, tp_layout="2.5d", tp_depth=2, micro_batch_size=4)) == {}
    cases: dict[str, dict[str, Any]] = {
        "no q x q mesh": {"tp": 2, "tp_layout": "2d", "micro_batch_size": 2},
        "tp 1 is no q x q mesh": {"tp": 1, "tp_layout": "2d"},
        "tp_depth 2 has no meaning under tp_layout 1d": {"tp": 4, "tp_depth": 2},
        "tp_depth 2 has no meaning under tp_layout 2d": {"tp": 8, "tp_depth": 2, "tp_layout": "2d"},
        "is tp_layout 2d": {"tp": 4, "tp_layout": "2.5d", "micro_batch_size": 2},
        "no 2 x q x q mesh": {"tp": 4, "tp_layout": "2.5d", "tp_depth": 2},
        "to the 2 rows of the 2d mesh": {"tp": 4, "tp_layout": "2d", "micro_batch_size": 1},
        "to the 4 rows": {"tp": 8, "tp_layout": "2.5d", "tp_depth": 2, "micro_batch_size": 2},
    }
    for words, knobs in cases.items():
        assert words in only(broken(ParallelConfig(**knobs)), "tensor_mesh").message
    three_rows = ParallelConfig(tp=9, tp_layout="2d", micro_batch_size=1)
    assert (
        "side 3, which does not divide attention heads 4"
        in broken(three_rows)["tensor_mesh"].message
    )
    assert mesh_side(ParallelConfig(tp=18, tp_depth=2)) == 3
    sharded = ParallelConfig(tp=4, tp_layout="2d", micro_batch_size=2, sequence_parallel=True)
    assert "no meaning under tp_layout 2d" in only(broken(sharded), "sequence_parallel").message


def test_context_and_expert_parallel() -> None:
    odd = TrainingSpec(sequence_length=62)
    assert (
        "4 chunks" in only(broken(ParallelConfig(cp=2), training=odd), "context_parallel").message
    )
    assert broken(ParallelConfig(cp=2)) == {}
    moe = load_model_spec("mixtral-tiny")
    assert broken(ParallelConfig(dp=4, ep=2), moe) == {}
    cases = {(TINY, 2, 2): "gpt2-tiny has none", (moe, 3, 3): "divide the 4 experts",
             (moe, 2, 4): "divide dp 2, out of which"}  # fmt: skip
    training = TrainingSpec(sequence_length=64, global_batch_size=12)
    for (spec, dp, ep), words in cases.items():
        config = ParallelConfig(dp=dp, ep=ep)
        assert words in only(broken(config, spec, training), "expert_parallel").message


def test_recompute_layers() -> None:
    cases: dict[str, dict[str, Any]] = {
        "no meaning with recompute none": {"recompute_layers": 2},
        "recomputes nothing": {"recompute": "full", "recompute_layers": 0},
        "covers all layers of a stage (4 at most)": {"recompute": "full", "recompute_layers": 4},
    }
    for words, knobs in cases.items():
        assert words in only(broken(ParallelConfig(pp=2, **knobs)), "recompute_layers").message
    assert broken(ParallelConfig(pp=2, recompute="full", recompute_layers=3)) == {}


def test_reduce_dtype() -> None:
    low = ParallelConfig(dp=2, reduce_dtype="bf16")
    assert "would round" in only(broken(low), "reduce_dtype").message
    alone = ParallelConfig(dtype="bf16", reduce_dtype="bf16")
    assert "nothing to reduce" in only(broken(alone), "reduce_dtype").message
    assert broken(ParallelConfig(dp=2, dtype="bf16", reduce_dtype="bf16")) == {}


@pytest.mark.parametrize(
    "knobs",
    [
        {"zero_stage": 1}, {"recompute": "full"}, {"optimizer_offload": True},
        {"pp": 2, "pipeline_schedule": "gpipe"},
    ],
)  # fmt: skip
def test_inference_has_no_backward_pass(knobs: dict[str, Any]) -> None:
    inference = TrainingSpec(sequence_length=64, workload="inference")
    config = ParallelConfig(dp=2, **knobs)
    only(broken(config, training=inference), "inference")
    assert broken(config) == {}
    assert broken(ParallelConfig(dp=2, pp=2), training=inference) == {}


def test_sequences_longer_than_the_model_takes() -> None:
    long = TrainingSpec(sequence_length=512)
    violation = only(broken(ParallelConfig(), training=long), "sequence_length")
    assert "512 exceeds the 256 learned positions" in violation.message
    windowed = model(family="llama", sliding_window=256)
    violation = only(broken(ParallelConfig(), windowed, long), "sequence_length")
    assert "sliding window of 256" in violation.message
    assert broken(ParallelConfig(), model(family="llama"), long) == {}  # rotary positions


def test_every_gap_of_the_kernel_has_a_reason() -> None:
    names = [entry.name for entry in UNSUPPORTED]
    assert len(set(names)) == len(names)
    for entry in UNSUPPORTED:
        assert entry.name.startswith("kernel_")
        assert entry.reason
        assert not entry.matches(ParallelConfig(), Setting(TINY, TRAINING, ClusterSpec()))


def test_every_rule_file_is_in_the_table() -> None:
    folder = Path(search_spaces.constraints.__file__).parent
    files = {path.stem for path in folder.glob("*.py")} - {"__init__", "base", "kernel_support"}
    names = [rule.name for rule in CONSTRAINTS]
    assert len(set(names)) == len(names)
    assert {name for name in names if not name.startswith("kernel_")} == files


def test_every_knob_and_rule_is_documented() -> None:
    page = Path(__file__).parents[2] / "docs" / "space.md"
    if not page.is_file():
        pytest.skip("docs/space.md is not here (installed without the repository)")
    text = page.read_text()
    for name in [*ParallelConfig.model_fields, *(rule.name for rule in CONSTRAINTS)]:
        assert re.search(rf"`{re.escape(name)}`", text), f"{name} is not documented"


@pytest.mark.parametrize(("layers", "stages"), [(30, 4), (8, 8), (7, 3), (5, 4), (96, 16), (3, 4)])
def test_balanced_splits(layers: int, stages: int) -> None:
    split = balanced_split(layers, stages)
    assert sum(split) == layers
    assert len(split) == stages
    assert max(split) - min(split) <= 1
    assert split[0] <= split[len(split) // 2]


def test_words() -> None:
    assert divisors(12) == (1, 2, 3, 4, 6, 12)
    assert divisors(1) == (1,)
    assert either(["a"]) == "a"
    assert either(["a", "b", "c"]) == "a, b or c"
    assert value_text(None, "stage_layers") == "even"
    assert value_text((1, 2)) == "[1, 2]"
    assert value_text(True) == "true"
    assert nearest_values([1, 2, 4, 8, 16, 32, 64, 128, 256, 512], 64) == (
        4,
        8,
        16,
        32,
        64,
        128,
        256,
        512,
    )
