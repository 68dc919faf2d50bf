"""The parameters of each part of a model, as layout-independent descriptions.

Query, key and value are one fused matrix with rows `[queries | keys | values]`, gate and up one
with rows `[gate | up]`: one large product instead of two or three small ones.
"""

import math
from collections.abc import Iterable

from search_spaces.model_spec import ModelSpec
from trainer.model.parameters import ROUTER, ROW_BIAS, ParameterSpec, Part

_STD = 0.02  # of every weight, GPT-2 (Radford et al. 2019, section 2.3)
TOKEN_EMBEDDING = "token_embedding"  # noqa: S105 -- no password
POSITION_EMBEDDING = "position_embedding"
HEAD = "head"


def hidden(model: ModelSpec) -> tuple[Part, ...]:
    """The model's width, as a dimension of a parameter."""
    return (Part("hidden", model.hidden_size),)


def embedding_specs(model: ModelSpec) -> list[ParameterSpec]:
    """Token embedding; also the head's weight where the two are tied."""
    return [
        ParameterSpec(TOKEN_EMBEDDING, ((Part("vocab", model.vocab_size),), hidden(model)), _STD)
    ]


def position_specs(model: ModelSpec) -> list[ParameterSpec]:
    """Learned positions, where the family has them."""
    if model.family != "gpt2":
        return []
    positions = (Part("position", model.max_positions),)
    return [ParameterSpec(POSITION_EMBEDDING, (positions, hidden(model)), _STD)]


def head_specs(model: ModelSpec) -> list[ParameterSpec]:
    """Projection to the vocabulary: the token embedding itself when tied."""
    if model.tied_embeddings:
        return embedding_specs(model)
    return [ParameterSpec(HEAD, ((Part("vocab", model.vocab_size),), hidden(model)), _STD)]


def norm_specs(model: ModelSpec, name: str) -> list[ParameterSpec]:
    """Scale, and for LayerNorm shift."""
    specs = [ParameterSpec(f"{name}.weight", (hidden(model),), constant=1.0)]
    if model.family == "gpt2":
        specs.append(ParameterSpec(f"{name}.bias", (hidden(model),)))
    return specs


def attention_specs(model: ModelSpec, prefix: str) -> list[ParameterSpec]:
    """Fused query-key-value projection and output projection."""
    dim = model.head_dim
    queries = Part("heads", model.num_heads * dim, dim)
    keys = Part("kv_heads", model.num_kv_heads * dim, dim)
    fused = (queries, keys, keys)
    specs = [
        ParameterSpec(f"{prefix}.qkv.weight", (fused, hidden(model)), _STD),
        ParameterSpec(f"{prefix}.out.weight", (hidden(model), (queries,)), _output_std(model)),
    ]
    if model.family == "gpt2" or model.qkv_bias:
        specs.append(ParameterSpec(f"{prefix}.qkv.bias", (fused,)))
    if model.family == "gpt2":
        specs.append(ParameterSpec(f"{prefix}.out{ROW_BIAS}", (hidden(model),)))
    return specs


def feed_forward_specs(model: ModelSpec, prefix: str) -> list[ParameterSpec]:
    """Up (with gate, for the Llama family) and down projections."""
    width = Part("ffn", model.ffn_size)
    rows = (width,) if model.family == "gpt2" else (width, width)
    specs = [
        ParameterSpec(f"{prefix}.up.weight", (rows, hidden(model)), _STD),
        ParameterSpec(f"{prefix}.down.weight", (hidden(model), (width,)), _output_std(model)),
    ]
    if model.family == "gpt2":
        specs.append(ParameterSpec(f"{prefix}.up.bias", (rows,)))
        specs.append(ParameterSpec(f"{prefix}.down{ROW_BIAS}", (hidden(model),)))
    return specs


def router_specs(model: ModelSpec, prefix: str) -> list[ParameterSpec]:
    """Scores of the experts from a token's vector."""
    rows = (Part("expert", model.num_experts),)
    return [ParameterSpec(prefix + ROUTER, (rows, hidden(model)), _STD)]


def expert_specs(model: ModelSpec, index: int, experts: Iterable[int]) -> list[ParameterSpec]:
    """Parameters of some experts of one layer; each is a dense feed-forward block."""
    prefix = f"{layer_prefix(index)}.feed_forward"
    return [
        spec
        for expert in experts
        for spec in feed_forward_specs(model, expert_prefix(prefix, expert))
    ]


def shared_layer_specs(model: ModelSpec, index: int) -> list[ParameterSpec]:
    """All parameters of one decoder layer but those of its experts."""
    prefix = layer_prefix(index)
    feed_forward = router_specs if model.num_experts else feed_forward_specs
    return [
        *norm_specs(model, f"{prefix}.norm1"),
        *attention_specs(model, f"{prefix}.attention"),
        *norm_specs(model, f"{prefix}.norm2"),
        *feed_forward(model, f"{prefix}.feed_forward"),
    ]


def layer_specs(model: ModelSpec, index: int) -> list[ParameterSpec]:
    """All parameters of one decoder layer."""
    experts = expert_specs(model, index, range(model.num_experts))
    return shared_layer_specs(model, index) + experts


def final_norm_specs(model: ModelSpec) -> list[ParameterSpec]:
    """Norm before the head."""
    return norm_specs(model, "final_norm")


def layer_prefix(index: int) -> str:
    """Start of the names of one layer's parameters."""
    return f"layers.{index}"


def expert_prefix(prefix: str, expert: int) -> str:
    """Start of the names of one expert's parameters, in a layer's feed-forward part."""
    return f"{prefix}.experts.{expert}"


def _output_std(model: ModelSpec) -> float:
    """Residual branches are scaled down by the root of their number (GPT-2)."""
    return _STD / math.sqrt(2 * model.num_layers)
