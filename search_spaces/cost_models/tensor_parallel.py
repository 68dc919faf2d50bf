"""Collectives of a tensor-parallel layer: Megatron 1D, SUMMA 2D and 2.5D."""

from typing import NamedTuple

import numpy as np

from search_spaces.cost_models.collectives import Group, all_reduce_s, group_of, reduce_scatter_s
from search_spaces.cost_models.constants import Constants
from search_spaces.cost_models.hardware import Hardware
from search_spaces.cost_models.points import LAYOUT_1D, Column, Points

BROADCAST_FACTOR = 1.9
"""Optimus' broadcasts against a ring of the same bytes (fitted to its 4 GPUs of one node)."""


class TensorParallelTimes(NamedTuple):
    """Seconds of one layer's tensor-parallel collectives."""

    forward_s: Column
    backward_s: Column


def _sums_1d(points: Points, group: Group) -> Column:
    """Two sums per pass; under sequence parallelism each is a gather and a reduce-scatter."""
    num_bytes = points.tokens * points.hidden_size * points.dtype_bytes
    reduce = all_reduce_s(num_bytes, group)
    scatter = 2.0 * reduce_scatter_s(num_bytes, group)
    return 2.0 * np.where(np.asarray(points.sequence_parallel) > 0, scatter, reduce)


def _panels_2d(points: Points, hardware: Hardware, constants: Constants) -> Column:
    """Panels of activations and of weights of the four linear maps of one forward pass.

    On a mesh of `depth * q * q` a rank meets `inputs * tokens / (depth * q)` elements of
    activations along its row and `weights / q` of weights along its column (Optimus, arXiv
    2104.05343, section 3.1; Tesseract, arXiv 2105.14500). Rows are neighbours; the ranks of a
    column lie `q` apart.
    """
    depth = np.asarray(points.tp_depth)
    side = np.sqrt(points.tp / depth)
    query = points.num_heads * points.head_dim
    wide = points.ffn_size * (1.0 + points.gated)
    inputs = 2.0 * points.hidden_size + query + points.ffn_size
    weights = points.hidden_size * (
        2.0 * query + 2.0 * points.num_kv_heads * points.head_dim + wide + points.ffn_size
    )
    unit = BROADCAST_FACTOR * points.dtype_bytes / side
    row = group_of(side, 1.0, hardware, constants)
    column = group_of(side, side, hardware, constants)
    latency = 8.0 * side * hardware.intra_alpha_s * constants.latency
    moving = reduce_scatter_s(unit * points.tokens / depth * inputs, row)
    return np.where(side > 1, moving + reduce_scatter_s(unit * weights, column) + latency, 0.0)


def tensor_parallel_times(
    points: Points, hardware: Hardware, constants: Constants
) -> TensorParallelTimes:
    """A backward pass of 1D repeats the forward's sums, of 2D it moves twice its panels."""
    group = group_of(points.tp, 1.0, hardware, constants)
    flat = _sums_1d(points, group)
    behind = constants.tensor_exposed * flat
    is_1d = np.asarray(points.tp_layout) == LAYOUT_1D
    if np.all(is_1d):
        return TensorParallelTimes(flat, behind)
    panels = _panels_2d(points, hardware, constants)
    return TensorParallelTimes(np.where(is_1d, flat, panels), np.where(is_1d, behind, 2.0 * panels))
