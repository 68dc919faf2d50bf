"""Work of one rank, computed once for all points that share it.

A space of a million points holds a few thousand kinds of layer: the work of a layer does not depend
on the number of replicas, stages or micro-batches.
"""

from dataclasses import fields

import numpy as np
from numpy.typing import NDArray

from search_spaces.cost_models.constants import Constants
from search_spaces.cost_models.hardware import Hardware
from search_spaces.cost_models.head import EndTimes, end_times
from search_spaces.cost_models.layer import (
    LayerTimes,
    layer_times,
    messages_cross_nodes,
    recomputed_share,
)
from search_spaces.cost_models.points import Column, Points

IRRELEVANT = frozenset(
    {
        "num_layers", "global_batch_size", "dp", "pp", "virtual_stages", "schedule", "zero_stage",
        "shard_degree", "recompute_layers", "reduce_bytes", "gradient_bytes", "offload",
        "first_layers", "middle_layers", "last_layers", "optimizer_states", "tied", "biased",
        "learned_positions",
    }
)  # fmt: skip
"""Columns that the work of a layer and of the model's ends does not depend on."""
SMALLEST = 512
"""Fewer points than this are computed one by one."""
MIXER = 0x9E3779B97F4A7C15


def work_times(
    points: Points, hardware: Hardware, constants: Constants
) -> tuple[LayerTimes, EndTimes]:
    """Times of a layer and of the model's ends for all points."""
    recomputed = recomputed_share(points)
    crossing = messages_cross_nodes(points, hardware)
    kinds = _kinds(points, recomputed, crossing) if points.size >= SMALLEST else None
    if kinds is None:
        layer = layer_times(points, hardware, constants, recomputed, crossing)
        return layer, end_times(points, hardware, constants)
    first, kind = kinds
    size = (points.size,)
    few = points.take(first)
    layer = layer_times(
        few,
        hardware,
        constants,
        np.broadcast_to(recomputed, size)[first],
        np.broadcast_to(crossing, size)[first],
    )
    spread = {f.name: _spread(getattr(layer, f.name), kind) for f in fields(LayerTimes)}
    ends = end_times(few, hardware, constants)
    return LayerTimes(**spread), EndTimes(*(_spread(column, kind) for column in ends))


def _spread(column: Column, kind: NDArray[np.intp]) -> Column:
    """Every point's entry of a column by kind; candidates of a fit may lie along a first axis."""
    is_one = np.ndim(column) == 0 or np.shape(column)[-1] == 1
    return column if is_one else np.asarray(column)[..., kind]


def _kinds(
    points: Points, recomputed: Column, crossing: Column
) -> tuple[NDArray[np.intp], NDArray[np.intp]] | None:
    """Index of one point of each kind, and the kind of each point; none when kinds are many.

    Points are told apart by a 64-bit hash of their columns, and compared to be sure.
    """
    names = [f.name for f in fields(Points) if f.name not in IRRELEVANT]
    columns = [getattr(points, name) for name in names] + [recomputed, crossing]
    columns = [column for column in columns if np.ndim(column)]
    key = np.zeros(points.size, dtype=np.uint64)
    for column in columns:
        bits = np.ascontiguousarray(column, dtype=np.float64).view(np.uint64)
        key = (key ^ (bits + (bits >> np.uint64(29)))) * np.uint64(MIXER)
        key ^= key >> np.uint64(32)
    _, first, kind = np.unique(key, return_index=True, return_inverse=True)
    if 2 * len(first) > points.size:
        return None
    same = all(np.array_equal(column, column[first][kind]) for column in columns)
    return (first, kind) if same else None
