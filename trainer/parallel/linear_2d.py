"""Linear layers and norms on a `q x q` mesh, as autograd functions.

Activations are cut into sequences over rows and features over columns, weights (out, in) into
outputs over columns and inputs over rows: with `A` the activation and `B` the weight's transpose,
a linear layer is SUMMA's `C = A B`. Biases and the vectors of norms are held by the mesh's first
row, which sends them down the columns when they are needed and gets their gradients' sum back
(Optimus, arXiv 2104.05343, section 3.2.2). A norm's statistics are sums over the row.

Letters of shapes: N tokens of this row, D features of this column, K input features.
"""

from functools import partial
from typing import Any

import torch
from torch import Tensor

from trainer.model.parameters import ShardParameter
from trainer.parallel.collectives import Group, Pending
from trainer.parallel.panels import PanelSource
from trainer.parallel.summa import Grid, multiply, start_multiply_at, start_multiply_bt


class SharedVectors:
    """Vectors of one length that the first rank of a column holds, lent to the whole column.

    Args:
        column: the column's group.
        parameters: the holder's vectors; empty tensors elsewhere.
        length: elements of each.
    """

    def __init__(self, column: Group, parameters: list[ShardParameter], length: int) -> None:
        self._column, self._parameters = column, parameters
        like = parameters[0]
        if column.rank == 0:
            self._values = torch.stack(list(parameters)).detach()
        else:
            self._values = torch.empty(
                len(parameters), length, dtype=like.dtype, device=like.device
            )
        self._pending = column.broadcast(self._values, 0, is_async=True)

    def values(self) -> list[Tensor]:
        """The vectors, once they have come."""
        self._pending.wait()
        return list(self._values)


class VectorGradients:
    """Gradients of shared vectors on their way to the rank that holds them; they travel in fp32."""

    def __init__(
        self, column: Group, parameters: list[ShardParameter], gradients: list[Tensor]
    ) -> None:
        self._column, self._parameters = column, parameters
        self._sums = torch.stack([gradient.float() for gradient in gradients])
        self._pending: Pending = column.reduce(self._sums, 0, is_async=True)

    def finish(self) -> None:
        """Wait, and hand the sums to the holder's units."""
        self._pending.wait()
        if self._column.rank == 0:
            for parameter, gradient in zip(self._parameters, self._sums, strict=True):
                parameter.sink.accumulate(parameter, gradient)


class Linear2D(torch.autograd.Function):
    """`y = x @ W.T + b` of blocks on a grid; the weight's gradient goes to its unit, deferrable."""

    @staticmethod
    def forward(  # noqa: D102
        ctx: Any, x: Tensor, weight: ShardParameter, bias: ShardParameter | None, grid: Grid
    ) -> Tensor:
        ctx.save_for_backward(x, weight)
        ctx.weight, ctx.bias, ctx.grid = weight, bias, grid
        vector = None
        if bias is not None:
            (vector,) = SharedVectors(grid.vectors, [bias], weight.shape[0]).values()
        y = multiply(grid, x.flatten(0, -2), weight.t(), vector)
        return y.view(*x.shape[:-1], -1)

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor | None, ...]:  # noqa: D102
        x, weight = ctx.saved_tensors
        grid, sink = ctx.grid, ctx.weight.sink
        grad_ND, x_NK = grad.flatten(0, -2).contiguous(), x.flatten(0, -2)
        pending = None
        if ctx.bias is not None:
            pending = VectorGradients(grid.vectors, [ctx.bias], [grad_ND.sum(0)])
        left = None if sink.is_deferring else grid.left(x_NK)
        dx_NK = torch.empty_like(x_NK)
        sums = start_multiply_bt(grid, grad_ND, weight.t(), dx_NK)
        sink.accumulate_result(ctx.weight, partial(_weight_gradient, grid, x_NK, grad_ND, left))
        sums.finish()
        if pending is not None:
            pending.finish()
        return dx_NK.view_as(x), None, None, None


def _weight_gradient(grid: Grid, x_NK: Tensor, grad_ND: Tensor, left: PanelSource | None) -> Tensor:
    """This rank's block (out, in) of the gradient; it lies in memory as the weight does."""
    out_DK = grad_ND.new_empty(grad_ND.shape[1], x_NK.shape[1])
    start_multiply_at(grid, left or grid.left(x_NK), grad_ND, out_DK.t()).finish()
    return out_DK


class Norm2D(torch.autograd.Function):
    """LayerNorm (with a bias) or RMSNorm (without) over features that are split over the row.

    One all-reduce of the sums of `x` and `x^2` forward, one of the sums of `g` and `g x^` backward
    (arXiv 2104.05343, section 3.2.2); RMSNorm needs the second of each alone.
    """

    @staticmethod
    def forward(  # noqa: D102
        ctx: Any, x: Tensor, weight: ShardParameter, bias: ShardParameter | None, grid: Grid,
        epsilon: float,
    ) -> Tensor:  # fmt: skip
        ctx.parameters = [weight] if bias is None else [weight, bias]
        vectors = SharedVectors(grid.vectors, ctx.parameters, x.shape[-1])
        x_ND = x.flatten(0, -2).float()
        square_N = torch.linalg.vector_norm(x_ND, dim=-1).square_()
        sums = square_N.unsqueeze(0) if bias is None else torch.stack([square_N, x_ND.sum(-1)])
        grid.row.all_reduce(sums).wait()
        sums = sums / (x.shape[-1] * grid.side)
        mean_N1 = sums[1].unsqueeze(-1) if bias is not None else None
        variance_N = sums[0] if mean_N1 is None else sums[0] - sums[1].square()
        scale_N1 = (variance_N + epsilon).rsqrt().unsqueeze(-1)
        gain_D, *shift_D = vectors.values()
        y_ND = _normalised(x_ND, mean_N1, scale_N1).mul_(gain_D)
        for vector in shift_D:
            y_ND.add_(vector)
        ctx.grid = grid
        ctx.save_for_backward(x, mean_N1, scale_N1, gain_D)
        return y_ND.view_as(x).to(x.dtype)

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor | None, ...]:  # noqa: D102
        x, mean_N1, scale_N1, gain_D = ctx.saved_tensors
        grid, width = ctx.grid, x.shape[-1] * ctx.grid.side
        grad_ND = grad.flatten(0, -2).float()
        unit_ND = _normalised(x.flatten(0, -2).float(), mean_N1, scale_N1)
        dunit_ND = grad_ND * gain_D
        sums = [torch.linalg.vecdot(dunit_ND, unit_ND)]
        if mean_N1 is not None:
            sums.append(dunit_ND.sum(-1))
        joined = torch.stack(sums)
        pending = grid.row.all_reduce(joined, is_async=True)
        gradients = [(grad_ND * unit_ND).sum(0)]
        if mean_N1 is not None:
            gradients.append(grad_ND.sum(0))
        arrival = VectorGradients(grid.vectors, ctx.parameters, gradients)
        pending.wait()
        joined = joined.div_(width).unsqueeze(-1)
        dx_ND = dunit_ND.sub_(unit_ND.mul_(joined[0]))
        if mean_N1 is not None:
            dx_ND.sub_(joined[1])
        dx_ND.mul_(scale_N1)
        arrival.finish()
        return dx_ND.view_as(x).to(x.dtype), None, None, None, None


def _normalised(x_ND: Tensor, mean_N1: Tensor | None, scale_N1: Tensor) -> Tensor:
    """A new tensor of zero mean (where there is one) and unit variance."""
    return x_ND * scale_N1 if mean_N1 is None else (x_ND - mean_N1).mul_(scale_N1)
