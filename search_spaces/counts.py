"""Counting: parameters of a model and floating-point operations of one optimizer step.

**The declared FLOP formula.** A multiply-add is 2 operations, and matrix products alone are counted
(no norms, activations, softmax, rotary positions, loss, optimizer). One forward pass over a token
costs, with `h` = hidden size, `a` = heads x head dim, `k` = KV heads x head dim, `s` = sequence
length, `f` = feed-forward size and `V` = vocabulary:

```
layer:  2 h (a + 2 k) + 2 a h          query, key, value and output projections
      + 4 s a                          scores and weighted values, the full s x s square
      + 4 h f | 6 h f                  feed-forward: two matrices (GPT-2) | three (Llama)
              | 6 h f e + 2 h E        Mixtral: the e experts a token visits, and its router
head:   2 h V                          once per model, tied or not
```

Backward costs twice the forward, so a training step costs three forwards and an inference step
one. Attention is counted as the **full square**, without halving for the causal mask, as in
Megatron-LM (arXiv 2104.04473, equation 3, without its fourth pass for recomputation) and in PaLM
(arXiv 2204.02311, appendix B); kernels that skip masked blocks thus gain utilisation. For GPT-2
shapes the step equals `72 B s l h^2 (1 + s / (6 h) + V / (12 l h))`.

**Model FLOPs** leave recomputation out, so that no configuration looks better by repeating work;
**hardware FLOPs** add it (arXiv 2205.05198, appendix A).
"""

from dataclasses import dataclass
from functools import lru_cache

from search_spaces.layers import stage_layer_counts
from search_spaces.model_spec import ModelSpec
from search_spaces.parallel_config import ParallelConfig
from search_spaces.training_spec import TrainingSpec

BACKWARD_OVER_FORWARD = 2
"""FLOPs of the backward pass in forward passes: gradients of the inputs and of the weights."""


@dataclass(frozen=True)
class LayerCounts:
    """Parameters of one decoder layer, by part."""

    attention: int
    feed_forward: int
    router: int
    norms: int

    @property
    def total(self) -> int:
        """All parameters of the layer."""
        return self.attention + self.feed_forward + self.router + self.norms


def attention_parameters(model: ModelSpec) -> int:
    """Projections of one layer's attention, with their biases."""
    hidden, query = model.hidden_size, model.num_heads * model.head_dim
    key_value = model.num_kv_heads * model.head_dim
    weights = hidden * (query + 2 * key_value) + query * hidden
    if model.family == "gpt2":
        return weights + query + 2 * key_value + hidden
    return weights + (query + 2 * key_value if model.qkv_bias else 0)


def expert_parameters(model: ModelSpec) -> int:
    """One feed-forward block: the layer's only one, or one expert of a mixture."""
    hidden, ffn = model.hidden_size, model.ffn_size
    if model.family == "gpt2":
        return 2 * hidden * ffn + ffn + hidden
    return 3 * hidden * ffn


def layer_counts(model: ModelSpec) -> LayerCounts:
    """Parameters of one decoder layer, by part; all layers of a model are equal."""
    num_blocks = max(1, model.num_experts)
    return LayerCounts(
        attention=attention_parameters(model),
        feed_forward=num_blocks * expert_parameters(model),
        router=model.num_experts * model.hidden_size,
        norms=2 * norm_parameters(model),
    )


def norm_parameters(model: ModelSpec) -> int:
    """One normalisation: scale, and shift where the family has one. The final norm is one such."""
    return model.hidden_size * (2 if model.family == "gpt2" else 1)


def layer_parameters(model: ModelSpec) -> int:
    """Parameters of one decoder layer."""
    return layer_counts(model).total


def embedding_parameters(model: ModelSpec) -> int:
    """Token embedding, and learned positions where the family has them."""
    positions = model.max_positions if model.family == "gpt2" else 0
    return (model.vocab_size + positions) * model.hidden_size


def head_parameters(model: ModelSpec) -> int:
    """Output projection to the vocabulary; none of its own when tied to the token embedding."""
    return 0 if model.tied_embeddings else model.vocab_size * model.hidden_size


@lru_cache(maxsize=256)
def num_parameters(model: ModelSpec) -> int:
    """Distinct parameters of the model; equal to the published counts to the last digit."""
    layers = model.num_layers * layer_parameters(model)
    return embedding_parameters(model) + layers + norm_parameters(model) + head_parameters(model)


def num_active_parameters(model: ModelSpec) -> int:
    """Parameters that one token visits: all of them, but of the experts only the routed ones."""
    idle = max(0, model.num_experts - model.experts_per_token)
    return num_parameters(model) - model.num_layers * idle * expert_parameters(model)


def attention_core_flops_per_token(model: ModelSpec, sequence_length: int) -> float:
    """Forward FLOPs of scores and weighted values of one layer, full square (no causal halving)."""
    return 4.0 * sequence_length * model.num_heads * model.head_dim


def layer_flops_per_token(model: ModelSpec, sequence_length: int) -> float:
    """Forward FLOPs of one decoder layer for one token."""
    hidden, query = model.hidden_size, model.num_heads * model.head_dim
    key_value = model.num_kv_heads * model.head_dim
    projections = 2.0 * hidden * (query + 2 * key_value) + 2.0 * query * hidden
    matrices = 2 if model.family == "gpt2" else 3
    num_visited = max(1, model.experts_per_token)
    feed_forward = 2.0 * matrices * hidden * model.ffn_size * num_visited
    router = 2.0 * hidden * model.num_experts
    core = attention_core_flops_per_token(model, sequence_length)
    return projections + core + feed_forward + router


def head_flops_per_token(model: ModelSpec) -> float:
    """Forward FLOPs of the projection to the vocabulary for one token."""
    return 2.0 * model.hidden_size * model.vocab_size


@lru_cache(maxsize=256)
def model_flops_per_step(model: ModelSpec, training: TrainingSpec) -> float:
    """FLOPs that one step of the global batch needs, recomputation not counted.

    Three forwards for training, one for inference; see the module's text for the formula.
    """
    layers = model.num_layers * layer_flops_per_token(model, training.sequence_length)
    per_token = layers + head_flops_per_token(model)
    passes = 1 if training.workload == "inference" else 1 + BACKWARD_OVER_FORWARD
    return per_token * training.tokens_per_step * passes


def num_recomputed_layers(model: ModelSpec, config: ParallelConfig) -> int:
    """Layers whose forward is run again in the backward pass, over all stages."""
    if config.recompute == "none":
        return 0
    stages = stage_layer_counts(model.num_layers, config)
    limit = config.recompute_layers
    return sum(stages if limit is None else (min(limit, layers) for layers in stages))


def recompute_flops_per_step(
    model: ModelSpec, training: TrainingSpec, config: ParallelConfig
) -> float:
    """FLOPs of the repeated forwards of one step: whole layers, or their attention core alone."""
    if training.workload == "inference":
        return 0.0
    length = training.sequence_length
    per_token = (
        attention_core_flops_per_token(model, length)
        if config.recompute == "selective"
        else layer_flops_per_token(model, length)
    )
    return per_token * num_recomputed_layers(model, config) * training.tokens_per_step


def hardware_flops_per_step(
    model: ModelSpec, training: TrainingSpec, config: ParallelConfig
) -> float:
    """FLOPs that one step really runs: the model's, plus what recomputation repeats."""
    extra = recompute_flops_per_step(model, training, config)
    return model_flops_per_step(model, training) + extra
