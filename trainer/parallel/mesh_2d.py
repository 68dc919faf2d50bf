"""The `depth x q x q` mesh inside a tensor-parallel group; the arithmetic of places, without torch.

Rank `t` of the group stands at layer `t // q^2`, row `t // q % q` and column `t % q`. The ranks of
a row are neighbours, so they are on one node where `q` fits there: rows carry the activations,
which are larger than the weights wherever two dimensions pay.
"""

import math
from dataclasses import dataclass


@dataclass(frozen=True)
class Place:
    """Where a rank stands: layer of the depth, row, column."""

    layer: int
    row: int
    column: int


class TensorMesh:
    """Places of the ranks of one tensor-parallel group, and the lines they form.

    Args:
        size: ranks of the group.
        depth: layers; 1 under `tp_layout="2d"`.

    Raises:
        ValueError: `size` is not `depth * q * q`.
    """

    def __init__(self, size: int, depth: int = 1) -> None:
        self.side = math.isqrt(size // depth)
        self.depth = depth
        if self.side * self.side * depth != size:
            raise ValueError(f"{size} ranks are no mesh of {depth} x q x q")

    @property
    def num_rows(self) -> int:
        """Parts into which the sequences of a micro-batch are dealt: rows of all layers."""
        return self.depth * self.side

    def place(self, rank: int) -> Place:
        """Where a rank of the group stands."""
        rest, column = divmod(rank, self.side)
        layer, row = divmod(rest, self.side)
        return Place(layer, row, column)

    def rank_at(self, place: Place) -> int:
        """The rank at a place; the inverse of `place`."""
        return (place.layer * self.side + place.row) * self.side + place.column

    def row_of(self, rank: int) -> list[int]:
        """Ranks of the same row, by column: they share sequences."""
        own = self.place(rank)
        return [self.rank_at(Place(own.layer, own.row, at)) for at in range(self.side)]

    def column_of(self, rank: int) -> list[int]:
        """Ranks of the same column, by row: they share features."""
        own = self.place(rank)
        return [self.rank_at(Place(own.layer, at, own.column)) for at in range(self.side)]

    def line_of(self, rank: int) -> list[int]:
        """Ranks at the same row and column of all layers: they hold equal weights."""
        own = self.place(rank)
        return [self.rank_at(Place(at, own.row, own.column)) for at in range(self.depth)]

    def mirror_of(self, rank: int) -> int:
        """The rank at the transposed place of the same layer."""
        own = self.place(rank)
        return self.rank_at(Place(own.layer, own.column, own.row))
