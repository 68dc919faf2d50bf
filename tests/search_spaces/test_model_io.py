"""Models are read as `transformers` reads them, and bad ones refused by name."""

import contextlib
import json
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from search_spaces.errors import ModelSpecError
from search_spaces.model_io import (
    PRESETS_FOLDER,
    load_model_spec,
    parse_model_spec,
    preset_names,
    supported_model_types,
)
from search_spaces.model_spec import ModelSpec

LLAMA: dict[str, Any] = {
    "model_type": "llama", "hidden_size": 64, "num_hidden_layers": 2, "num_attention_heads": 4,
    "intermediate_size": 128, "vocab_size": 100,
}  # fmt: skip
GPT2: dict[str, Any] = {
    "model_type": "gpt2", "n_embd": 64, "n_layer": 2, "n_head": 4, "vocab_size": 100,
}  # fmt: skip


def write(folder: Path, fields: object, name: str = "config.json") -> Path:
    path = folder / name
    path.write_text(fields if isinstance(fields, str) else json.dumps(fields))
    return path


def test_published_and_small_presets_ship() -> None:
    assert {
        "gpt2-124m", "gpt2-355m", "gpt2-774m", "gpt2-1.5b", "smollm-135m", "llama3-8b",
        "llama3-70b", "mixtral-8x7b", "gpt3-175b", "frontier-22b", "frontier-175b", "frontier-1t",
        "gpt2-tiny", "gpt2-mini", "llama-tiny", "mixtral-tiny",
    } <= set(preset_names())  # fmt: skip


@pytest.mark.parametrize("name", [name for name in preset_names() if name.endswith("tiny")])
def test_tiny_presets_can_be_cut_every_way(name: str) -> None:
    model = load_model_spec(name)
    assert model.num_layers % 8 == 0
    assert model.num_heads % 4 == 0


@pytest.mark.parametrize("name", preset_names())
def test_every_preset_reads_under_its_own_name_and_from_its_folder(name: str) -> None:
    spec = load_model_spec(name)
    assert spec.name == name
    assert load_model_spec(str(PRESETS_FOLDER / name)) == spec
    assert load_model_spec(str(PRESETS_FOLDER / name / "config.json")) == spec


def test_gpt2_defaults() -> None:
    spec = parse_model_spec(GPT2, "m")
    assert spec == ModelSpec(
        name="m", family="gpt2", num_layers=2, hidden_size=64, num_heads=4, num_kv_heads=4,
        head_dim=16, ffn_size=256, vocab_size=100, max_positions=1024, tied_embeddings=True,
    )  # fmt: skip
    assert parse_model_spec(GPT2 | {"n_inner": 96}, "m").ffn_size == 96
    assert not parse_model_spec(GPT2 | {"tie_word_embeddings": False}, "m").tied_embeddings


def test_llama_defaults() -> None:
    spec = parse_model_spec(LLAMA, "m")
    assert (spec.num_kv_heads, spec.head_dim, spec.tied_embeddings) == (4, 16, False)
    assert (spec.norm_eps, spec.rope_theta, spec.max_positions) == (1e-6, 10000.0, 2048)
    assert parse_model_spec(LLAMA | {"head_dim": 32}, "m").head_dim == 32
    nested = {"rope_parameters": {"rope_theta": 5e5, "rope_type": "default"}}
    assert parse_model_spec(LLAMA | nested, "m").rope_theta == 5e5


def test_qwen2_and_mistral() -> None:
    qwen = parse_model_spec(LLAMA | {"model_type": "qwen2", "num_key_value_heads": 2}, "m")
    assert qwen.qkv_bias
    assert qwen.sliding_window is None
    mistral = parse_model_spec(LLAMA | {"model_type": "mistral", "num_key_value_heads": 2}, "m")
    assert mistral.sliding_window == 4096
    full = LLAMA | {"model_type": "mistral", "num_key_value_heads": 2, "sliding_window": None}
    assert parse_model_spec(full, "m").sliding_window is None


def test_architecture_stands_in_for_a_missing_model_type() -> None:
    fields = {key: value for key, value in LLAMA.items() if key != "model_type"}
    assert parse_model_spec(fields | {"architectures": ["LlamaForCausalLM"]}, "m").family == "llama"
    with pytest.raises(ModelSpecError, match="no field model_type"):
        parse_model_spec(fields, "m")


@pytest.mark.parametrize("kind", supported_model_types())
def test_defaults_are_those_of_transformers(kind: str) -> None:
    """A config that `transformers` writes in full reads like one with its defaults left out."""
    transformers = pytest.importorskip("transformers")
    full = transformers.AutoConfig.for_model(kind).to_dict()
    sizes = {
        "model_type", "n_embd", "n_layer", "n_head", "vocab_size", "hidden_size",
        "num_hidden_layers", "num_attention_heads", "intermediate_size",
    }  # fmt: skip
    bare = {name: value for name, value in full.items() if name in sizes}
    assert parse_model_spec(bare, "m") == parse_model_spec(full, "m")


@pytest.mark.parametrize(
    ("fields", "match"),
    [
        (LLAMA | {"hidden_size": "64"}, "hidden_size is '64', must be a positive integer"),
        (LLAMA | {"hidden_size": True}, "hidden_size is True"),
        (LLAMA | {"num_hidden_layers": 0}, "num_hidden_layers is 0"),
        (LLAMA | {"rms_norm_eps": -1}, "rms_norm_eps is -1"),
        (LLAMA | {"tie_word_embeddings": 1}, "tie_word_embeddings is 1, must be true or false"),
        (LLAMA | {"hidden_act": "relu"}, "hidden_act is 'relu', must be \"silu\""),
        (LLAMA | {"attention_bias": True}, "attention_bias is True"),
        (LLAMA | {"num_key_value_heads": 3}, "num_key_value_heads 3 does not divide"),
        (LLAMA | {"head_dim": 15}, "head_dim 15 is odd"),
        (GPT2 | {"n_head": 5}, "n_head 5 does not divide n_embd 64"),
        (GPT2 | {"activation_function": "relu"}, "activation_function is 'relu'"),
        (LLAMA | {"model_type": "bert"}, "supported model_type values: gpt2, llama"),
        (LLAMA | {"model_type": 3}, "architecture 3"),
        ({"model_type": "gpt2"}, "lacks the field n_embd"),
        (
            LLAMA | {"model_type": "mixtral", "num_key_value_heads": 2, "num_experts_per_tok": 9},
            "num_experts_per_tok 9 exceeds num_local_experts 8",
        ),
        ('{"model_type": "llama", "rms_norm_eps": NaN}', "lacks the field hidden_size"),
        (json.dumps(LLAMA | {"rms_norm_eps": float("nan")}), "rms_norm_eps is nan"),
        ("[" * 100_000, "is not JSON"),
        ([1], "must hold one JSON object"),
        ("{", "is not JSON"),
    ],
)
def test_bad_files_name_the_field(tmp_path: Path, fields: object, match: str) -> None:
    with pytest.raises(ModelSpecError, match=match):
        load_model_spec(str(write(tmp_path, fields)))


def test_unknown_presets_and_files() -> None:
    with pytest.raises(ModelSpecError, match=r"did you mean gpt2-124m.*smollm-135m"):
        load_model_spec("gpt2-124")
    with pytest.raises(ModelSpecError, match=r"model file './no/config.json' does not exist"):
        load_model_spec("./no/config.json")


@pytest.mark.parametrize("source", ["", "~nobody-here/x", "a\0b", "x" * 5000, "/", "é/ü.json"])
def test_odd_sources_are_errors_not_tracebacks(source: str) -> None:
    with pytest.raises(ModelSpecError):
        load_model_spec(source)


def test_name_comes_from_the_folder_or_the_file(tmp_path: Path) -> None:
    assert load_model_spec(str(write(tmp_path, LLAMA))).name == tmp_path.name
    assert load_model_spec(str(write(tmp_path, LLAMA, "mine.json"))).name == "mine"


_JSON = st.recursive(
    st.none()
    | st.booleans()
    | st.integers(-5, 5)
    | st.floats(allow_nan=False)
    | st.text(max_size=4),
    lambda inner: (
        st.lists(inner, max_size=2) | st.dictionaries(st.text(max_size=3), inner, max_size=2)
    ),
    max_leaves=3,
)


@settings(max_examples=150, deadline=None)
@given(
    kind=st.sampled_from(supported_model_types()),
    changes=st.dictionaries(
        st.sampled_from([*LLAMA, *GPT2, "head_dim", "num_key_value_heads", "n_inner",
                         "rope_parameters", "sliding_window", "num_local_experts"]), _JSON,
    ),
)  # fmt: skip
def test_garbage_gives_model_spec_errors_only(kind: str, changes: dict[str, Any]) -> None:
    with contextlib.suppress(ModelSpecError):
        spec = parse_model_spec(LLAMA | GPT2 | {"model_type": kind} | changes, "m")
        assert ModelSpec.model_validate_json(spec.model_dump_json()) == spec
