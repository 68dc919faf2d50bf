"""Covariance of a function of the knobs: main effects, pairs, local similarity, and layouts."""

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from tuner.searchers.knobs import LAYOUT_KNOBS, PLACEMENT_KNOBS, Floats, Knob, coordinates

Rows = NDArray[np.intp]

NUM_COMPONENTS = 5
"""Main effects, pair interactions, local similarity, errors of layouts, errors of placements."""
_OWN_LENGTH, _SHARED_LENGTH = 0.5, 8.0


@dataclass(frozen=True)
class _Level:
    """One knob: the level of each candidate, and the correlation between levels."""

    codes: Rows
    main: Floats
    local: Floats
    layout: Floats
    placement: Floats


class KnobKernel:
    """Five unit-variance kernels over the candidates, with a cache of the columns asked for.

    With one Matern-3/2 correlation `k_d` per knob (over its level: log2 for degrees, a constant
    for labels) they are the mean of `k_d`, the mean of `k_d k_e` over pairs, the product of all
    `k_d` at a longer length, and twice the product with a short length for some knobs and a long
    one for the others. The first two are the additive kernels of Duvenaud et al.
    (arXiv 1112.4394, eq. 6 to 9): what was learnt of one knob holds for all values of the others.
    The last two give each layout, and each set of degrees, an error of its own, shared by all its
    points.
    """

    def __init__(
        self,
        knobs: Sequence[Knob],
        num_rows: int,
        *,
        main_length: float = 2.0,
        local_length: float = 5.0,
    ) -> None:
        self._levels = [_level(knob, main_length, local_length) for knob in knobs]
        self._num_rows = num_rows
        self._columns = np.zeros((NUM_COMPONENTS, 0, num_rows), dtype=np.float32)
        self._slot: dict[int, int] = {}

    def block(self, rows: Rows, others: Rows) -> Floats:
        """Covariances of `rows` with `others`: (components, rows, others)."""
        slots = self._slots(rows)
        return np.asarray(self._columns[:, slots[:, None], others[None, :]], dtype=float)

    def combine(self, rows: Rows, coefficients: Floats) -> Floats:
        """Sum over components and `rows` of coefficient times covariance, for every candidate.

        `coefficients` has the shape (components, rows).
        """
        slots = self._slots(rows)
        padded = np.zeros((NUM_COMPONENTS, len(self._slot)), dtype=np.float32)
        padded[:, slots] = coefficients
        used = self._columns[:, : len(self._slot)]
        total = np.zeros(self._num_rows)
        for row_weights, columns in zip(padded, used, strict=True):
            total += row_weights @ columns
        return total

    def _slots(self, rows: Rows) -> Rows:
        for row in rows.tolist():
            if row not in self._slot:
                self._add(row)
        return np.array([self._slot[row] for row in rows.tolist()], dtype=np.intp)

    def _add(self, row: int) -> None:
        slot = len(self._slot)
        if slot == self._columns.shape[1]:
            more = np.zeros((NUM_COMPONENTS, max(32, slot), self._num_rows), dtype=np.float32)
            self._columns = np.concatenate([self._columns, more], axis=1)
        self._columns[:, slot] = self._column(row)
        self._slot[row] = slot

    def _column(self, row: int) -> Floats:
        """The covariances of one row with every candidate; 1 where there is no knob."""
        total, squares = np.zeros(self._num_rows), np.zeros(self._num_rows)
        product, layout, placement = np.ones((3, self._num_rows))
        for level in self._levels:
            code = level.codes[row]
            main = level.main[code][level.codes]
            total += main
            squares += main * main
            product *= level.local[code][level.codes]
            layout *= level.layout[code][level.codes]
            placement *= level.placement[code][level.codes]
        count = len(self._levels)
        if count == 0:
            return np.ones((NUM_COMPONENTS, self._num_rows))
        pairs = (total**2 - squares) / (count * (count - 1)) if count > 1 else total
        return np.stack([total / count, pairs, product, layout, placement])


def _level(knob: Knob, main_length: float, local_length: float) -> _Level:
    values, codes = np.unique(np.asarray(knob.values), return_inverse=True)
    if knob.is_numeric:
        place = coordinates(knob.name, values.astype(float))
        distance = np.abs(place[:, None] - place[None, :])
    else:
        distance = 1.5 * (1.0 - np.eye(len(values)))
    lengths = [
        _OWN_LENGTH if knob.name in names else _SHARED_LENGTH
        for names in (LAYOUT_KNOBS, PLACEMENT_KNOBS)
    ]
    return _Level(
        codes.reshape(-1),
        _matern(distance / main_length),
        _matern(distance / local_length),
        *(_matern(distance / length) for length in lengths),
    )


def _matern(distance: Floats) -> Floats:
    scaled = math.sqrt(3) * distance
    return np.asarray((1 + scaled) * np.exp(-scaled))
