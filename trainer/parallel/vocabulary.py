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
_PIECE_BYTES = 16 * 2**20  # of the fp32 copy of a part of a block in low precision


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
        block_loss = BlockLoss(group, num_rows, scale, needs_gradient)
        for start, stop in token_blocks(x_ND.shape[0], weight, group):
            rows = slice(start, stop)
            logits = F.linear(x_ND[rows], weight)
            loss += block_loss(logits, targets_N[rows] - first)
            if dx_ND is not None:  # the logits are their own gradients by now
                torch.mm(logits, weight, out=dx_ND[rows])
                weight.sink.accumulate_now(weight, logits, x_ND[rows])
        if dx_ND is not None:
            ctx.save_for_backward(dx_ND)
        return loss

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor | None, ...]:  # noqa: D102
        # the scale of the loss is inside already, so `grad` is the one of an outermost loss: 1
        (dx_ND,) = ctx.saved_tensors
        return dx_ND, None, None, None, None, None, None, None


def token_blocks(num_tokens: int, weight: Tensor, group: Group) -> list[tuple[int, int]]:
    """Even ranges of tokens whose logits fit a block of memory."""
    block_bytes = _BLOCK_BYTES if weight.dtype == torch.float32 else _LOW_PRECISION_BLOCK_BYTES
    # across ranks the whole block is copied to fp32 at once
    logit_bytes = weight.element_size() if group.size == 1 else 4
    return _even_ranges(num_tokens, block_bytes // (weight.shape[0] * logit_bytes))


def _even_ranges(total: int, most: int) -> list[tuple[int, int]]:
    """Cut `total` into equal ranges of at most `most`, but at least 64."""
    count = max(1, -(-total // max(64, most)))
    size = -(-total // count)
    return [(at, min(at + size, total)) for at in range(0, total, size)]


class BlockLoss:
    """Loss of blocks of logits; the gradient, if needed, takes the place of the logits.

    In low precision the scores are worked out in fp32, piece by piece in one buffer: memory that is
    fresh from the system costs more time than the arithmetic on it. Across ranks every piece would
    cost two messages, so there a block is one piece. `num_rows` columns of the logits are real, the
    rest is padding of the vocabulary.
    """

    def __init__(self, group: Group, num_rows: int, scale: float, needs_gradient: bool) -> None:
        self.group, self.num_rows, self.scale = group, num_rows, scale
        self.needs_gradient = needs_gradient
        self._room: Tensor | None = None

    def __call__(self, logits: Tensor, local_N: Tensor) -> Tensor:
        """Sum of the losses of a block; `local_N` are the targets as columns of the logits."""
        if self.group.size > 1 or logits.dtype == torch.float32:
            return self._piece(logits, local_N)
        loss = logits.new_zeros((), dtype=torch.float32)
        for start, stop in _even_ranges(logits.shape[0], _PIECE_BYTES // (logits.shape[1] * 4)):
            loss += self._piece(logits[start:stop], local_N[start:stop])
        return loss

    def _piece(self, logits: Tensor, local_N: Tensor) -> Tensor:
        scores = self._in_fp32(logits[:, : self.num_rows])
        top_N = scores.amax(-1)
        self.group.all_reduce(top_N, maximum=True).wait()
        outside = (local_N < 0) | (local_N >= self.num_rows)
        index_N1 = local_N.masked_fill(outside, 0).unsqueeze(-1)
        hit_N = scores.gather(-1, index_N1).squeeze(-1).masked_fill(outside, 0.0)
        scores.sub_(top_N.unsqueeze(-1)).exp_()
        sums = torch.stack([scores.sum(-1), hit_N])
        self.group.all_reduce(sums).wait()
        loss: Tensor = (sums[0].log() + top_N - sums[1]).sum() * self.scale
        if not self.needs_gradient:
            return loss
        scores.mul_((self.scale / sums[0]).unsqueeze(-1))
        minus_N1 = torch.where(outside, 0.0, -self.scale).unsqueeze(-1)
        scores.scatter_add_(-1, index_N1, minus_N1)
        if scores.data_ptr() != logits.data_ptr():
            logits[:, : self.num_rows].copy_(scores)
        logits[:, self.num_rows :].zero_()
        return loss

    def _in_fp32(self, logits: Tensor) -> Tensor:
        """The logits themselves in fp32, or their copy in the buffer."""
        if logits.dtype == torch.float32:
            return logits
        if self._room is None or self._room.numel() < logits.numel():
            self._room = torch.empty(logits.numel(), dtype=torch.float32, device=logits.device)
        return self._room[: logits.numel()].view(logits.shape).copy_(logits)
