"""The model that Megatron's flags describe."""

from pydantic import ValidationError

from search_spaces.model_spec import ModelSpec
from tuner.baselines.flags import Flags
from tuner.errors import ConfigError

_GPT2_VOCABULARY = 50257
_TOKENIZERS = {"GPT2BPETokenizer": _GPT2_VOCABULARY}
_NAMES_A_MODEL = "or name the model with --model"


def model_of(flags: Flags, name: str) -> ModelSpec:
    """The model of a Megatron file: GPT-2's kind, or Llama's where it has RMSNorm or SwiGLU.

    Raises:
        ConfigError: a size is missing.
    """
    hidden = _needed(flags, "hidden-size")
    heads = _needed(flags, "num-attention-heads")
    is_llama = flags.has("swiglu") or (flags.text("normalization") or "").lower() == "rmsnorm"
    experts = flags.count("num-experts") or 0
    grouped = flags.count("num-query-groups") if flags.has("group-query-attention") else None
    window = flags.text("window-size")
    usual = int(8 * hidden / 3 / 64) * 64 if flags.has("swiglu") else 4 * hidden
    shape = {
        "name": name,
        "family": "mixtral" if experts else "llama" if is_llama else "gpt2",
        "num_layers": _needed(flags, "num-layers"),
        "hidden_size": hidden,
        "num_heads": heads,
        "num_kv_heads": grouped or flags.count("num-key-value-heads") or heads,
        "head_dim": flags.count("kv-channels") or hidden // heads,
        "ffn_size": (flags.count("moe-ffn-hidden-size") if experts else None)
        or flags.count("ffn-hidden-size")
        or usual,
        "vocab_size": _vocabulary(flags),
        "max_positions": flags.count("max-position-embeddings") or _needed(flags, "seq-length"),
        "tied_embeddings": not flags.has("untie-embeddings-and-output-weights"),
        "qkv_bias": is_llama and flags.has("add-qkv-bias"),
        "num_experts": experts,
        "experts_per_token": (flags.count("moe-router-topk", "topk") or 2) if experts else 0,
        "sliding_window": int(window.strip("(").split(",")[0]) + 1 if window else None,
        "norm_eps": flags.number("norm-epsilon", "layernorm-epsilon", default=1e-5),
        "rope_theta": flags.number(
            "rotary-base", "rotary-position-embeddings-theta", default=10000.0
        ),
    }
    try:
        return ModelSpec.model_validate(shape)
    except ValidationError as error:
        first = error.errors()[0]
        raise ConfigError(
            f"the model of the Megatron file: {'.'.join(map(str, first['loc']))}: {first['msg']}",
            hint=_NAMES_A_MODEL.removeprefix("or "),
        ) from None


def _needed(flags: Flags, name: str) -> int:
    found = flags.count(name)
    if found is None:
        raise ConfigError(f"the Megatron file has no --{name}", f"add it, {_NAMES_A_MODEL}")
    return found


def _vocabulary(flags: Flags) -> int:
    found = flags.count("vocab-size", "padded-vocab-size")
    found = found or _TOKENIZERS.get(flags.text("tokenizer-type") or "")
    if found is None:
        raise ConfigError(
            "the Megatron file does not say the size of the vocabulary",
            hint=f"add --vocab-size N, {_NAMES_A_MODEL}",
        )
    return found
