"""`ModelSpec`: the shape of a decoder-only transformer, and what follows from it by counting."""

from typing import Literal

from pydantic import BaseModel, ConfigDict, Field

Family = Literal["gpt2", "llama", "mixtral"]


class ModelSpec(BaseModel):
    """A decoder-only model. GPT-2 style when `family="gpt2"`, else Llama style (Mixtral adds MoE).

    `gpt2`: learned positions, LayerNorm, GELU, biases. `llama` (also Mistral and Qwen): rotary
    positions, RMSNorm, gated SiLU, no biases except `qkv_bias` (Qwen2). `mixtral`: Llama whose
    feed-forward is `num_experts` experts of which each token visits `experts_per_token`.
    """

    model_config = ConfigDict(frozen=True, extra="forbid", strict=True)

    name: str
    family: Family
    num_layers: int = Field(ge=1)
    hidden_size: int = Field(ge=1)
    num_heads: int = Field(ge=1)
    num_kv_heads: int = Field(ge=1)
    head_dim: int = Field(ge=1)
    ffn_size: int = Field(ge=1)
    vocab_size: int = Field(ge=1)
    max_positions: int = Field(ge=1)
    tied_embeddings: bool = False
    qkv_bias: bool = False
    num_experts: int = Field(default=0, ge=0)
    experts_per_token: int = Field(default=0, ge=0)
    sliding_window: int | None = Field(
        default=None, ge=1, description="attention reaches back this many tokens; none = all"
    )
    norm_eps: float = 1e-5
    rope_theta: float = 10000.0
