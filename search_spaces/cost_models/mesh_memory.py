"""What 2D and 2.5D tensor parallelism of the tuner's kernel hold besides weights and activations.

Panels travel by all-gathers and reduce-scatters (`gather` of `trainer/parallel/panels.py`), so that
`q` blocks of each operand and of each result are in memory. Four buffers stay from the first step
on, each as large as the largest product of a layer needs it: the left operand's (activations), the
right one's (weights), the sums of the activations' gradients and those of the weights'.
"""

from functools import reduce
from typing import NamedTuple

import numpy as np

from search_spaces.cost_models.parameters import mesh_side
from search_spaces.cost_models.points import LAYOUT_1D, LAYOUT_25D, Column, Points


class MeshBuffers(NamedTuple):
    """Bytes of one rank that panels take; zero for the 1D layout."""

    held: Column
    """The four buffers, which are there at every moment."""
    at_loss: Column
    """Panels of the projection to the vocabulary, its gradient in fp32 and what sends it."""
    in_backward: Column
    """The most that a product's two gradients need besides."""
    summed: Column
    """Per parameter of the rank: the copy in which gradients are summed over the depth."""


NO_MESH = MeshBuffers(0.0, 0.0, 0.0, 0.0)


def has_mesh(points: Points) -> bool:
    """Whether any of the points lays tensor-parallel ranks out as a mesh."""
    return bool(np.any(np.asarray(points.tp_layout) != LAYOUT_1D))


def activation_spread(points: Points) -> Column:
    """Ranks over which every vector of hidden size is split by the layout: all of a mesh."""
    if not has_mesh(points):
        return 1.0
    return np.where(np.asarray(points.tp_layout) == LAYOUT_1D, 1.0, points.tp)


def mesh_buffers(points: Points, block_bytes: Column, *, is_cpu: bool) -> MeshBuffers:
    """Of one rank; `block_bytes` is what the logits of a block of the loss take at most.

    gloo (`is_cpu`) sums after an all-to-all, which receives into a buffer as large as what is sent.
    """
    if not has_mesh(points):
        return NO_MESH
    is_1d = np.asarray(points.tp_layout) == LAYOUT_1D
    training, size = np.asarray(points.is_training), points.dtype_bytes
    side = mesh_side(points)
    tokens = points.tokens * side / points.tp  # of this rank's row
    products = _products(points)
    panels = [tokens * width for width, _ in products], [weight / side for _, weight in products]
    widest, heaviest = (reduce(np.maximum, column) for column in panels)
    needs = [
        _two_gradients(x, weight, side, is_cpu=is_cpu) for x, weight in zip(*panels, strict=True)
    ]
    held = (1.0 + training) * size * (widest + heaviest)
    parts = {
        "held": held,
        "at_loss": _at_loss(points, side, tokens, block_bytes, is_cpu=is_cpu),
        "in_backward": training * size * reduce(np.maximum, needs),
        "summed": _summed(points),
    }
    return MeshBuffers(**{name: np.where(is_1d, 0.0, part) for name, part in parts.items()})


def _products(points: Points) -> list[tuple[Column, Column]]:
    """Input width and weights of a layer's four products, of all ranks."""
    hidden, width = points.hidden_size, points.num_heads * points.head_dim
    key_value = points.num_kv_heads * points.head_dim
    return [
        (hidden, hidden * (width + 2.0 * key_value)),
        (width, hidden * width),
        (hidden, (1.0 + points.gated) * hidden * points.ffn_size),
        (points.ffn_size, hidden * points.ffn_size),
    ]


def _two_gradients(x: Column, weight: Column, side: Column, *, is_cpu: bool) -> Column:
    """What makes the gradients of a product, of which panels of `x` and of the weight are known.

    The input's is on its way while the weight's is made, and is then summed into a tensor that on
    CPU is resident only from there on.
    """
    if not is_cpu:
        return (x + weight) / side
    return x + np.maximum(weight + weight / side, x / side)


def _at_loss(
    points: Points, side: Column, tokens: Column, block_bytes: Column, *, is_cpu: bool
) -> Column:
    training, size = np.asarray(points.is_training), points.dtype_bytes
    is_half = np.asarray(points.dtype_bytes) < 4
    weight = points.vocab_size * points.hidden_size / side
    block = np.minimum(tokens, block_bytes * side / (4.0 * points.vocab_size))
    x = size * block * points.hidden_size
    copies = 2.0 if is_cpu else 1.0
    # the input's gradient block by block; the weight's at the end, when the last block still lives
    sent = size * weight * (is_half + (copies - 1.0) + 1.0 / side)
    return size * weight + x + training * (4.0 * weight + np.maximum(copies * x, sent))


def _summed(points: Points) -> Column:
    deep = (np.asarray(points.tp_layout) == LAYOUT_25D) & (np.asarray(points.tp_depth) > 1)
    shards = np.where(np.asarray(points.zero_stage) >= 1, points.shards, 1.0)
    return np.where(deep, 4.0 * np.asarray(points.is_training) / shards, 0.0)
