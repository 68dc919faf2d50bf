"""Parameter counts equal the published ones; FLOPs equal the formulas of the papers."""

import json
from typing import Any

import pytest

from search_spaces.counts import (
    embedding_parameters,
    hardware_flops_per_step,
    head_parameters,
    layer_counts,
    layer_flops_per_token,
    layer_parameters,
    model_flops_per_step,
    norm_parameters,
    num_active_parameters,
    num_parameters,
    num_recomputed_layers,
)
from search_spaces.model_io import (
    PRESETS_FOLDER,
    load_model_spec,
    parse_model_spec,
    preset_names,
)
from search_spaces.parallel_config import ParallelConfig
from search_spaces.training_spec import TrainingSpec

PUBLISHED = {
    "gpt2-124m": 124_439_808,
    "gpt2-355m": 354_823_168,
    "gpt2-774m": 774_030_080,
    "gpt2-1.5b": 1_557_611_200,
    "smollm-135m": 134_515_008,
    "llama3-8b": 8_030_261_248,
    "llama3-70b": 70_553_706_496,
    "mixtral-8x7b": 46_702_792_704,
    "gpt3-175b": 174_604_259_328,
}


@pytest.mark.parametrize(("name", "count"), PUBLISHED.items())
def test_parameters_equal_the_published_count(name: str, count: int) -> None:
    assert num_parameters(load_model_spec(name)) == count


@pytest.mark.parametrize("name", preset_names())
def test_parts_add_up(name: str) -> None:
    model = load_model_spec(name)
    layers = model.num_layers * layer_parameters(model)
    parts = embedding_parameters(model) + layers + norm_parameters(model) + head_parameters(model)
    assert parts == num_parameters(model)
    counts = layer_counts(model)
    assert counts.total == counts.attention + counts.feed_forward + counts.router + counts.norms


def test_active_parameters_of_a_mixture() -> None:
    assert num_active_parameters(load_model_spec("mixtral-8x7b")) == 12_879_925_248
    dense = load_model_spec("llama3-8b")
    assert num_active_parameters(dense) == num_parameters(dense)


@pytest.mark.parametrize("name", ["gpt2-124m", "gpt3-175b", "frontier-1t"])
def test_flops_equal_megatron_equation_3(name: str) -> None:
    """Equation 3 of 2104.04473 counts four passes over the layers and three over the head."""
    model = load_model_spec(name)
    training = TrainingSpec(sequence_length=512, global_batch_size=24)
    s, h, layers, v = 512, model.hidden_size, model.num_layers, model.vocab_size
    equation_3 = 96 * 24 * s * layers * h * h * (1 + s / (6 * h) + v / (16 * layers * h))
    full = ParallelConfig(recompute="full")
    assert hardware_flops_per_step(model, training, full) == pytest.approx(equation_3, rel=1e-12)
    three_passes = 72 * 24 * s * layers * h * h * (1 + s / (6 * h) + v / (12 * layers * h))
    assert model_flops_per_step(model, training) == pytest.approx(three_passes, rel=1e-12)


def test_flops_equal_palm_appendix_b_up_to_what_is_no_matrix() -> None:
    """PaLM counts 6 N + 12 L H Q T a token; N there holds norms, biases and positions too."""
    model = load_model_spec("llama3-8b")
    training = TrainingSpec(sequence_length=4096, global_batch_size=1)
    norms = (2 * model.num_layers + 1) * model.hidden_size
    matrices = num_parameters(model) - embedding_parameters(model) - norms
    attention = 12 * model.num_layers * model.num_heads * model.head_dim * 4096
    expected = (6 * matrices + attention) * training.tokens_per_step
    assert model_flops_per_step(model, training) == pytest.approx(expected, rel=1e-12)


def test_grouped_queries_gated_feed_forward_and_experts_are_counted() -> None:
    model = load_model_spec("mixtral-8x7b")
    h, s = 4096, 1024
    expected = (
        2 * h * (4096 + 2 * 1024) + 2 * 4096 * h + 4 * s * 4096 + 2 * 6 * h * 14336 + 2 * h * 8
    )
    assert layer_flops_per_token(model, s) == expected


def test_inference_is_one_forward_and_never_recomputes() -> None:
    model = load_model_spec("llama-tiny")
    training = TrainingSpec(sequence_length=64, global_batch_size=4)
    inference = TrainingSpec(sequence_length=64, global_batch_size=4, workload="inference")
    forward = model_flops_per_step(model, inference)
    assert model_flops_per_step(model, training) == pytest.approx(3 * forward)
    full = ParallelConfig(recompute="full")
    assert hardware_flops_per_step(model, inference, full) == forward


def test_selective_recompute_repeats_the_attention_core_alone() -> None:
    model = load_model_spec("gpt2-124m")
    training = TrainingSpec(sequence_length=1024, global_batch_size=2)
    selective = ParallelConfig(recompute="selective")
    extra = hardware_flops_per_step(model, training, selective) - model_flops_per_step(
        model, training
    )
    assert extra == pytest.approx(4 * 1024 * 768 * 12 * 2048)


def test_recompute_layers_counts_per_stage() -> None:
    model = load_model_spec("gpt2-tiny")
    config = ParallelConfig(pp=4, stage_layers=(1, 2, 2, 3), recompute="full", recompute_layers=2)
    assert num_recomputed_layers(model, config) == 1 + 2 + 2 + 2
    assert num_recomputed_layers(model, config.with_knobs(recompute_layers=None)) == 8
    assert num_recomputed_layers(model, ParallelConfig()) == 0


def transformers_count(fields: dict[str, Any]) -> int:
    """Parameters of the model that `transformers` builds, without their values."""
    torch = pytest.importorskip("torch")
    transformers = pytest.importorskip("transformers")
    config = transformers.AutoConfig.for_model(**fields)
    with torch.device("meta"):
        built = transformers.AutoModelForCausalLM.from_config(config)
    return sum(parameter.numel() for parameter in built.parameters())


_ROTARY = {"hidden_size": 48, "num_hidden_layers": 2, "num_attention_heads": 6,
           "num_key_value_heads": 2, "intermediate_size": 40, "vocab_size": 99}  # fmt: skip


@pytest.mark.parametrize(
    "fields",
    [
        {"model_type": "gpt2", "n_embd": 48, "n_layer": 3, "n_head": 4, "vocab_size": 99},
        {"model_type": "gpt2", "n_embd": 48, "n_layer": 3, "n_head": 4, "vocab_size": 99,
         "n_inner": 100, "n_positions": 77, "tie_word_embeddings": False},
        {"model_type": "llama", **_ROTARY},
        {"model_type": "llama", **_ROTARY, "head_dim": 32, "tie_word_embeddings": True},
        {"model_type": "mistral", **_ROTARY},
        {"model_type": "qwen2", **_ROTARY},
        {"model_type": "mixtral", **_ROTARY, "num_local_experts": 3, "num_experts_per_tok": 2},
    ],
    ids=lambda fields: fields["model_type"],
)  # fmt: skip
def test_parameters_equal_those_of_transformers(fields: dict[str, Any]) -> None:
    assert num_parameters(parse_model_spec(fields, "m")) == transformers_count(fields)


@pytest.mark.slow
@pytest.mark.parametrize("name", preset_names())
def test_presets_are_what_transformers_reads(name: str) -> None:
    fields = json.loads((PRESETS_FOLDER / name / "config.json").read_text())
    assert num_parameters(load_model_spec(name)) == transformers_count(fields)
