"""SUMMA products on real ranks: values, gradients, buffers and collectives against the whole."""

import json
import multiprocessing
import traceback
from pathlib import Path

import pytest
import torch
import torch.distributed as dist
from torch.nn.functional import layer_norm, linear

from search_spaces.parallel_config import ParallelConfig
from trainer.mesh import ParallelMesh
from trainer.model.parameters import ShardParameter
from trainer.parallel.collectives import Communicator
from trainer.parallel.linear_2d import Linear2D, Norm2D
from trainer.parallel.mesh_2d import TensorMesh
from trainer.parallel.panels import VARIANTS
from trainer.parallel.summa import Grid, Product, ProductAT, ProductBT, multiply

M, K, N = 12, 18, 24  # divisible by 2 and 3
PRODUCTS = {
    "ab": (Product, (M, K), (K, N), lambda a, b: a @ b),
    "abt": (ProductBT, (M, K), (N, K), lambda a, b: a @ b.t()),
    "atb": (ProductAT, (K, M), (K, N), lambda a, b: a.t() @ b),
}


def _block(full, place, side):
    return full.chunk(side, 0)[place.row].chunk(side, 1)[place.column].contiguous()


def _worst(name, grid, place, is_transposed):
    """Largest difference of the product and its gradients from the whole matrices'."""
    function, a_shape, b_shape, whole = PRODUCTS[name]
    generator = torch.Generator().manual_seed(5)
    a, b = (torch.randn(s, generator=generator).requires_grad_() for s in (a_shape, b_shape))
    c = whole(a, b)
    dc = torch.randn(c.shape, generator=generator)
    c.backward(dc)
    own = [_block(x.detach(), place, grid.side) for x in (a, b)]
    if is_transposed:  # a view of the transposed block, as a weight's is
        own[1] = own[1].t().contiguous().t()
    own = [x.requires_grad_() for x in own]
    found = function.apply(*own, grid)
    found.backward(_block(dc, place, grid.side))
    pairs = [(found, c), (own[0].grad, a.grad), (own[1].grad, b.grad)]
    return max((x - _block(y, place, grid.side)).abs().max().item() for x, y in pairs)


class _Sink:
    """Keeps gradients as a unit would; puts weights' off while it defers."""

    def __init__(self, is_deferring):
        self.is_deferring, self.gradients, self.kept = is_deferring, {}, []

    def accumulate(self, parameter, grad):
        self.gradients[parameter.spec] = grad.clone()

    def accumulate_result(self, parameter, compute):
        if self.is_deferring:
            self.kept.append((parameter, compute))
        else:
            self.accumulate(parameter, compute())


def _parameter(name, value, sink):
    parameter = ShardParameter(value.contiguous())
    parameter.spec, parameter.sink = name, sink
    return parameter


def _layer_worst(grid, place, is_deferring):
    """The same for a linear layer with bias after a LayerNorm, vectors held by the first row."""
    side = grid.side
    generator = torch.Generator().manual_seed(6)
    shapes = {"x": (M, K), "gain": (K,), "shift": (K,), "weight": (N, K), "bias": (N,)}
    full = {k: torch.randn(v, generator=generator).requires_grad_() for k, v in shapes.items()}
    y = linear(
        layer_norm(full["x"], (K,), full["gain"], full["shift"], 1e-5),
        full["weight"], full["bias"],
    )  # fmt: skip
    dy = torch.randn(y.shape, generator=generator)
    y.backward(dy)
    sink = _Sink(is_deferring)

    def piece(name, full):
        if name == "weight":  # (out, in): outputs over columns, inputs over rows
            return full.chunk(side, 0)[place.column].chunk(side, 1)[place.row]
        return full.chunk(side)[place.column] if place.row == 0 else full[:0]

    own = {k: _parameter(k, piece(k, v.detach()), sink) for k, v in full.items() if k != "x"}
    x = _block(full["x"].detach(), place, side).unsqueeze(0).requires_grad_()
    h = Norm2D.apply(x, own["gain"], own["shift"], grid, 1e-5)
    found = Linear2D.apply(h, own["weight"], own["bias"], grid)
    found.backward(_block(dy, place, side).unsqueeze(0))
    for parameter, compute in sink.kept:
        sink.accumulate(parameter, compute())
    pairs = [(found[0], _block(y, place, side)), (x.grad[0], _block(full["x"].grad, place, side))]
    held = own if place.row == 0 else ["weight"]
    pairs += [(sink.gradients[k], piece(k, full[k].grad)) for k in held]
    assert set(sink.gradients) == set(held)
    return max((a - b).abs().max().item() for a, b in pairs)


def _check_rank(folder, rank, size):
    try:
        torch.set_num_threads(1)
        dist.init_process_group(
            "gloo", init_method=f"file://{folder}/rendezvous", rank=rank, world_size=size
        )
        groups = Communicator(ParallelMesh(ParallelConfig(tp=size), size), rank)
        mesh = TensorMesh(size)
        rows = groups.of_ranks("tp_row", tuple(mesh.row_of(rank)))
        columns = groups.of_ranks("tp_column", tuple(mesh.column_of(rank)))
        result = {}
        for variant in VARIANTS:
            grid = Grid(rows, columns, variant)
            worst = {
                f"{name} {is_transposed}": _worst(name, grid, mesh.place(rank), is_transposed)
                for name in PRODUCTS
                for is_transposed in (False, True)
            }
            for is_deferring in (False, True):
                worst[f"layer {is_deferring}"] = _layer_worst(grid, mesh.place(rank), is_deferring)
            allocations = grid.buffers.num_allocations
            groups.log.clear()
            a, b = torch.ones(M // mesh.side, K // mesh.side), torch.ones(K // mesh.side, 6)
            multiply(grid, a, b)
            result[variant] = {
                "worst": worst,
                "new_buffers": grid.buffers.num_allocations - allocations,
                "log": {name: entry["bytes"] for name, entry in groups.log.totals.items()},
                "calls": {name: entry["calls"] for name, entry in groups.log.totals.items()},
            }
        dist.destroy_process_group()
    except Exception:
        result = {"error": traceback.format_exc()}
    (Path(folder) / f"result.{rank}.json").write_text(json.dumps(result))


@pytest.mark.distributed
@pytest.mark.parametrize("size", [4, 9])
def test_products_and_gradients_equal_the_whole_matrices(size, tmp_path, monkeypatch):
    monkeypatch.setenv("OMP_NUM_THREADS", "1")
    context = multiprocessing.get_context("fork")
    ranks = [context.Process(target=_check_rank, args=(tmp_path, r, size)) for r in range(size)]
    for rank in ranks:
        rank.start()
    for rank in ranks:
        rank.join(100)
    for rank in ranks:
        rank.kill()
        rank.join()
    side = TensorMesh(size).side
    for rank in range(size):
        result = json.loads((tmp_path / f"result.{rank}.json").read_text())
        assert "error" not in result, result["error"]
        for variant, found in result.items():
            assert max(found["worst"].values()) < 1e-4, found
            assert found["new_buffers"] == 0
            payload = {"tp_row": 4 * M * K // size, "tp_column": 4 * K // side * 6}
            operation, calls = {"broadcast": ("broadcast", side), "gather": ("all_gather", 1)}[
                variant
            ]
            assert found["calls"] == {f"{axis}.{operation}": calls for axis in payload}
            assert found["log"] == {f"{a}.{operation}": calls * n for a, n in payload.items()}
