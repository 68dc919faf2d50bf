"""The 2D and 2.5D layouts: places on the mesh, pieces of parameters, refusals, one real run."""

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from search_spaces.parallel_config import ParallelConfig
from trainer.errors import UnsupportedConfigError
from trainer.model import specs
from trainer.model.parameters import cut, local_shape, num_owned
from trainer.oracle.products import MODELS, parse_product
from trainer.oracle.runner import OracleRunner
from trainer.parallel.collectives import CollectiveLog, Group
from trainer.parallel.mesh_2d import TensorMesh
from trainer.parallel.tensor_2d import Tensor2D

MESHES = st.builds(
    lambda side, depth: TensorMesh(side * side * depth, depth), st.integers(1, 6), st.integers(1, 5)
)


class _FakeGroups:
    """Groups without processes."""

    def __init__(self, rank, size):
        self.rank, self.size = rank, size

    def group(self, axis):
        return self.of_ranks(axis, tuple(range(self.size)))

    def of_ranks(self, axis, ranks):
        return Group(axis, ranks, ranks.index(self.rank), None, CollectiveLog(), True)


def _forms(model, **knobs):
    config = ParallelConfig(**knobs)
    return [Tensor2D(model, config, _FakeGroups(rank, config.tp)) for rank in range(config.tp)]


LAYOUTS = [
    {"tp": 4, "tp_layout": "2d", "micro_batch_size": 2},
    {"tp": 8, "tp_depth": 2, "tp_layout": "2.5d", "micro_batch_size": 4},
]


@given(mesh=MESHES)
def test_places_and_ranks_are_one_to_one(mesh):
    size = mesh.depth * mesh.side**2
    assert [mesh.rank_at(mesh.place(rank)) for rank in range(size)] == list(range(size))


@given(mesh=MESHES)
def test_rows_columns_and_lines_each_partition_the_mesh(mesh):
    size = mesh.depth * mesh.side**2
    for line_of, length in (
        (mesh.row_of, mesh.side), (mesh.column_of, mesh.side), (mesh.line_of, mesh.depth),
    ):  # fmt: skip
        lines = {tuple(line_of(rank)) for rank in range(size)}
        assert sorted(rank for line in lines for rank in line) == list(range(size))
        assert all(len(line) == length and list(line) == sorted(line) for line in lines)
        assert all(rank in line_of(rank) for rank in range(size))


@given(mesh=MESHES)
def test_the_mirror_swaps_rows_and_columns(mesh):
    for rank in range(mesh.depth * mesh.side**2):
        own, mirror = mesh.place(rank), mesh.place(mesh.mirror_of(rank))
        assert (own.layer, own.row, own.column) == (mirror.layer, mirror.column, mirror.row)
        assert mesh.mirror_of(mesh.mirror_of(rank)) == rank


@given(size=st.integers(2, 200), depth=st.integers(1, 8))
def test_other_sizes_are_no_mesh(size, depth):
    if any(depth * side * side == size for side in range(1, 15)):
        assert TensorMesh(size, depth).depth == depth
    else:
        with pytest.raises(ValueError, match="no mesh"):
            TensorMesh(size, depth)


def _all_specs(model):
    found = [*specs.embedding_specs(model), *specs.position_specs(model)]
    found += [*specs.layer_specs(model, 0), *specs.final_norm_specs(model)]
    return [*found, *specs.head_specs(model)]


@pytest.mark.parametrize("knobs", LAYOUTS, ids=["2d", "2.5d"])
@pytest.mark.parametrize("family", ["gpt2", "llama"])
def test_pieces_cover_every_parameter_once(family, knobs):
    """Numbers that name the elements: owners' pieces joined are all of them, each once."""
    model = MODELS[family]
    forms = _forms(model, **knobs)
    for spec in _all_specs(model):
        full = torch.arange(1, 1 + torch.Size(spec.shape).numel()).view(spec.shape)
        pieces = [cut(full, spec, form) for form in forms]
        for form, piece in zip(forms, pieces, strict=True):
            assert tuple(piece.shape) == local_shape(spec, form)
        owned = [p[p > 0] for p, f in zip(pieces, forms, strict=True) if num_owned(spec, f)]
        assert sorted(torch.cat(owned).tolist()) == full.flatten().tolist()
        assert sum(num_owned(spec, form) for form in forms) == full.numel()


@pytest.mark.parametrize("knobs", LAYOUTS, ids=["2d", "2.5d"])
def test_layers_of_the_depth_hold_the_same_and_sum_it(knobs):
    model = MODELS["gpt2"]
    forms = _forms(model, **knobs)
    depth = knobs.get("tp_depth", 1)
    for spec in _all_specs(model):
        full = torch.arange(torch.Size(spec.shape).numel()).view(spec.shape)
        for form in forms:
            sums = form.gradient_groups(spec)
            assert len(sums) == (1 if depth > 1 and cut(full, spec, form).numel() else 0)
            for item in sums:
                assert item.stop == local_shape(spec, form)[0]
                peers = [forms[rank] for rank in item.group.ranks]
                assert len(peers) == depth
                for peer in peers:
                    assert torch.equal(cut(full, spec, peer), cut(full, spec, form))


@pytest.mark.parametrize("knobs", LAYOUTS, ids=["2d", "2.5d"])
def test_rows_deal_out_the_sequences(knobs):
    forms = _forms(MODELS["gpt2"], **knobs)
    batch = knobs["micro_batch_size"]
    ids = torch.arange(batch).unsqueeze(-1).expand(batch, 3)
    counted = torch.cat([form.local_batch(ids) for form in forms if form.counts_tokens])
    assert sorted(counted[:, 0].tolist()) == list(range(batch))
    assert sum(form.counts_passes for form in forms) == 1
    for form in forms:
        expected = (*form.local_batch(ids).shape, MODELS["gpt2"].hidden_size // 2)
        assert form.hidden_shape(batch, 3) == expected


@pytest.mark.parametrize(
    ("knobs", "message"),
    [
        ({"tp": 8, "tp_layout": "2d", "micro_batch_size": 4}, "8 ranks are no mesh of 1 x q x q"),
        ({"tp": 9, "tp_layout": "2d", "micro_batch_size": 3}, "side 3 does not divide heads 4"),
        ({"tp": 4, "tp_layout": "2d", "micro_batch_size": 3}, "cannot be dealt to 2 rows"),
    ],
)
def test_what_does_not_divide_is_refused(knobs, message):
    with pytest.raises(UnsupportedConfigError, match=message):
        _forms(MODELS["gpt2"], **knobs)


def test_experts_are_refused():
    form = _forms(MODELS["gpt2"], **LAYOUTS[0])[0]
    for operation in (form.enter, form.leave):
        with pytest.raises(UnsupportedConfigError, match="mixtures of experts"):
            operation(torch.zeros(1, 1, 1))


@pytest.mark.distributed
@pytest.mark.parametrize(
    "name",
    [
        "tp=4,tp_layout=2d,micro_batch_size=2,recompute=full",
        pytest.param(
            "family=llama,tp=8,tp_depth=2,tp_layout=2.5d,micro_batch_size=4",
            marks=pytest.mark.slow,
        ),
        pytest.param(
            "family=llama-by-3,tp=9,tp_layout=2d,micro_batch_size=3", marks=pytest.mark.slow
        ),
    ],
)
def test_training_equals_the_single_process(name, tmp_path, monkeypatch):
    monkeypatch.setenv("OMP_NUM_THREADS", "1")
    verdict = OracleRunner(tmp_path).check(parse_product(name))
    assert verdict.is_equal, verdict
