"""Clocks: marks that cost nothing on the device, and a clock common to all ranks."""

import time
from collections.abc import Callable
from typing import Any

import torch
import torch.distributed as dist

from trainer.parallel.collectives import Group

Span = tuple[str, int, int, float, float]
_NUM_EXCHANGES = 8


class Timeline:
    """Start and end of the actions of one step.

    On CPU the host's clock is read; on an accelerator events are recorded in its stream and read
    after the step, so that timing never makes the host wait.
    """

    def __init__(self, device: torch.device) -> None:
        self._uses_events = device.type != "cpu"
        self._marks: list[tuple[str, int, int, Any, Any]] = []
        self._origin = self._mark()
        self._open: tuple[str, int, int, Any] | None = None

    def _mark(self) -> Any:
        if not self._uses_events:
            return time.perf_counter()
        event = torch.cuda.Event(enable_timing=True)
        event.record()
        return event

    def start(self, name: str, micro_batch: int = -1, stage: int = -1) -> None:
        """Begin a span."""
        self._open = (name, micro_batch, stage, self._mark())

    def end(self) -> None:
        """End the span that was begun last."""
        assert self._open is not None
        self._marks.append((*self._open, self._mark()))

    def spans(self) -> list[Span]:
        """All spans in seconds since the timeline was made; the device must have finished them."""
        return [
            (name, micro_batch, stage, self._since(start), self._since(end))
            for name, micro_batch, stage, start, end in self._marks
        ]

    def _since(self, mark: Any) -> float:
        if not self._uses_events:
            return float(mark - self._origin)
        return float(self._origin.elapsed_time(mark)) / 1e3


class SharedClock:
    """Time in seconds on rank 0's monotonic clock, on every rank.

    Ranks on one host read the same clock. Others estimate their offset by a few exchanges with rank
    0: the one with the shortest round trip bounds the error by half of it (Cristian 1989).
    """

    def __init__(
        self, world: Group, hosts: list[str], read: Callable[[], float] = time.monotonic
    ) -> None:
        self._read = read
        self.offset_s = 0.0
        for peer in range(1, world.size):
            if hosts[peer] != hosts[0]:
                self._exchange(world, peer)

    def now(self) -> float:
        """Seconds on rank 0's clock."""
        return self._read() + self.offset_s

    def _exchange(self, world: Group, peer: int) -> None:
        device = "cpu" if world.uses_gloo else "cuda"
        box = torch.zeros(1, dtype=torch.float64, device=device)
        if world.rank == 0:
            for _ in range(_NUM_EXCHANGES):
                dist.recv(box, group=world.process_group, group_src=peer)
                box.fill_(self._read())
                dist.send(box, group=world.process_group, group_dst=peer)
        elif world.rank == peer:
            trips = []
            for _ in range(_NUM_EXCHANGES):
                start = self._read()
                dist.send(box, group=world.process_group, group_dst=0)
                dist.recv(box, group=world.process_group, group_src=0)
                remote, end = float(box.item()), self._read()
                trips.append((end - start, remote - (start + end) / 2))
            self.offset_s = min(trips)[1]
