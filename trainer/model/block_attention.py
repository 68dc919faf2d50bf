"""Causal attention on CPU in low precision, as matrix products over blocks of query rows.

torch's CPU kernel behind `scaled_dot_product_attention` reaches a small part of the matrix-product
peak in bf16. Here each block of rows meets only the keys before its end, so half of the square is
left out, and nothing of the size of the scores is kept: the backward pass computes a block's
probabilities again from the queries and keys (FlashAttention, arXiv 2205.14135 section 3.1, with
blocks large enough for the matrix library). Scores are rounded to the inputs' type before the
softmax, as in every attention that is not fused; sums over blocks are kept in fp32.

B micro-batch, T tokens, H heads, E head_dim, N = B * H.
"""

from collections.abc import Iterator
from typing import Any

import torch
from torch import Tensor

ROWS_PER_BLOCK = 128
_MAX_TOKENS, _MAX_HEAD_DIM = 1024, 64  # beyond, torch's kernel was measured to be the faster


def suits(q_BHTE: Tensor) -> bool:
    """Whether block attention was measured to be faster than torch's kernel for these queries."""
    _, _, tokens, head_dim = q_BHTE.shape
    return (
        q_BHTE.device.type == "cpu"
        and q_BHTE.dtype == torch.bfloat16
        and tokens <= _MAX_TOKENS
        and head_dim <= _MAX_HEAD_DIM
        and not torch.compiler.is_compiling()
    )


class BlockAttention(torch.autograd.Function):
    """`softmax(q k^T / sqrt(E)) v`, causal; q, k, v and the result are of shape (B, H, T, E).

    The result lies in memory as (B, T, H, E), so that joining the heads needs no copy.
    """

    @staticmethod
    def forward(ctx: Any, q_BHTE: Tensor, k_BHTE: Tensor, v_BHTE: Tensor) -> Tensor:  # noqa: D102
        ctx.save_for_backward(q_BHTE, k_BHTE, v_BHTE)
        batch, heads, tokens, head_dim = q_BHTE.shape
        q, k, v = (part.reshape(-1, tokens, head_dim) for part in (q_BHTE, k_BHTE, v_BHTE))
        out_BTHE = q.new_empty(batch, tokens, heads, head_dim)
        for start, stop, scores in _probabilities(q, k):
            rows = torch.bmm(scores, v[:, :stop]).view(batch, heads, -1, head_dim)
            out_BTHE[:, start:stop] = rows.transpose(1, 2)
        return out_BTHE.transpose(1, 2)

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor, ...]:  # noqa: D102
        shape = grad.shape
        tokens, head_dim = shape[-2:]
        q, k, v, grad = (part.reshape(-1, tokens, head_dim) for part in (*ctx.saved_tensors, grad))
        scale = head_dim**-0.5
        dq = torch.empty_like(q)
        dk, dv = (torch.zeros_like(part, dtype=torch.float32) for part in (k, v))
        space = _space(q)
        for start, stop, scores in _probabilities(q, k):
            rows = slice(start, stop)
            dv[:, :stop] += torch.bmm(scores.transpose(1, 2), grad[:, rows])
            dscores = _cut(space, scores.shape)
            torch.bmm(grad[:, rows], v[:, :stop].transpose(1, 2), out=dscores)
            dscores = torch._softmax_backward_data(dscores, scores, -1, scores.dtype)
            dq[:, rows] = torch.bmm(dscores, k[:, :stop]).mul_(scale)
            dk[:, :stop].add_(torch.bmm(dscores.transpose(1, 2), q[:, rows]), alpha=scale)
        return tuple(part.to(q.dtype).view(shape) for part in (dq, dk, dv))


def _probabilities(q_NTE: Tensor, k_NTE: Tensor) -> Iterator[tuple[int, int, Tensor]]:
    """First and end row of each block, and its probabilities in a buffer that the next reuses."""
    tokens, head_dim = q_NTE.shape[1:]
    space = _space(q_NTE)
    later = q_NTE.new_full((ROWS_PER_BLOCK, ROWS_PER_BLOCK), -torch.inf).triu(1)
    for start in range(0, tokens, ROWS_PER_BLOCK):
        stop = min(start + ROWS_PER_BLOCK, tokens)
        scores = _cut(space, torch.Size((q_NTE.shape[0], stop - start, stop)))
        keys = k_NTE[:, :stop].transpose(1, 2)
        # beta=0: the old content of the buffer does not count, be it NaN
        torch.baddbmm(scores, q_NTE[:, start:stop], keys, beta=0, alpha=head_dim**-0.5, out=scores)
        scores[:, :, start:] += later[: stop - start, : stop - start]
        torch.softmax(scores, -1, out=scores)
        yield start, stop, scores


def _space(q_NTE: Tensor) -> Tensor:
    """Room for the scores of the largest block."""
    count, tokens, _ = q_NTE.shape
    return q_NTE.new_empty(count * min(ROWS_PER_BLOCK, tokens) * tokens)


def _cut(space: Tensor, shape: torch.Size) -> Tensor:
    return space[: shape.numel()].view(shape)
