"""How the panels of a product on a `q x q` mesh come and how its partial results go.

A product on the mesh is a loop over `q` steps. In step `l` every rank needs panel `l` of an operand
(the block of the `l`-th rank of its row or column), or makes a partial result that belongs to that
rank. Two ways, of the same volume:

* `broadcast` (SUMMA; Optimus, arXiv 2104.05343, algorithms 1 to 3): panel by panel, by broadcasts
  and reductions. Two panels of each operand are in memory: the next one travels while the present
  one is multiplied.
* `gather`: one all-gather per operand, one reduce-scatter per result, `q` panels in memory.

Buffers belong to a `PanelBuffers` and are used again in every product of every step.
"""

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Protocol

import torch
from torch import Tensor

from trainer.parallel.collectives import Done, Group, Pending


@dataclass
class PanelBuffers:
    """Flat buffers by role, grown to the largest panel that was asked for."""

    held: dict[tuple[str, torch.dtype], Tensor] = field(default_factory=dict)
    num_allocations: int = 0

    def take(self, role: str, like: Tensor, count: int = 1) -> Tensor:
        """A buffer for `count` blocks of the shape and type of `like`: (count, *shape)."""
        key, size = (role, like.dtype), count * like.numel()
        flat = self.held.get(key)
        if flat is None or flat.numel() < size:
            self.num_allocations += 1
            flat = self.held[key] = like.new_empty(size)
        return flat[:size].view(count, *like.shape)

    @property
    def num_bytes(self) -> int:
        """Bytes of all buffers."""
        return sum(flat.numel() * flat.element_size() for flat in self.held.values())


class PanelSource(Protocol):
    """The blocks of one operand along a row or column of the mesh."""

    def panel(self, step: int) -> Tensor:
        """Block of the group's rank number `step`; to be asked for in order, valid for one step."""


class PanelSink(Protocol):
    """Partial results for every rank of a row or column of the mesh."""

    def slot(self, step: int) -> Tensor:
        """Where to write the partial result that belongs to the group's rank number `step`."""

    def send(self, step: int) -> None:
        """The slot is written."""

    def finish(self) -> None:
        """Wait until this rank's own sum is complete in its result."""


class BroadcastPanels:
    """Panels by broadcast, one step ahead of their use."""

    def __init__(self, group: Group, own: Tensor, buffers: PanelBuffers, role: str) -> None:
        self._group, self._own, self._buffers, self._role = group, own, buffers, role
        self._next: tuple[Tensor, Pending] = self._start(0)

    def _start(self, step: int) -> tuple[Tensor, Pending]:
        if step == self._group.rank:
            block = self._own
        else:
            block = self._buffers.take(f"{self._role}{step % 2}", self._own)[0]
        return block, self._group.broadcast(block, step, is_async=True)

    def panel(self, step: int) -> Tensor:
        """Wait for panel `step` and start the one after it."""
        block, pending = self._next
        pending.wait()
        if step + 1 < self._group.size:
            self._next = self._start(step + 1)
        return block


class ReducedPanels:
    """Partial results by reduction, each while the next is computed."""

    def __init__(self, group: Group, result: Tensor, buffers: PanelBuffers, role: str) -> None:
        self._group, self._result, self._buffers, self._role = group, result, buffers, role
        self._pending: list[Pending] = [Done(), Done()]

    def slot(self, step: int) -> Tensor:
        """This rank's result itself, or a buffer whose last reduction is over."""
        self._pending[step % 2].wait()
        if step == self._group.rank:
            return self._result
        return self._buffers.take(f"{self._role}{step % 2}", self._result)[0]

    def send(self, step: int) -> None:
        """Start the reduction to rank `step`."""
        block = self.slot(step)
        self._pending[step % 2] = self._group.reduce(block, step, is_async=True)

    def finish(self) -> None:
        """Wait for the last two reductions."""
        for pending in self._pending:
            pending.wait()


class GatheredPanels:
    """Panels by one all-gather."""

    def __init__(self, group: Group, own: Tensor, buffers: PanelBuffers, role: str) -> None:
        self._blocks = buffers.take(role, own, group.size)
        self._pending = group.all_gather(self._blocks.view(-1), own.view(-1), is_async=True)

    def panel(self, step: int) -> Tensor:
        """Wait for all panels once."""
        self._pending.wait()
        return self._blocks[step]


class ScatteredPanels:
    """Partial results by one reduce-scatter."""

    def __init__(self, group: Group, result: Tensor, buffers: PanelBuffers, role: str) -> None:
        self._group, self._result = group, result
        self._blocks = buffers.take(role, result, group.size)
        self._pending: Pending = Done()

    def slot(self, step: int) -> Tensor:
        """A block of the buffer."""
        return self._blocks[step]

    def send(self, step: int) -> None:
        """After the last block, start the reduce-scatter."""
        if step == self._group.size - 1:
            blocks, result = self._blocks.view(-1), self._result.view(-1)
            self._pending = self._group.reduce_scatter(result, blocks, is_async=True)

    def finish(self) -> None:
        """Wait for it."""
        self._pending.wait()


SourceMaker = Callable[[Group, Tensor, PanelBuffers, str], PanelSource]
SinkMaker = Callable[[Group, Tensor, PanelBuffers, str], PanelSink]
VARIANTS: dict[str, tuple[SourceMaker, SinkMaker]] = {
    "broadcast": (BroadcastPanels, ReducedPanels),
    "gather": (GatheredPanels, ScatteredPanels),
}
