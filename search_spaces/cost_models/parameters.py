"""Parameters that one rank holds, by part of the model."""

import numpy as np

from search_spaces.cost_models.points import Column, Points


def dense_layer_parameters(points: Points) -> Column:
    """Parameters of one decoder layer outside its experts, over all ranks."""
    hidden = points.hidden_size
    query = points.num_heads * points.head_dim
    key_value = points.num_kv_heads * points.head_dim
    attention = 2.0 * hidden * query + 2.0 * hidden * key_value
    norms = 2.0 * hidden * (1.0 + points.biased)
    biases = points.biased * (query + 2.0 * key_value + 2.0 * hidden + points.ffn_size)
    is_dense = np.asarray(points.num_experts) < 1
    mlp = np.where(is_dense, feed_forward_parameters(points), points.num_experts * hidden)
    return attention + norms + biases + mlp


def feed_forward_parameters(points: Points) -> Column:
    """Parameters of one feed-forward block (of one expert in a mixture)."""
    return (2.0 + points.gated) * points.hidden_size * points.ffn_size


def expert_layer_parameters(points: Points) -> Column:
    """Parameters of one layer's experts over all ranks; 0 in a dense model."""
    return points.num_experts * feed_forward_parameters(points)


def embedding_parameters(points: Points) -> Column:
    """Parameters of the token and position tables."""
    return (points.vocab_size + points.learned_positions) * points.hidden_size


def head_parameters(points: Points) -> Column:
    """Parameters of the output projection when it is not the embedding."""
    return (1.0 - points.tied) * points.vocab_size * points.hidden_size
