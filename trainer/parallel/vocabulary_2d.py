"""Embeddings and cross-entropy on a `q x q` mesh.

The token table is cut by vocabulary over rows and by features over columns. A lookup gathers the
ids of the column, looks up this rank's rows for all of them, and sums each row's tokens there: it
moves tokens x features, where passing the table down the column (Optimus, arXiv 2104.05343) moves
vocabulary x features, mostly more.

The projection to the vocabulary is cut like every other weight: vocabulary over columns, inputs
over rows. A tied table is sent to the transposed place of the mesh for it, 1/q of one panel's way,
where a product with the table as it lies would reduce partial logits over the row. Logits exist as
one block of tokens by one column's part of the vocabulary, and are never gathered.

Letters of shapes: N tokens of this row, D features of this column, V vocabulary of this column.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from trainer.model.parameters import Range, ShardParameter
from trainer.parallel.collectives import Group
from trainer.parallel.summa import Grid
from trainer.parallel.tensor_form import LossInputs
from trainer.parallel.vocabulary import BlockLoss, token_blocks


class Embedding2D(torch.autograd.Function):
    """Rows of a token table for this row's ids; the gradient is added row by row to its unit."""

    @staticmethod
    def forward(  # noqa: D102
        ctx: Any, ids_BT: Tensor, weight: ShardParameter, first: int, column: Group
    ) -> Tensor:
        ids_QN = ids_BT.new_empty(column.size, ids_BT.numel())
        column.all_gather(ids_QN.view(-1), ids_BT.reshape(-1)).wait()
        local_QN = ids_QN - first
        outside_QN = (local_QN < 0) | (local_QN >= weight.shape[0])
        local_QN = local_QN.masked_fill_(outside_QN, 0)
        ctx.save_for_backward(local_QN, outside_QN)
        ctx.weight, ctx.column = weight, column
        found = F.embedding(local_QN, weight).masked_fill_(outside_QN.unsqueeze(-1), 0)
        x_BTD = found.new_empty(*ids_BT.shape, weight.shape[1])
        column.reduce_scatter(x_BTD.view(-1), found.view(-1)).wait()
        return x_BTD

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[None, ...]:  # noqa: D102
        local_QN, outside_QN = ctx.saved_tensors
        grads = grad.new_empty(*local_QN.shape, grad.shape[-1])
        ctx.column.all_gather(grads.view(-1), grad.reshape(-1)).wait()
        grads.masked_fill_(outside_QN.unsqueeze(-1), 0)
        ctx.weight.sink.accumulate_rows(ctx.weight, local_QN.flatten(), grads.flatten(0, 1))
        return None, None, None, None


class AddPositions2D(torch.autograd.Function):
    """Add position vectors, which the mesh's first row holds and sends down the columns."""

    @staticmethod
    def forward(  # noqa: D102
        ctx: Any, x_BTD: Tensor, positions_T: Tensor, weight: ShardParameter, column: Group
    ) -> Tensor:
        if column.rank == 0:
            rows_TD = F.embedding(positions_T, weight)
        else:
            rows_TD = x_BTD.new_empty(x_BTD.shape[1:])
        column.broadcast(rows_TD, 0).wait()
        ctx.positions_T, ctx.weight, ctx.column = positions_T, weight, column
        return x_BTD + rows_TD

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor, None, None, None]:  # noqa: D102
        rows_TD = grad.sum(0, dtype=torch.float32)
        ctx.column.reduce(rows_TD, 0).wait()
        if ctx.column.rank == 0:
            ctx.weight.sink.accumulate_rows(ctx.weight, ctx.positions_T, rows_TD)
        return grad, None, None, None


@dataclass(frozen=True)
class HeadPlace:
    """Where this rank stands in the projection to the vocabulary.

    `rows` is the part of the vocabulary of this rank's column. `mirror` is the rank of `group` at
    the transposed place if the table is tied to the embedding and lies there.
    """

    grid: Grid
    rows: Range
    group: Group
    mirror: int | None

    def turned(self, block: Tensor) -> Tensor:
        """The block at the transposed place (its own inverse); `block` itself when not tied."""
        if self.mirror is None:
            return block
        return self.group.exchange(block.contiguous(), self.mirror)

    def weight_panels(self, weight: Tensor) -> Tensor:
        """Blocks (V, D) of the column, one per part of the input features."""
        own = self.turned(weight.detach())
        panels = own.new_empty(self.grid.side, *own.shape)
        self.grid.column.all_gather(panels.view(-1), own.contiguous().view(-1)).wait()
        return panels

    def token_panels(self, x_ND: Tensor) -> Tensor:
        """Blocks (N, D) of the row: all features of its tokens."""
        panels = x_ND.new_empty(self.grid.side, *x_ND.shape)
        self.grid.row.all_gather(panels.view(-1), x_ND.contiguous().view(-1)).wait()
        return panels

    def logits(self, x: Tensor, weight: Tensor) -> Tensor:
        """Logits (N, V) from panels of both."""
        out = x[0] @ weight[0].t()
        for x_ND, weight_VD in zip(x[1:], weight[1:], strict=True):
            out.addmm_(x_ND, weight_VD.t())
        return out


class CrossEntropy2D(torch.autograd.Function):
    """Sum over this row's tokens of `scale * cross_entropy(x @ W.T, target)`.

    As in `VocabularyCrossEntropy`, loss and gradients are computed at once, block by block of
    tokens; the weight travels once each way. The loss is that of the row, on each of its ranks.
    """

    @staticmethod
    def forward(  # noqa: D102
        ctx: Any, x_ND: Tensor, weight: ShardParameter, place: HeadPlace, inputs: LossInputs
    ) -> Tensor:
        panels = place.weight_panels(weight)
        loss = x_ND.new_zeros((), dtype=torch.float32)
        dx_ND, dweight = None, None
        if inputs.needs_gradient:
            dx_ND = torch.empty_like(x_ND)
            dweight = torch.zeros(panels.shape, dtype=torch.float32, device=x_ND.device)
        block_loss = BlockLoss(place.grid.row, place.rows.size, inputs.scale, inputs.needs_gradient)
        for rows, x in _blocks(place, x_ND, weight):
            logits = place.logits(x, panels)
            loss += block_loss(logits, inputs.targets.flatten()[rows] - place.rows.start)
            if dx_ND is not None and dweight is not None:  # the logits are their gradients now
                _input_gradient(place.grid.row, logits, panels, dx_ND[rows])
                for step in range(len(panels)):
                    _add_product(dweight[step], logits, x[step])
        if dx_ND is not None and dweight is not None:
            _send_weight_gradient(place, weight, dweight.to(x_ND.dtype))
            ctx.save_for_backward(dx_ND)
        return loss

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor | None, ...]:  # noqa: D102
        (dx_ND,) = ctx.saved_tensors
        return dx_ND, None, None, None


def _blocks(place: HeadPlace, x_ND: Tensor, weight: Tensor) -> Iterator[tuple[slice, Tensor]]:
    for start, stop in token_blocks(x_ND.shape[0], weight, place.grid.row):
        rows = slice(start, stop)
        yield rows, place.token_panels(x_ND[rows])


def _input_gradient(row: Group, dlogits: Tensor, panels: Tensor, out_ND: Tensor) -> None:
    partial_sums = dlogits @ panels  # (q, N, D): a part of every column's features
    row.reduce_scatter(out_ND.view(-1), partial_sums.view(-1)).wait()


def _add_product(total_VD: Tensor, dlogits: Tensor, x_ND: Tensor) -> None:
    if dlogits.dtype == torch.float32:
        total_VD.addmm_(dlogits.t(), x_ND)
    else:
        total_VD.add_(dlogits.t() @ x_ND)


def _send_weight_gradient(place: HeadPlace, weight: ShardParameter, parts: Tensor) -> None:
    own = parts.new_empty(parts.shape[1:])
    place.grid.column.reduce_scatter(own.view(-1), parts.view(-1)).wait()
    weight.sink.accumulate(weight, place.turned(own))
