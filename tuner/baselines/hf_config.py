"""A model as the fields of a Hugging Face `config.json`, which a study file can name."""

from typing import Any

from search_spaces.model_spec import ModelSpec

_LLAMA_KEYS = {
    "num_layers": "num_hidden_layers",
    "hidden_size": "hidden_size",
    "num_heads": "num_attention_heads",
    "num_kv_heads": "num_key_value_heads",
    "head_dim": "head_dim",
    "ffn_size": "intermediate_size",
    "vocab_size": "vocab_size",
    "max_positions": "max_position_embeddings",
    "tied_embeddings": "tie_word_embeddings",
    "norm_eps": "rms_norm_eps",
    "rope_theta": "rope_theta",
}


def config_fields(model: ModelSpec) -> dict[str, Any]:
    """Fields from which `search_spaces.model_io.parse_model_spec` makes the same model."""
    if model.family == "gpt2":
        return {
            "model_type": "gpt2",
            "n_layer": model.num_layers,
            "n_embd": model.hidden_size,
            "n_head": model.num_heads,
            "n_inner": model.ffn_size,
            "vocab_size": model.vocab_size,
            "n_positions": model.max_positions,
            "tie_word_embeddings": model.tied_embeddings,
            "layer_norm_epsilon": model.norm_eps,
        }
    fields: dict[str, Any] = {"model_type": _model_type(model)}
    fields |= {key: getattr(model, name) for name, key in _LLAMA_KEYS.items()}
    if model.family == "mixtral":
        fields["num_local_experts"] = model.num_experts
        fields["num_experts_per_tok"] = model.experts_per_token
    if model.sliding_window is not None:
        fields["sliding_window"] = model.sliding_window
        if model.qkv_bias:
            fields["use_sliding_window"] = True
    return fields


def _model_type(model: ModelSpec) -> str:
    if model.family == "mixtral":
        return "mixtral"
    if model.qkv_bias:
        return "qwen2"
    return "mistral" if model.sliding_window is not None else "llama"
