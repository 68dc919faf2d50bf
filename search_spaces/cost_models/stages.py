"""How layers are dealt to pipeline ranks, and what each rank then holds."""

from typing import NamedTuple

import numpy as np

from search_spaces.cost_models.points import ZBV, Array, Column, Points


class StageLayers(NamedTuple):
    """Layers of the first, the fullest middle and the last pipeline rank."""

    first: Column
    middle: Column
    last: Column


def stage_layers(points: Points) -> StageLayers:
    """Explicit stages where given, else an even split whose middle stages take one layer more.

    Equals `search_spaces.layers.stage_layer_counts`, summed over the virtual stages of a rank.
    """
    stages = points.pp * points.virtual_stages
    base = np.floor(points.num_layers / stages)
    rest = points.num_layers - base * stages
    start = np.floor((stages - rest + 1.0) / 2.0)
    v_shaped = np.asarray(points.schedule) == ZBV
    has_v = bool(np.any(v_shaped))

    def held(rank: Column) -> Array:
        """Layers of a rank: of its stages, those in `start .. start + rest - 1` are longer."""
        end = start + rest - 1.0
        looped = np.floor((end - rank) / points.pp) - np.floor((start - 1.0 - rank) / points.pp)
        if not has_v:
            return np.asarray(base * points.virtual_stages + looped, dtype=np.float64)
        turned = stages - 1.0 - rank
        down, up = (start <= rank) & (rank <= end), (start <= turned) & (turned <= end)
        longer = np.where(v_shaped, np.add(down, up, dtype=np.float64), looped)
        return np.asarray(base * points.virtual_stages + longer, dtype=np.float64)

    is_single = np.asarray(points.pp) <= 1
    last_rank = points.pp - 1.0
    inner = start - points.pp * np.floor(start / points.pp)
    inner = np.where(v_shaped, start, inner) if has_v else inner
    inner = np.clip(inner, 1.0, last_rank - 1.0)
    first, last = held(0.0), held(last_rank)
    middle = np.maximum(held(1.0), held(inner))
    explicit = np.asarray(points.first_layers) >= 0
    if np.any(explicit):
        first = np.where(explicit, points.first_layers, first)
        middle = np.where(explicit, points.middle_layers, middle)
        last = np.where(explicit, points.last_layers, last)
    return StageLayers(
        first,
        np.where(np.asarray(points.pp) > 2, middle, 0.0),
        np.where(is_single, first, last),
    )
