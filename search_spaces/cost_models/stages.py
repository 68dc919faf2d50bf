"""How layers are dealt to pipeline ranks, and what each rank then holds."""

from typing import NamedTuple

import numpy as np

from search_spaces.cost_models.points import Column, Points


class StageLayers(NamedTuple):
    """Layers of the first, the fullest middle and the last pipeline rank."""

    first: Column
    middle: Column
    last: Column


def stage_layers(points: Points) -> StageLayers:
    """Explicit stages where given, else an even split whose first stages take one layer more."""
    stages = points.pp * points.virtual_stages
    base = np.floor(points.num_layers / stages)
    rest = points.num_layers - base * stages
    chunks = points.virtual_stages

    def held(rank: Column) -> Column:
        """Stages `rank`, `rank + pp`, ... of which the first `rest` are longer."""
        longer = np.clip(np.ceil((rest - rank) / points.pp), 0.0, chunks)
        return np.asarray(base * chunks + longer, dtype=np.float64)

    is_single = np.asarray(points.pp) <= 1
    explicit = np.asarray(points.first_layers) >= 0
    first = np.where(explicit, points.first_layers, held(0.0))
    middle = np.where(explicit, points.middle_layers, held(1.0))
    last = np.where(explicit, points.last_layers, held(points.pp - 1.0))
    return StageLayers(
        first,
        np.where(np.asarray(points.pp) > 2, middle, 0.0),
        np.where(is_single, first, last),
    )
