"""The split of a sequence over context-parallel ranks, and attention on it, without processes.

A fake group holds what the other ranks would send; the oracle runs the real thing.
"""

from types import SimpleNamespace

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from trainer.errors import UnsupportedConfigError
from trainer.model.attention import AttentionCore
from trainer.parallel.context import (
    ContextParallelAttention,
    chunks_of_rank,
    sequence_order,
)

MODEL = SimpleNamespace(head_dim=8, rope_theta=10000.0)
CPU = torch.device("cpu")


def core(rank, size):
    return ContextParallelAttention(MODEL, CPU, SimpleNamespace(rank=rank, size=size))


@given(size=st.integers(1, 16))
def test_chunks_cover_the_sequence_once_with_equal_work(size):
    held = [chunks_of_rank(rank, size) for rank in range(size)]
    assert sorted(chunk for pair in held for chunk in pair) == list(range(2 * size))
    # chunk c attends to c whole chunks and half of itself
    assert {sum(pair) for pair in held} == {2 * size - 1}


@given(size=st.integers(1, 16))
def test_joined_chunks_can_be_put_in_order(size):
    joined = [chunk for rank in range(size) for chunk in chunks_of_rank(rank, size)]
    assert [joined[place] for place in sequence_order(size)] == list(range(2 * size))


@given(size=st.integers(1, 8), chunk=st.integers(1, 5))
def test_tokens_and_positions_agree(size, chunk):
    ids = torch.arange(2 * size * chunk).unsqueeze(0)
    cores = [core(rank, size) for rank in range(size)]
    local = [c.local_tokens(ids)[0] for c in cores]
    assert sorted(torch.cat(local).tolist()) == ids[0].tolist()
    for c, tokens in zip(cores, local, strict=True):
        assert torch.equal(c.positions(len(tokens)), tokens)
        assert c.num_local_tokens(ids.shape[1]) == len(tokens)


def test_a_sequence_that_does_not_divide_is_refused():
    with pytest.raises(UnsupportedConfigError, match="6 chunks, which does not divide 16 tokens"):
        core(0, 3).num_local_tokens(16)


class _Gathered:
    """A group whose other ranks' keys and values are known; sums of gradients are left undone."""

    def __init__(self, rank, size, everyone):
        self.rank, self.size, self._everyone = rank, size, everyone

    def all_gather(self, out, x):
        out.copy_(torch.cat(self._everyone))
        return SimpleNamespace(wait=lambda: None)


@pytest.mark.parametrize("num_kv_heads", [4, 2])
@pytest.mark.parametrize("size", [1, 2, 3])
def test_each_rank_gets_its_part_of_the_whole_attention(size, num_kv_heads):
    generator = torch.Generator().manual_seed(0)
    q, k, v = (
        torch.randn(2, heads, 12 * size, 8, generator=generator)
        for heads in (4, num_kv_heads, num_kv_heads)
    )
    expected = AttentionCore(MODEL, CPU).attend(q, k, v)

    def local(x, rank):
        parts = x.chunk(2 * size, dim=2)
        return torch.cat([parts[chunk] for chunk in chunks_of_rank(rank, size)], 2)

    def sent(rank):
        halves = [torch.stack(local(x, rank).chunk(2, dim=2)) for x in (k, v)]
        return torch.stack(halves, 1).flatten()

    everyone = [sent(rank) for rank in range(size)]
    for rank in range(size):
        context = ContextParallelAttention(MODEL, CPU, _Gathered(rank, size, everyone))
        found = context.attend(local(q, rank), local(k, rank), local(v, rank))
        torch.testing.assert_close(found, local(expected, rank))
