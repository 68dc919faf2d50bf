"""Reading models: presets by name, and Hugging Face `config.json` files with their own field names.

What a file leaves out takes the default that `transformers` gives it, except sizes without which no
model can be meant. Fields that would make a model that the kernel does not build are refused with
their name; dropout and the scaling of rotary frequencies are not read, because they change neither
the parameters nor the speed.
"""

import json
import math
from collections.abc import Callable
from pathlib import Path
from typing import Any, Final

from pydantic import ValidationError

from search_spaces.errors import ModelSpecError
from search_spaces.model_spec import ModelSpec
from search_spaces.sources import did_you_mean, find_file

PRESETS_FOLDER: Final = Path(__file__).parent / "presets" / "models"
CONFIG_FILE: Final = "config.json"
_GELUS: Final = ("gelu_new", "gelu", "gelu_fast", "gelu_pytorch_tanh")
_SILUS: Final = ("silu", "swish")
_REQUIRED: Final = object()


def preset_names() -> tuple[str, ...]:
    """Names of the models that ship with the tuner, sorted."""
    return tuple(sorted(path.parent.name for path in PRESETS_FOLDER.glob(f"*/{CONFIG_FILE}")))


def load_model_spec(source: str) -> ModelSpec:
    """Read a model from a preset's name, a `config.json`, or a folder that holds one.

    Raises:
        ModelSpecError: no such preset or file, not JSON, an architecture that is not supported, or
            a field that is missing, of the wrong type or out of range; the message names it.
    """
    if source in preset_names():
        return _read(PRESETS_FOLDER / source / CONFIG_FILE, source)
    path = find_file(source, inside=CONFIG_FILE)
    if path is not None:
        return _read(path, path.resolve().parent.name if path.name == CONFIG_FILE else path.stem)
    raise _unknown_source(source)


def parse_model_spec(fields: dict[str, Any], name: str) -> ModelSpec:
    """Turn the fields of a Hugging Face config into a `ModelSpec` called `name`.

    Raises:
        ModelSpecError: as `load_model_spec`.
    """
    reader = _FAMILIES.get(_model_type(fields, name))
    if reader is None:
        kind = fields.get("model_type", fields.get("architectures"))
        raise ModelSpecError(
            f"model {name!r} has architecture {kind!r}, which is not supported", _supported()
        )
    try:
        spec = ModelSpec(name=name, **reader(_Fields(fields, name)))
    except ValidationError as error:
        first = error.errors()[0]
        field = ".".join(str(part) for part in first["loc"])
        raise ModelSpecError(f"model {name!r}: {field}: {first['msg']}") from None
    _check_shape(spec)
    return spec


def supported_model_types() -> tuple[str, ...]:
    """Values of `model_type` that can be read."""
    return tuple(_FAMILIES)


def _supported() -> str:
    return "supported model_type values: " + ", ".join(supported_model_types())


def _unknown_source(source: str) -> ModelSpecError:
    if "/" in source or source.endswith(".json"):
        return ModelSpecError(
            f"model file {source!r} does not exist",
            f"give a config.json, its folder, or a preset: {', '.join(preset_names())}",
        )
    return ModelSpecError(
        f"there is no model preset or file {source!r}",
        f"{did_you_mean(source, preset_names())}presets: {', '.join(preset_names())}",
    )


def _read(path: Path, name: str) -> ModelSpec:
    try:
        fields = json.loads(path.read_text(encoding="utf-8"))
    except OSError as error:
        raise ModelSpecError(f"model file {str(path)!r} cannot be read: {error.strerror}") from None
    except (ValueError, RecursionError) as error:  # ValueError: not JSON, or not UTF-8
        raise ModelSpecError(f"model file {str(path)!r} is not JSON: {error}") from None
    if not isinstance(fields, dict):
        raise ModelSpecError(f"model file {str(path)!r} must hold one JSON object")
    return parse_model_spec(fields, name)


def _model_type(fields: dict[str, Any], name: str) -> str:
    kind = fields.get("model_type")
    if isinstance(kind, str):
        return kind
    architectures = fields.get("architectures")
    for architecture in architectures if isinstance(architectures, list) else []:
        if architecture in _ARCHITECTURES:
            return _ARCHITECTURES[architecture]
    if kind is None and not architectures:
        raise ModelSpecError(f"model {name!r} has no field model_type", _supported())
    return ""


class _Fields:
    """The fields of a config file, with errors that name them."""

    def __init__(self, fields: dict[str, Any], name: str) -> None:
        self._fields = fields
        self._name = name

    def _get(self, names: tuple[str, ...], kind: str, default: Any) -> tuple[str, Any]:
        found = next((name for name in names if name in self._fields), None)
        if found is not None:
            return found, self._fields[found]
        if default is _REQUIRED:
            raise ModelSpecError(f"model {self._name!r} lacks the field {names[0]} ({kind})")
        return names[0], default

    def _wrong(self, field: str, value: Any, wanted: str) -> ModelSpecError:
        return ModelSpecError(f"model {self._name!r}: {field} is {value!r}, must be {wanted}")

    def size(self, *names: str, default: Any = _REQUIRED) -> int:
        """A whole number of at least 1."""
        field, value = self._get(names, "a positive integer", default)
        if isinstance(value, bool) or not isinstance(value, int) or value < 1:
            raise self._wrong(field, value, "a positive integer")
        return value

    def optional_size(self, *names: str, default: int | None = None) -> int | None:
        """As `size`, but null or absent means the default of the architecture."""
        field, value = self._get(names, "a positive integer", default)
        return None if value is None else self.size(field, default=value)

    def number(self, *names: str, default: float) -> float:
        """A positive number."""
        field, value = self._get(names, "a positive number", default)
        is_number = isinstance(value, int | float) and not isinstance(value, bool)
        if not is_number or not 0 < value < math.inf:
            raise self._wrong(field, value, "a positive number")
        return float(value)

    def flag(self, name: str, *, default: bool) -> bool:
        """True or false."""
        _, value = self._get((name,), "true or false", default)
        if not isinstance(value, bool):
            raise self._wrong(name, value, "true or false")
        return value

    def require(self, name: str, allowed: tuple[Any, ...]) -> None:
        """Refuse a value that would make a model which the kernel does not build."""
        if name in self._fields and self._fields[name] not in allowed:
            legal = " or ".join(json.dumps(value) for value in allowed)
            raise self._wrong(name, self._fields[name], f"{legal}; other values are not supported")

    def rope_theta(self, default: float) -> float:
        """Base of the rotary frequencies; newer files keep it inside `rope_parameters`."""
        nested = self._fields.get("rope_parameters")
        if isinstance(nested, dict) and "rope_theta" in nested:
            return _Fields(nested, self._name).number("rope_theta", default=default)
        return self.number("rope_theta", default=default)


def _gpt2(fields: _Fields) -> dict[str, Any]:
    fields.require("activation_function", _GELUS)
    fields.require("scale_attn_weights", (True,))
    fields.require("scale_attn_by_inverse_layer_idx", (False,))
    fields.require("add_cross_attention", (False,))
    hidden = fields.size("n_embd", "hidden_size")
    num_heads = fields.size("n_head", "num_attention_heads")
    return {
        "family": "gpt2",
        "num_layers": fields.size("n_layer", "num_hidden_layers"),
        "hidden_size": hidden,
        "num_heads": num_heads,
        "num_kv_heads": num_heads,
        "head_dim": max(1, hidden // num_heads),
        "ffn_size": fields.optional_size("n_inner") or 4 * hidden,
        "vocab_size": fields.size("vocab_size"),
        "max_positions": fields.size("n_positions", "max_position_embeddings", default=1024),
        "tied_embeddings": fields.flag("tie_word_embeddings", default=True),
        "norm_eps": fields.number("layer_norm_epsilon", default=1e-5),
    }


def _rotary(
    fields: _Fields, *, max_positions: int, eps: float, theta: float, kv_heads: int | None = None
) -> dict[str, Any]:
    """What Llama and its descendants share; the arguments are the defaults that differ."""
    fields.require("hidden_act", _SILUS)
    hidden = fields.size("hidden_size")
    num_heads = fields.size("num_attention_heads")
    return {
        "family": "llama",
        "num_layers": fields.size("num_hidden_layers"),
        "hidden_size": hidden,
        "num_heads": num_heads,
        "num_kv_heads": fields.optional_size("num_key_value_heads", default=kv_heads) or num_heads,
        "head_dim": fields.optional_size("head_dim") or max(1, hidden // num_heads),
        "ffn_size": fields.size("intermediate_size"),
        "vocab_size": fields.size("vocab_size"),
        "max_positions": fields.size("max_position_embeddings", default=max_positions),
        "tied_embeddings": fields.flag("tie_word_embeddings", default=False),
        "norm_eps": fields.number("rms_norm_eps", default=eps),
        "rope_theta": fields.rope_theta(theta),
    }


def _llama(fields: _Fields) -> dict[str, Any]:
    fields.require("attention_bias", (False,))
    fields.require("mlp_bias", (False,))
    return _rotary(fields, max_positions=2048, eps=1e-6, theta=10000.0)


def _mistral(fields: _Fields) -> dict[str, Any]:
    shape = _rotary(fields, max_positions=131072, eps=1e-6, theta=10000.0, kv_heads=8)
    return shape | {"sliding_window": fields.optional_size("sliding_window", default=4096)}


def _qwen2(fields: _Fields) -> dict[str, Any]:
    shape = _rotary(fields, max_positions=32768, eps=1e-6, theta=10000.0, kv_heads=32)
    windowed = fields.flag("use_sliding_window", default=False)
    window = fields.optional_size("sliding_window", default=4096) if windowed else None
    return shape | {"qkv_bias": True, "sliding_window": window}


def _mixtral(fields: _Fields) -> dict[str, Any]:
    shape = _rotary(fields, max_positions=131072, eps=1e-5, theta=1e6, kv_heads=8)
    return shape | {
        "family": "mixtral",
        "num_experts": fields.size("num_local_experts", default=8),
        "experts_per_token": fields.size("num_experts_per_tok", default=2),
        "sliding_window": fields.optional_size("sliding_window"),
    }


_FAMILIES: Final[dict[str, Callable[[_Fields], dict[str, Any]]]] = {
    "gpt2": _gpt2,
    "llama": _llama,
    "mistral": _mistral,
    "qwen2": _qwen2,
    "mixtral": _mixtral,
}
_ARCHITECTURES: Final = {
    "GPT2LMHeadModel": "gpt2",
    "LlamaForCausalLM": "llama",
    "MistralForCausalLM": "mistral",
    "Qwen2ForCausalLM": "qwen2",
    "MixtralForCausalLM": "mixtral",
}


def _check_shape(spec: ModelSpec) -> None:
    """Refuse shapes that no attention can have."""
    if spec.family == "gpt2" and spec.hidden_size % spec.num_heads:
        problem = f"n_head {spec.num_heads} does not divide n_embd {spec.hidden_size}"
    elif spec.num_heads % spec.num_kv_heads:
        problem = (
            f"num_key_value_heads {spec.num_kv_heads} does not divide "
            f"num_attention_heads {spec.num_heads}"
        )
    elif spec.family != "gpt2" and spec.head_dim % 2:
        problem = f"head_dim {spec.head_dim} is odd, but rotary positions turn pairs"
    elif spec.experts_per_token > spec.num_experts:
        problem = (
            f"num_experts_per_tok {spec.experts_per_token} exceeds "
            f"num_local_experts {spec.num_experts}"
        )
    else:
        return
    raise ModelSpecError(f"model {spec.name!r}: {problem}")
