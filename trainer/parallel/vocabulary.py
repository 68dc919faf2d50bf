"""Embedding and cross-entropy over a vocabulary that is split across ranks.

The cross-entropy never holds all logits, let alone gathered ones: it walks over blocks of tokens,
and for each block computes logits, loss and the gradients of the hidden states and the weight at
once, since the factor of every token's loss is known beforehand. So its memory is one block, and no
logits are computed twice (the idea of fused linear cross-entropy, Liger-Kernel, arXiv 2410.10989,
with the vocabulary-parallel sums of Megatron-LM, arXiv 1909.08053 section 3).
"""

from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from trainer.model.parameters import ShardParameter
from trainer.parallel.collectives import Group

_BLOCK_BYTES = 64 * 2**20  # of one block of logits in fp32
# every block converts and adds a whole weight gradient in low precision: fewer and larger ones
_LOW_PRECISION_BLOCK_BYTES = 256 * 2**20


class VocabularyEmbedding(torch.autograd.Function):
    """Rows of a table of which this rank holds `first..first+rows`; other ids give zero.

    The result is a partial sum over the ranks of the split. The gradient is added row by row into
    the unit's buffer: no dense temporary of the table's size.
    """

    @staticmethod
    def forward(  # noqa: D102
        ctx: Any, ids: Tensor, weight: ShardParameter, first: int, is_whole: bool
    ) -> Tensor:
        ctx.weight = weight
        if is_whole:
            ctx.save_for_backward(ids)
            ctx.outside = None
            return F.embedding(ids, weight)
        local = ids - first
        outside = (local < 0) | (local >= weight.shape[0])
        local = local.masked_fill(outside, 0)
        ctx.save_for_backward(local)
        ctx.outside = outside
        return F.embedding(local, weight).masked_fill_(outside.unsqueeze(-1), 0)

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[None, ...]:  # noqa: D102
        (ids,) = ctx.saved_tensors
        if ctx.outside is not None:
            grad = grad.masked_fill(ctx.outside.unsqueeze(-1), 0)
        ctx.weight.sink.accumulate_rows(ctx.weight, ids.flatten(), grad.flatten(0, -2))
        return None, None, None, None


class VocabularyCrossEntropy(torch.autograd.Function):
    """Sum over tokens of `scale * cross_entropy(x @ W.T, target)`, W split by vocabulary rows.

    `x_ND` holds the full hidden vectors on every rank. The loss is whole on every rank; the
    gradient of `x` is this rank's partial sum. `first` is the vocabulary index of this rank's first
    row, `num_rows` its real rows (the rest is padding).
    """

    @staticmethod
    def forward(  # noqa: D102
        ctx: Any, x_ND: Tensor, weight: ShardParameter, targets_N: Tensor, group: Group, first: int,
        num_rows: int, scale: float, needs_gradient: bool,
    ) -> Tensor:  # fmt: skip
        dx_ND = torch.empty_like(x_ND) if needs_gradient else None
        loss = x_ND.new_zeros((), dtype=torch.float32)
        for start, stop in token_blocks(x_ND.shape[0], weight):
            rows = slice(start, stop)
            logits = F.linear(x_ND[rows], weight)
            local = targets_N[rows] - first
            losses, dlogits = block_loss(logits, local, num_rows, group, scale, needs_gradient)
            loss += losses
            if dx_ND is not None and dlogits is not None:
                torch.mm(dlogits, weight, out=dx_ND[rows])
                weight.sink.accumulate_now(weight, dlogits, x_ND[rows])
        if dx_ND is not None:
            ctx.save_for_backward(dx_ND)
        return loss

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor | None, ...]:  # noqa: D102
        # the scale of the loss is inside already, so `grad` is the one of an outermost loss: 1
        (dx_ND,) = ctx.saved_tensors
        return dx_ND, None, None, None, None, None, None, None


def token_blocks(num_tokens: int, weight: Tensor) -> list[tuple[int, int]]:
    """Even ranges of tokens whose logits fit a block of memory."""
    block_bytes = _BLOCK_BYTES if weight.dtype == torch.float32 else _LOW_PRECISION_BLOCK_BYTES
    rows = max(64, block_bytes // (weight.shape[0] * 4))
    count = max(1, -(-num_tokens // rows))
    size = -(-num_tokens // count)
    return [(at, min(at + size, num_tokens)) for at in range(0, num_tokens, size)]


def block_loss(
    logits: Tensor, local_N: Tensor, num_rows: int, group: Group, scale: float, needs_gradient: bool
) -> tuple[Tensor, Tensor | None]:
    """Loss of one block and the gradient of its logits (in the logits' own type and storage)."""
    scores = logits[:, :num_rows].float()
    top_N = scores.amax(-1)
    group.all_reduce(top_N, maximum=True).wait()
    outside = (local_N < 0) | (local_N >= num_rows)
    index_N1 = local_N.masked_fill(outside, 0).unsqueeze(-1)
    hit_N = scores.gather(-1, index_N1).squeeze(-1).masked_fill(outside, 0.0)
    scores.sub_(top_N.unsqueeze(-1)).exp_()  # in fp32 the scores are a view of the logits
    sums = torch.stack([scores.sum(-1), hit_N])
    group.all_reduce(sums).wait()
    loss = (sums[0].log() + top_N - sums[1]).sum() * scale
    if not needs_gradient:
        return loss, None
    scores.mul_((scale / sums[0]).unsqueeze(-1))
    minus_N1 = torch.where(outside, 0.0, -scale).unsqueeze(-1)
    scores.scatter_add_(-1, index_N1, minus_N1)
    if scores.data_ptr() != logits.data_ptr():
        logits[:, :num_rows].copy_(scores)
    logits[:, num_rows:].zero_()
    return loss, logits
