"""Groups of expert parallelism, and the way of tokens to their experts and back."""

from types import SimpleNamespace

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from search_spaces.parallel_config import ParallelConfig
from trainer.errors import UnsupportedConfigError
from trainer.mesh import ParallelMesh
from trainer.model.moe import route
from trainer.parallel.expert import (
    TokenDispatcher,
    expert_data_ranks,
    expert_ranks,
    expert_shard_degree,
)

meshes = st.builds(
    lambda tp, cp, ep, more, pp, zero_stage: ParallelMesh(
        ParallelConfig(tp=tp, cp=cp, dp=ep * more, ep=ep, pp=pp, zero_stage=zero_stage),
        tp * cp * ep * more * pp,
    ),
    st.integers(1, 2), st.integers(1, 2), st.integers(1, 4), st.integers(1, 3), st.integers(1, 2),
    st.integers(0, 3),
)  # fmt: skip


def alone(num_experts=4):
    return TokenDispatcher(SimpleNamespace(rank=0, size=1), num_experts)


@given(mesh=meshes)
@settings(max_examples=60)
def test_expert_groups_partition_the_world(mesh):
    for groups in (expert_ranks, expert_data_ranks):
        found = {groups(mesh, rank) for rank in range(mesh.world_size)}
        assert sorted(rank for group in found for rank in group) == list(range(mesh.world_size))


@given(mesh=meshes)
@settings(max_examples=60)
def test_a_rank_meets_each_of_its_data_ranks_in_one_of_the_two_groups(mesh):
    for rank in range(mesh.world_size):
        experts, data = expert_ranks(mesh, rank), expert_data_ranks(mesh, rank)
        assert set(experts) & set(data) == {rank}
        assert len(experts) * len(data) == len(mesh.data_ranks(rank))
        assert set(experts) | set(data) <= set(mesh.data_ranks(rank))
        assert len(data) % expert_shard_degree(mesh, rank) == 0


def test_ranks_of_an_expert_group_are_neighbours():
    mesh = ParallelMesh(ParallelConfig(tp=2, dp=4, ep=2), 8)
    assert expert_ranks(mesh, 0) == (0, 2)
    assert expert_data_ranks(mesh, 0) == (0, 4)


@pytest.mark.parametrize("ep", [3, 8])
def test_experts_that_cannot_be_dealt_out_are_refused(ep):
    with pytest.raises(UnsupportedConfigError, match=f"ep={ep} does not divide the 4 experts"):
        TokenDispatcher(SimpleNamespace(rank=0, size=ep), 4)
    with pytest.raises(UnsupportedConfigError, match="does not divide dp=2"):
        expert_ranks(ParallelMesh(ParallelConfig(dp=2, ep=ep), 2), 0)


@given(num_tokens=st.integers(1, 20), choices=st.integers(1, 4), seed=st.integers(0, 99))
def test_rows_come_in_the_order_of_experts_and_go_back_to_their_tokens(num_tokens, choices, seed):
    generator = torch.Generator().manual_seed(seed)
    scores = torch.randn(num_tokens, 4, generator=generator)
    x = torch.randn(num_tokens, 3, generator=generator)
    weights, experts = route(scores, choices)
    dispatcher = alone()
    plan = dispatcher.plan(experts)
    rows = dispatcher.dispatch(x, plan)
    assert sum(plan.counts) == num_tokens * choices
    for expert, part in enumerate(rows.split(plan.counts)):
        tokens = (experts == expert).any(1).nonzero().flatten()
        torch.testing.assert_close(part, x[tokens])
    # experts that do nothing, with weights that add up to 1: every token comes back
    torch.testing.assert_close(dispatcher.combine(rows, weights, plan), x)


@given(choices=st.integers(1, 4), seed=st.integers(0, 99))
def test_routing_weights_add_up_to_one_and_follow_the_scores(choices, seed):
    scores = torch.randn(16, 4, generator=torch.Generator().manual_seed(seed))
    weights, experts = route(scores, choices)
    torch.testing.assert_close(weights.sum(1), torch.ones(16))
    chosen = scores.gather(1, experts)
    assert torch.equal(chosen, scores.topk(choices).values)
    torch.testing.assert_close(weights, chosen.softmax(1))
