"""Pieces of parameters: they cover the whole, are counted once, and are filled layout-free."""

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from search_spaces.counts import num_parameters
from search_spaces.model_spec import ModelSpec
from search_spaces.parallel_config import ParallelConfig
from trainer.model.parameters import Initializer, cut, local_shape, num_held, num_owned
from trainer.parallel.collectives import CollectiveLog, Group
from trainer.parallel.tensor_1d import Tensor1D
from trainer.reference import all_specs

CPU = torch.device("cpu")


class LonelyGroups:
    """Groups of a rank of a world in which nobody speaks."""

    def __init__(self, rank, size):
        self.rank, self.size = rank, size

    def group(self, axis):
        ranks = tuple(range(self.size))
        return Group(axis, ranks, self.rank, None, CollectiveLog(), True)

    def of_ranks(self, axis, ranks):
        return Group(axis, ranks, ranks.index(self.rank), None, CollectiveLog(), True)


def forms(model, size):
    config = ParallelConfig(tp=size)
    return [Tensor1D(model, config, LonelyGroups(rank, size)) for rank in range(size)]


def model_of(family, *, kv_heads=4, vocab_size=101, tied=False, qkv_bias=False):
    return ModelSpec(
        name="m", family=family, num_layers=2, hidden_size=16, num_heads=8, num_kv_heads=kv_heads,
        head_dim=2, ffn_size=32, vocab_size=vocab_size, max_positions=24, tied_embeddings=tied,
        qkv_bias=qkv_bias, num_experts=4 if family == "mixtral" else 0,
        experts_per_token=2 if family == "mixtral" else 0,
    )  # fmt: skip


MODELS = st.builds(
    model_of, st.sampled_from(["gpt2", "llama", "mixtral"]), kv_heads=st.sampled_from([1, 2, 4, 8]),
    vocab_size=st.integers(16, 150), tied=st.booleans(), qkv_bias=st.booleans(),
)  # fmt: skip


@settings(deadline=None, max_examples=30)
@given(MODELS, st.sampled_from([1, 2, 4, 8]))
def test_owned_parameters_add_up_to_the_published_count(model, size):
    owned = sum(num_owned(spec, form) for form in forms(model, size) for spec in all_specs(model))
    assert owned == num_parameters(model)


@settings(deadline=None, max_examples=20)
@given(MODELS, st.sampled_from([1, 2, 4]), st.integers(0, 3))
def test_filling_a_piece_equals_cutting_the_whole(model, size, seed):
    initializer = Initializer(seed, CPU)
    for form in forms(model, size):
        for spec in all_specs(model):
            piece = torch.full(local_shape(spec, form), 7.0)
            initializer.fill(piece, spec, form)
            assert torch.equal(piece, cut(initializer.full(spec), spec, form))


@settings(deadline=None, max_examples=20)
@given(MODELS, st.sampled_from([2, 4]))
def test_pieces_cover_every_element(model, size):
    for spec in all_specs(model):
        marked = torch.arange(torch.Size(spec.shape).numel(), dtype=torch.float64) + 1
        whole = marked.view(spec.shape)
        seen = torch.cat([cut(whole, spec, form).flatten() for form in forms(model, size)])
        assert set(seen[seen > 0].tolist()) == set(marked.tolist())
        held = sum(num_held(spec, form) for form in forms(model, size))
        assert int((seen > 0).sum()) == held


def test_values_depend_on_seed_and_name_alone():
    specs = {spec.name: spec for spec in all_specs(model_of("gpt2"))}
    first = Initializer(1, CPU).full(specs["layers.0.attention.qkv.weight"])
    assert torch.equal(first, Initializer(1, CPU).full(specs["layers.0.attention.qkv.weight"]))
    assert not torch.equal(first, Initializer(2, CPU).full(specs["layers.0.attention.qkv.weight"]))
    other = Initializer(1, CPU).full(specs["layers.1.attention.qkv.weight"])
    assert not torch.equal(first, other)


def test_weights_have_the_published_spread():
    (spec,) = [s for s in all_specs(model_of("llama", vocab_size=5000)) if s.name == "head"]
    values = Initializer(0, CPU).full(spec)
    assert values.std().item() == pytest.approx(0.02, rel=0.02)
    assert abs(values.mean().item()) < 1e-3


@pytest.mark.parametrize(("kv_heads", "size"), [(2, 4), (1, 8), (2, 8)])
def test_shared_kv_heads_sum_their_gradient_over_the_ranks_that_hold_them(kv_heads, size):
    model = model_of("llama", kv_heads=kv_heads)
    (spec,) = [s for s in all_specs(model) if s.name == "layers.0.attention.qkv.weight"]
    for rank, form in enumerate(forms(model, size)):
        key_sum, value_sum = form.gradient_groups(spec)
        sharers = size // kv_heads
        assert key_sum.group.ranks == tuple(
            range(rank // sharers * sharers, (rank // sharers + 1) * sharers)
        )
        queries = model.num_heads * model.head_dim // size
        assert (key_sum.start, key_sum.stop) == (queries, queries + model.head_dim)
        assert (value_sum.start, value_sum.stop) == (key_sum.stop, key_sum.stop + model.head_dim)
