"""Pareto front and hypervolume of points with several costs, all to be minimised."""

import numpy as np
from numpy.typing import ArrayLike, NDArray

from tuner.searchers.knobs import Floats


def pareto_front(costs: ArrayLike) -> NDArray[np.bool_]:
    """Which points no other one dominates: (points, objectives) in, (points,) out.

    A point dominates another when it is nowhere worse and somewhere better; equal points stay.
    """
    table = np.asarray(costs, dtype=float)
    if table.ndim != 2:
        raise ValueError("costs must have the shape (points, objectives)")
    not_worse = (table[:, None, :] <= table[None, :, :]).all(axis=2)
    better = (table[:, None, :] < table[None, :, :]).any(axis=2)
    return np.asarray(~(not_worse & better).any(axis=0))


def hypervolume(costs: ArrayLike, reference: ArrayLike) -> float:
    """Volume that the points dominate below `reference`, exact, by slicing along the last axis.

    Points that are not better than the reference everywhere add nothing.
    """
    limit = np.asarray(reference, dtype=float)
    table = np.asarray(costs, dtype=float).reshape(-1, len(limit))
    table = table[(table < limit).all(axis=1)]
    return _volume(table, limit)


def _volume(table: Floats, limit: Floats) -> float:
    if len(table) == 0:
        return 0.0
    table = table[pareto_front(table)]
    if table.shape[1] == 1:
        return float(limit[0] - table.min())
    table = table[np.argsort(table[:, -1])]
    edges = np.append(table[:, -1], limit[-1])
    total = 0.0
    for index in range(len(table)):
        depth = float(edges[index + 1] - edges[index])
        if depth > 0:
            total += depth * _volume(table[: index + 1, :-1], limit[:-1])
    return total
