"""Ranks and coordinates: a bijection whose groups partition the world."""

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from search_spaces.parallel_config import ParallelConfig
from trainer.errors import UnsupportedConfigError
from trainer.mesh import AXES, ParallelMesh

_SIZES = st.integers(1, 3)
_CONFIGS = st.builds(ParallelConfig, dp=_SIZES, tp=_SIZES, cp=_SIZES, pp=_SIZES)


@settings(deadline=None, max_examples=40)
@given(_CONFIGS)
def test_coordinates_are_a_bijection(config):
    mesh = ParallelMesh(config, config.world_size)
    seen = {tuple(mesh.coordinates(rank).values()) for rank in range(config.world_size)}
    assert len(seen) == config.world_size
    assert all(mesh.rank_at(mesh.coordinates(r)) == r for r in range(config.world_size))


@settings(deadline=None, max_examples=40)
@given(_CONFIGS, st.sets(st.sampled_from(AXES), min_size=1))
def test_groups_partition_the_world(config, axes):
    mesh = ParallelMesh(config, config.world_size)
    groups = {mesh.ranks_along(rank, tuple(axes)) for rank in range(config.world_size)}
    assert sorted(rank for group in groups for rank in group) == list(range(config.world_size))
    for rank in range(config.world_size):
        assert rank in mesh.ranks_along(rank, tuple(axes))


@settings(deadline=None, max_examples=40)
@given(st.integers(1, 4), st.integers(1, 4), st.integers(1, 3), st.integers(1, 3))
def test_shard_and_replicate_groups_cross_in_one_rank(shards, replicas, tp, pp):
    config = ParallelConfig(
        dp=shards * replicas, tp=tp, pp=pp, zero_stage=1, zero_shard_degree=shards
    )
    mesh = ParallelMesh(config, config.world_size)
    for rank in range(config.world_size):
        shard, replicate = mesh.shard_ranks(rank), mesh.replicate_ranks(rank)
        assert len(shard) == shards
        assert len(replicate) == replicas
        assert set(shard) & set(replicate) == {rank}
        assert set(shard) | set(replicate) <= set(mesh.data_ranks(rank))


def test_tensor_parallel_ranks_are_neighbours():
    mesh = ParallelMesh(ParallelConfig(tp=2, dp=2, pp=2), 8)
    assert mesh.ranks_along(0, ("tp",)) == (0, 1)
    assert mesh.ranks_along(0, ("dp",)) == (0, 2)
    assert mesh.ranks_along(0, ("pp",)) == (0, 4)


def test_without_zero_nothing_is_sharded():
    mesh = ParallelMesh(ParallelConfig(dp=4), 4)
    assert mesh.shard_ranks(2) == (2,)
    assert mesh.replicate_ranks(2) == (0, 1, 2, 3)


def test_a_wrong_world_size_is_refused():
    with pytest.raises(UnsupportedConfigError, match="needs 4 ranks, but 3 were started"):
        ParallelMesh(ParallelConfig(dp=4), 3)


def test_a_shard_degree_that_does_not_divide_is_refused():
    mesh = ParallelMesh(ParallelConfig(dp=4, zero_stage=1, zero_shard_degree=3), 4)
    with pytest.raises(UnsupportedConfigError, match="zero_shard_degree=3"):
        mesh.shard_ranks(0)
