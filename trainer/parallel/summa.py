"""Matrix products on a `q x q` mesh (SUMMA, van de Geijn and Watts 1997; arXiv 2104.05343).

Every matrix is cut into `q x q` blocks of which the rank in row `i` and column `j` holds block
(i, j). Three products suffice, because the gradients of each are the other two:

| product   | block (i, j)               | panels travel along | gradients              |
|-----------|----------------------------|---------------------|------------------------|
| `C = A B`  | sum over l of A_il B_lj    | A row, B column     | dA = dC B', dB = A' dC |
| `C = A B'` | sum over l of A_il (B_jl)' | B column, C row     | dA = dC B, dB = dC' A  |
| `C = A' B` | sum over l of (A_li)' B_lj | A row, C column     | dA = B dC', dB = A dC  |

An operand may be a transposed view of a contiguous block: it travels as it lies in memory.
"""

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor

from trainer.parallel.collectives import Group
from trainer.parallel.panels import VARIANTS, PanelBuffers, PanelSink, PanelSource

DEFAULT_VARIANT = {"gloo": "gather", "nccl": "gather"}
"""The faster way per backend; gloo's is measured (`python -m benchmarks.tensor_2d`)."""


class Grid:
    """One rank's row and column of a mesh, and how panels travel along them."""

    def __init__(self, row: Group, column: Group, variant: str | None = None) -> None:
        self.row, self.column = row, column
        self.vectors = replace(column, axis="tp_vector")
        """The column under a name of its own, so that vectors are counted apart from panels."""
        self.variant = variant or DEFAULT_VARIANT["gloo" if row.uses_gloo else "nccl"]
        self.buffers = PanelBuffers()
        self._make_source, self._make_sink = VARIANTS[self.variant]

    @property
    def side(self) -> int:
        """Rows, and columns, of the mesh."""
        return self.row.size

    def left(self, a: Tensor) -> PanelSource:
        """Panels of a left operand, along the row."""
        return _oriented(a, lambda own: self._make_source(self.row, own, self.buffers, "left"))

    def right(self, b: Tensor) -> PanelSource:
        """Panels of a right operand, along the column."""
        return _oriented(b, lambda own: self._make_source(self.column, own, self.buffers, "right"))

    def sink(self, result: Tensor, group: Group, role: str) -> PanelSink:
        """Partial results to the ranks of `group`."""
        if result.is_contiguous():
            return self._make_sink(group, result, self.buffers, role)
        return _TransposedSink(self._make_sink(group, result.t(), self.buffers, role))


class _TransposedSource:
    """Panels that travel as the transpose of what is asked for."""

    def __init__(self, source: PanelSource) -> None:
        self._source = source

    def panel(self, step: int) -> Tensor:
        return self._source.panel(step).t()


class _TransposedSink:
    """Results that travel as the transpose of what is written."""

    def __init__(self, sink: PanelSink) -> None:
        self._sink = sink
        self.send, self.finish = sink.send, sink.finish

    def slot(self, step: int) -> Tensor:
        return self._sink.slot(step).t()


def _oriented(block: Tensor, make: Callable[[Tensor], PanelSource]) -> PanelSource:
    if not block.is_contiguous() and block.t().is_contiguous():
        return _TransposedSource(make(block.t()))
    return make(block.contiguous())


# -------------------------------------------------------------------- products of blocks
def multiply(grid: Grid, a: Tensor, b: Tensor, bias: Tensor | None = None) -> Tensor:
    """`A B + bias`: blocks (m, k) and (k, n) of this rank to its block (m, n).

    `bias` (n,) is this column's part of a vector that is added to every row.
    """
    left, right = grid.left(a), grid.right(b)
    out = a.new_empty(a.shape[0], b.shape[1])
    for step in range(grid.side):
        a_panel, b_panel = left.panel(step), right.panel(step)
        if step:
            out.addmm_(a_panel, b_panel)
        elif bias is None:
            torch.mm(a_panel, b_panel, out=out)
        else:
            torch.addmm(bias, a_panel, b_panel, out=out)
    return out


def start_multiply_bt(grid: Grid, a: Tensor, b: Tensor, out: Tensor) -> PanelSink:
    """Compute `A B'` into `out` (m, n) from blocks (m, k) and (n, k); complete after `finish`."""
    right, sink = grid.right(b), grid.sink(out, grid.row, "row_sum")
    for step in range(grid.side):
        torch.mm(a, right.panel(step).t(), out=sink.slot(step))
        sink.send(step)
    return sink


def start_multiply_at(grid: Grid, left: PanelSource, b: Tensor, out: Tensor) -> PanelSink:
    """Compute `A' B` into `out` (k, n) from panels of A and block (m, n); complete after `finish`.

    The panels are given, so that they can be under way before the product's turn.
    """
    sink = grid.sink(out, grid.column, "column_sum")
    for step in range(grid.side):
        torch.mm(left.panel(step).t(), b, out=sink.slot(step))
        sink.send(step)
    return sink


def multiply_bt(grid: Grid, a: Tensor, b: Tensor) -> Tensor:
    """`A B'`: blocks (m, k) and (n, k) of this rank to its block (m, n)."""
    out = a.new_empty(a.shape[0], b.shape[0])
    start_multiply_bt(grid, a, b, out).finish()
    return out


def multiply_at(grid: Grid, a: Tensor, b: Tensor) -> Tensor:
    """`A' B`: blocks (m, k) and (m, n) of this rank to its block (k, n)."""
    out = b.new_empty(a.shape[1], b.shape[1])
    start_multiply_at(grid, grid.left(a), b, out).finish()
    return out


# -------------------------------------------------------------------- the same for autograd
class Product(torch.autograd.Function):
    """`C = A B` of blocks on a grid."""

    @staticmethod
    def forward(ctx: Any, a: Tensor, b: Tensor, grid: Grid) -> Tensor:  # noqa: D102
        ctx.save_for_backward(a, b)
        ctx.grid = grid
        return multiply(grid, a, b)

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor, Tensor, None]:  # noqa: D102
        a, b = ctx.saved_tensors
        grad = grad.contiguous()
        return multiply_bt(ctx.grid, grad, b), multiply_at(ctx.grid, a, grad), None


class ProductBT(torch.autograd.Function):
    """`C = A B'` of blocks on a grid."""

    @staticmethod
    def forward(ctx: Any, a: Tensor, b: Tensor, grid: Grid) -> Tensor:  # noqa: D102
        ctx.save_for_backward(a, b)
        ctx.grid = grid
        return multiply_bt(grid, a, b)

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor, Tensor, None]:  # noqa: D102
        a, b = ctx.saved_tensors
        grad = grad.contiguous()
        return multiply(ctx.grid, grad, b), multiply_at(ctx.grid, grad, a), None


class ProductAT(torch.autograd.Function):
    """`C = A' B` of blocks on a grid."""

    @staticmethod
    def forward(ctx: Any, a: Tensor, b: Tensor, grid: Grid) -> Tensor:  # noqa: D102
        ctx.save_for_backward(a, b)
        ctx.grid = grid
        return multiply_at(grid, a, b)

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor, Tensor, None]:  # noqa: D102
        a, b = ctx.saved_tensors
        grad = grad.contiguous()
        return multiply_bt(ctx.grid, b, grad), multiply(ctx.grid, a, grad), None
