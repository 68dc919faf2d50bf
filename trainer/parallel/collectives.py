"""Process groups of one trial, and a log of every collective that runs on them.

A `Group` is a torch process group with its size, this rank's place in it, and a `CollectiveLog`
that counts calls, bytes and host seconds per `axis.operation`. Groups belong to a `Communicator`,
which belongs to one trial: nothing is global, so that two trials can live in one process one after
the other. A group of one rank does nothing and needs no process group.
"""

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any, Protocol

import torch
import torch.distributed as dist
from torch import Tensor

from trainer.mesh import ParallelMesh


class Pending(Protocol):
    """A collective under way."""

    def wait(self) -> Any:
        """Block (or make the current stream wait) until it is done."""


class Done:
    """A collective that had nothing to do."""

    def wait(self) -> None:
        """Return at once."""


@dataclass
class CollectiveLog:
    """Calls, bytes sent per rank and host seconds by `axis.operation` since the last `clear`."""

    totals: dict[str, dict[str, float]] = field(default_factory=dict)

    def add(self, name: str, num_bytes: int, seconds: float, calls: int = 1) -> None:
        """Count one collective of `num_bytes` payload that held the host for `seconds`."""
        entry = self.totals.setdefault(name, {"calls": 0, "bytes": 0, "seconds": 0.0})
        entry["calls"] += calls
        entry["bytes"] += num_bytes
        entry["seconds"] += seconds

    def clear(self) -> None:
        """Forget everything counted so far."""
        self.totals.clear()

    @property
    def seconds(self) -> float:
        """Host seconds of all collectives."""
        return sum(entry["seconds"] for entry in self.totals.values())


class LoggedWork:
    """A pending collective whose waiting time is logged; `finish` runs once, after it is done.

    `tensors` are held until then, as the backend's own work object holds them.
    """

    def __init__(
        self, work: Any, log: CollectiveLog, name: str, tensors: tuple[Tensor, ...],
        finish: Callable[[], None] | None = None,
    ) -> None:  # fmt: skip
        self._work, self._log, self._name, self._finish = work, log, name, finish
        self._tensors = tensors if work is not None else ()

    def wait(self) -> None:
        """Wait, log the seconds and finish; a second call is free."""
        start = time.perf_counter()
        if self._work is not None:
            self._work.wait()
        if self._finish is not None:
            self._finish()
        if self._work is not None:
            self._log.add(self._name, 0, time.perf_counter() - start, calls=0)
        self._work = self._finish = None
        self._tensors = ()


@dataclass
class Group:
    """Ranks that communicate together along one axis of the mesh."""

    axis: str
    ranks: tuple[int, ...]
    rank: int
    process_group: Any
    log: CollectiveLog
    uses_gloo: bool

    @property
    def size(self) -> int:
        """Number of ranks."""
        return len(self.ranks)

    @contextmanager
    def _logged(self, operation: str, num_bytes: int) -> Iterator[str]:
        name, start = f"{self.axis}.{operation}", time.perf_counter()
        yield name
        self.log.add(name, num_bytes, time.perf_counter() - start)

    def all_reduce(self, x: Tensor, *, maximum: bool = False, is_async: bool = False) -> Pending:
        """Sum (or maximum) over the group, in place; `x` must be contiguous."""
        if self.size == 1 or not x.numel():
            return Done()
        operation = dist.ReduceOp.MAX if maximum else dist.ReduceOp.SUM
        with self._logged("all_reduce", x.numel() * x.element_size()) as name:
            work = dist.all_reduce(x, operation, group=self.process_group, async_op=is_async)
        return LoggedWork(work, self.log, name, (x,))

    def all_gather(self, out: Tensor, x: Tensor, *, is_async: bool = False) -> Pending:
        """Concatenate every rank's flat `x` into flat `out`; `x` may be a slice of `out`."""
        if self.size == 1 or not x.numel():
            if out.data_ptr() != x.data_ptr():
                out.copy_(x)
            return Done()
        with self._logged("all_gather", x.numel() * x.element_size()) as name:
            work = _all_gather(out, x, self.process_group, is_async)
        return LoggedWork(work, self.log, name, (out, x))

    def reduce_scatter(self, out: Tensor, x: Tensor, *, is_async: bool = False) -> Pending:
        """Sum flat `x` over the group and keep this rank's equal part in flat `out`.

        gloo's own reduce-scatter moves about a third of the bytes per second of its all-to-all
        (measured over loopback), so there the sum is done here after an all-to-all.
        """
        if self.size == 1 or not x.numel():
            out.copy_(x)
            return Done()
        with self._logged("reduce_scatter", x.numel() * x.element_size()) as name:
            if not self.uses_gloo:
                work = _reduce_scatter(out, x, self.process_group, is_async)
                return LoggedWork(work, self.log, name, (out, x))
            parts = torch.empty_like(x)
            work = dist.all_to_all_single(parts, x, group=self.process_group, async_op=is_async)
        pending = LoggedWork(work, self.log, name, (x,), lambda: _sum_parts(out, parts))
        if not is_async:
            pending.wait()
        return pending

    def all_to_all(
        self, x: Tensor, out_splits: list[int] | None = None, in_splits: list[int] | None = None
    ) -> Tensor:
        """Send a part of dim 0 to every rank, and return what came; equal parts without splits."""
        if self.size == 1:
            return x
        rows = x.shape[0] if out_splits is None else sum(out_splits)
        out = x.new_empty(rows, *x.shape[1:])
        with self._logged("all_to_all", x.numel() * x.element_size()):
            dist.all_to_all_single(
                out, x.contiguous(), out_splits, in_splits, group=self.process_group
            )
        return out

    def exchange(self, x: Tensor, peer: int) -> Tensor:
        """Swap equally shaped contiguous tensors with the group's rank number `peer`."""
        if peer == self.rank:
            return x
        out = torch.empty_like(x)
        with self._logged("exchange", x.numel() * x.element_size()):
            both = [
                dist.P2POp(operation, tensor, group=self.process_group, group_peer=peer)
                for operation, tensor in ((dist.isend, x), (dist.irecv, out))
            ]
            for work in dist.batch_isend_irecv(both):
                work.wait()
        return out

    def broadcast(self, x: Tensor, source: int, *, is_async: bool = False) -> Pending:
        """Copy `x` of the group's rank number `source` to all, in place."""
        if self.size == 1 or not x.numel():
            return Done()
        with self._logged("broadcast", x.numel() * x.element_size()) as name:
            work = dist.broadcast(x, group=self.process_group, group_src=source, async_op=is_async)
        return LoggedWork(work, self.log, name, (x,))

    def reduce(self, x: Tensor, destination: int, *, is_async: bool = False) -> Pending:
        """Sum `x` into the group's rank number `destination`; the others' `x` is lost."""
        if self.size == 1 or not x.numel():
            return Done()
        with self._logged("reduce", x.numel() * x.element_size()) as name:
            work = dist.reduce(
                x, group=self.process_group, group_dst=destination, async_op=is_async
            )
        return LoggedWork(work, self.log, name, (x,))


def _all_gather(out: Tensor, x: Tensor, group: Any, is_async: bool) -> Any:
    # the name changed in torch 2.13 and the old one warns there
    gather = getattr(dist, "all_gather_single", None) or dist.all_gather_into_tensor
    return gather(out, x, group=group, async_op=is_async)


def _sum_parts(out: Tensor, parts: Tensor) -> None:
    torch.sum(parts.view(-1, out.numel()), 0, out=out)


def _reduce_scatter(out: Tensor, x: Tensor, group: Any, is_async: bool) -> Any:
    scatter = getattr(dist, "reduce_scatter_single", None) or dist.reduce_scatter_tensor
    return scatter(out, x, group=group, async_op=is_async)


class Communicator:
    """All groups that this rank belongs to, made when first asked for.

    Only members take part in making a group, but torch names a group after its ranks and the number
    of groups that the process has: all members must have made equally many before. So groups that
    only some ranks have come after those that all have.
    """

    def __init__(self, mesh: ParallelMesh, rank: int) -> None:
        self.mesh, self.rank, self.log = mesh, rank, CollectiveLog()
        self.uses_gloo = not dist.is_initialized() or dist.get_backend() == "gloo"
        self._made: dict[tuple[int, ...], Any] = {}

    def group(self, axis: str) -> Group:
        """Group along `tp`, `cp`, `dp`, `pp`, `data` (cp x dp), `shard`, `replicate` or `world`."""
        named = {
            "data": self.mesh.data_ranks,
            "shard": self.mesh.shard_ranks,
            "replicate": self.mesh.replicate_ranks,
            "world": lambda rank: tuple(range(self.mesh.world_size)),
        }
        if axis in named:
            return self.of_ranks(axis, named[axis](self.rank))
        return self.of_ranks(axis, self.mesh.ranks_along(self.rank, (axis,)))

    def of_ranks(self, axis: str, ranks: tuple[int, ...], *, fresh: bool = False) -> Group:
        """Group of explicit ranks, logged under `axis`; `fresh` makes a new communicator."""
        place = ranks.index(self.rank)
        return Group(
            axis, ranks, place, self._process_group(ranks, fresh), self.log, self.uses_gloo
        )

    def _process_group(self, ranks: tuple[int, ...], fresh: bool) -> Any:
        if len(ranks) == 1:
            return None
        if len(ranks) == self.mesh.world_size and not fresh:
            return dist.group.WORLD
        if fresh or ranks not in self._made:
            made = dist.new_group(list(ranks), use_local_synchronization=True)
            if fresh:
                return made
            self._made[ranks] = made
        return self._made[ranks]
