"""Context parallelism: one sequence over several ranks, for sequences that one rank cannot hold.

Only attention mixes tokens, so everything else works on a rank's own tokens unchanged. Causal
attention makes late tokens dearer than early ones; so the sequence is cut into `2 N` chunks, of
which rank `r` of `N` holds chunks `r` and `2 N - 1 - r`: every rank then has the same work
(Llama 3, arXiv 2407.21783, section 3.3.2; Brandon et al., arXiv 2311.09431).

Keys and values of all ranks are all-gathered before attention, and their gradients are
reduce-scattered after its backward pass. With grouped-query attention they are a fraction of the
activations, and one large message beats the `N - 1` rounds of a ring where latency matters. The
gathered keys and values of a layer live until its backward pass, unless the attention core is
recomputed: then they are gathered again.

B micro-batch, H query heads, K KV heads, T tokens of this rank, S tokens of the sequence, C tokens
of a chunk, E head_dim, N ranks.
"""

from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from search_spaces.model_spec import ModelSpec
from trainer.errors import UnsupportedConfigError
from trainer.model.attention import AttentionCore, expand_heads
from trainer.parallel.collectives import Group


def chunks_of_rank(rank: int, num_ranks: int) -> tuple[int, int]:
    """The two chunks of a sequence that a rank holds, an early and a late one."""
    return rank, 2 * num_ranks - 1 - rank


def sequence_order(num_ranks: int) -> list[int]:
    """Where chunk `c` of the sequence lies when the ranks' chunks are joined in rank order."""
    joined = [chunk for rank in range(num_ranks) for chunk in chunks_of_rank(rank, num_ranks)]
    return sorted(range(2 * num_ranks), key=joined.__getitem__)


class ContextParallelAttention(AttentionCore):
    """Causal attention of this rank's tokens to all tokens before them, on whichever rank.

    Raises:
        UnsupportedConfigError: from `num_local_tokens`, if `2 N` does not divide the sequence.
    """

    communicates = True

    def __init__(self, model: ModelSpec, device: torch.device, group: Group) -> None:
        super().__init__(model, device)
        self.group = group
        self.chunks = chunks_of_rank(group.rank, group.size)
        self._masks: dict[tuple[int, int], Tensor] = {}

    def local_tokens(self, ids_BT: Tensor) -> Tensor:
        """This rank's two chunks of whole sequences."""
        self.num_local_tokens(ids_BT.shape[1])
        parts = ids_BT.chunk(2 * self.group.size, dim=1)
        return torch.cat([parts[chunk] for chunk in self.chunks], 1)

    def num_local_tokens(self, num_tokens: int) -> int:
        """Tokens of a sequence of `num_tokens` that this rank works on."""
        if num_tokens % (2 * self.group.size):
            raise UnsupportedConfigError(
                f"cp={self.group.size} cuts a sequence into {2 * self.group.size} chunks, which "
                f"does not divide {num_tokens} tokens",
                hint="use a sequence_length that 2 * cp divides",
            )
        return num_tokens // self.group.size

    def positions(self, num_local_tokens: int) -> Tensor:
        """Positions in their sequence of this rank's tokens."""
        size = num_local_tokens // 2
        return torch.cat(
            [torch.arange(c * size, (c + 1) * size, device=self.device) for c in self.chunks]
        )

    def attend(self, q_BHTE: Tensor, k_BKTE: Tensor, v_BKTE: Tensor) -> Tensor:
        """Each chunk of queries attends to the sequence up to its own end."""
        k_BKSE, v_BKSE = GatherKeysValues.apply(k_BKTE, v_BKTE, self.group)
        if q_BHTE.shape[1] != k_BKTE.shape[1]:
            k_BKSE, v_BKSE = expand_heads(k_BKSE, q_BHTE), expand_heads(v_BKSE, q_BHTE)
        size = q_BHTE.shape[2] // 2
        outputs = []
        for q_BHCE, chunk in zip(q_BHTE.split(size, dim=2), self.chunks, strict=True):
            end = (chunk + 1) * size
            outputs.append(
                F.scaled_dot_product_attention(
                    q_BHCE,
                    k_BKSE[:, :, :end],
                    v_BKSE[:, :, :end],
                    attn_mask=self._mask(size, end),
                )
            )
        return torch.cat(outputs, 2)

    def _mask(self, num_queries: int, num_keys: int) -> Tensor:
        """True where the last `num_queries` tokens of `num_keys` may look."""
        key = (num_queries, num_keys)
        if key not in self._masks:
            full = torch.ones(key, dtype=torch.bool, device=self.device)
            self._masks[key] = full.tril(num_keys - num_queries)
        return self._masks[key]


class GatherKeysValues(torch.autograd.Function):
    """Keys and values of the whole sequence, in its order, from every rank's two chunks.

    One message carries both. The gradients, of which each rank has a part for every token, are
    summed and dealt back by a reduce-scatter.
    """

    @staticmethod
    def forward(ctx: Any, k: Tensor, v: Tensor, group: Group) -> tuple[Tensor, Tensor]:  # noqa: D102
        ctx.group = group
        order = sequence_order(group.size)
        # the chunk goes in front, so that gathered chunks are whole slices
        own_CXBKTE = torch.stack([_chunked(k), _chunked(v)], 1)
        joined = own_CXBKTE.new_empty(2 * group.size, *own_CXBKTE.shape[1:])
        group.all_gather(joined.view(-1), own_CXBKTE.view(-1)).wait()
        keys, values = (torch.cat([joined[place, kind] for place in order], 2) for kind in range(2))
        return keys, values

    @staticmethod
    def backward(ctx: Any, dk: Tensor, dv: Tensor) -> tuple[Tensor, Tensor, None]:  # noqa: D102
        group: Group = ctx.group
        order = sequence_order(group.size)
        num_chunks = 2 * group.size
        parts = torch.stack(
            [
                torch.stack(pair)
                for pair in zip(dk.chunk(num_chunks, 2), dv.chunk(num_chunks, 2), strict=True)
            ]
        )
        joined = torch.empty_like(parts)
        joined[order] = parts
        own = parts.new_empty(2, *parts.shape[1:])
        group.reduce_scatter(own.view(-1), joined.view(-1))
        return torch.cat([own[0, 0], own[1, 0]], 2), torch.cat([own[0, 1], own[1, 1]], 2), None


def _chunked(x_BKTE: Tensor) -> Tensor:
    """The two chunks of a rank's tokens, stacked in front."""
    return torch.stack(x_BKTE.chunk(2, dim=2))
