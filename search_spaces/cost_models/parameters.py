"""Parameters that one rank holds, by part of the model."""

from typing import NamedTuple

import numpy as np

from search_spaces.cost_models.points import LAYOUT_1D, Column, Points


def dense_layer_parameters(points: Points) -> Column:
    """Parameters of one decoder layer outside its experts, over all ranks."""
    hidden = points.hidden_size
    query = points.num_heads * points.head_dim
    key_value = points.num_kv_heads * points.head_dim
    attention = 2.0 * hidden * query + 2.0 * hidden * key_value
    is_dense = np.asarray(points.num_experts) < 1
    mlp = np.where(is_dense, feed_forward_parameters(points), points.num_experts * hidden)
    return attention + mlp + layer_vectors(points)


def layer_vectors(points: Points) -> Column:
    """Of these the elements of norms and biases, outside its experts."""
    query = points.num_heads * points.head_dim
    key_value = points.num_kv_heads * points.head_dim
    hidden = points.hidden_size
    norms = 2.0 * hidden * (1.0 + points.biased)
    return norms + points.biased * (query + 2.0 * key_value + 2.0 * hidden + points.ffn_size)


def feed_forward_parameters(points: Points) -> Column:
    """Parameters of one feed-forward block (of one expert in a mixture)."""
    return (2.0 + points.gated) * points.hidden_size * points.ffn_size


def expert_layer_parameters(points: Points) -> Column:
    """Parameters of one layer's experts over all ranks; 0 in a dense model."""
    return points.num_experts * feed_forward_parameters(points)


def head_parameters(points: Points) -> Column:
    """Parameters of the output projection when it is not the embedding."""
    return (1.0 - points.tied) * points.vocab_size * points.hidden_size


class RankShares(NamedTuple):
    """Parameters that one rank holds of every part of the model, if it holds that part."""

    layer: Column
    embedding: Column
    head: Column
    """The output projection; 0 where it is the embedding."""
    copied_head: Column
    """The copy of a tied embedding that the last rank holds when the first is another."""

    def held(self, layers: Column, has_embedding: Column, has_head: Column) -> Column:
        """All that a rank holds with so many layers and the ends it is said to."""
        head = self.head + (1.0 - has_embedding) * self.copied_head
        return layers * self.layer + has_embedding * self.embedding + has_head * head


def matrix_spread(points: Points) -> Column:
    """Ranks over which a matrix is split."""
    if np.all(np.asarray(points.tp_layout) == LAYOUT_1D):
        return points.tp
    is_1d = np.asarray(points.tp_layout) == LAYOUT_1D
    return points.tp * np.where(is_1d, 1.0, 1.0 / np.asarray(points.tp_depth))


def mesh_side(points: Points) -> Column:
    """Rows, and columns, of a mesh of tensor-parallel ranks; 1 for the 1D layout."""
    is_1d = np.asarray(points.tp_layout) == LAYOUT_1D
    return 1.0 if np.all(is_1d) else np.where(is_1d, 1.0, np.sqrt(matrix_spread(points)))


def rank_shares(points: Points) -> RankShares:
    """Shares of every rank; positions are not split over the ranks of a 1D layout.

    Of a mesh it is the first row, which holds the vectors and positions of its columns.
    """
    spread = matrix_spread(points)
    per_layer = dense_layer_parameters(points) + expert_layer_parameters(points) / points.ep
    table = points.vocab_size * points.hidden_size / spread
    side = mesh_side(points)
    return RankShares(
        layer=(per_layer + (side - 1.0) * layer_vectors(points)) / spread,
        embedding=table + points.learned_positions * points.hidden_size / side,
        head=head_parameters(points) / spread,
        copied_head=points.tied * table,
    )
