"""Ranks on this machine that take one step when told, so that several sets can be interleaved.

A set is `world_size` spawned processes with a gloo group of their own. Between steps they wait on a
pipe and use no processor, so the set whose turn it is has the machine to itself.
"""

import importlib
import multiprocessing as mp
import os
import tempfile
from collections.abc import Callable
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any, Self

import torch
import torch.distributed as dist


class RankSet:
    """Processes that each hold `factory(**arguments)`, a function that takes one training step.

    Args:
        factory: `module:function`, called in every rank once its process group is up.
        world_size: ranks.
        num_threads: threads of each rank.
        arguments: keyword arguments of the factory; must be picklable.
    """

    def __init__(
        self, factory: str, world_size: int, num_threads: int, arguments: dict[str, Any]
    ) -> None:
        self._folder = tempfile.TemporaryDirectory(prefix="ranks-")
        store = Path(self._folder.name, "store").as_uri()
        context = mp.get_context("spawn")
        self._pipes: list[Connection] = []
        self._processes = []
        for rank in range(world_size):
            ours, theirs = context.Pipe()
            process = context.Process(
                target=_serve,
                args=(theirs, factory, store, rank, world_size, num_threads, arguments),
                daemon=True,
            )
            process.start()
            theirs.close()
            self._pipes.append(ours)
            self._processes.append(process)
        self._receive()

    def step(self) -> float:
        """Let every rank take one step; returns rank 0's answer (the loss) once all are through."""
        for pipe in self._pipes:
            pipe.send(True)
        return float(self._receive()[0])

    def close(self) -> None:
        """End the ranks."""
        for pipe in self._pipes:
            pipe.send(False)
        for process in self._processes:
            process.join(timeout=30)
            if process.is_alive():
                process.kill()
        self._folder.cleanup()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *exception: object) -> None:
        self.close()

    def _receive(self) -> list[Any]:
        answers = [pipe.recv() for pipe in self._pipes]
        for answer in answers:
            if isinstance(answer, Exception):
                raise answer
        return answers


def _serve(
    pipe: Connection,
    factory: str,
    store: str,
    rank: int,
    world_size: int,
    num_threads: int,
    arguments: dict[str, Any],
) -> None:
    """Build the step, then run it whenever the parent asks."""
    os.environ.setdefault("GLOO_SOCKET_IFNAME", "lo")
    torch.set_num_threads(num_threads)
    dist.init_process_group("gloo", init_method=store, rank=rank, world_size=world_size)
    try:
        step = _load(factory)(**arguments)
        pipe.send(0.0)
        while pipe.recv():
            pipe.send(step())
    except Exception as error:
        pipe.send(RuntimeError(f"rank {rank} of {factory}: {error!r}"))
        raise
    finally:
        dist.destroy_process_group()


def _load(factory: str) -> Callable[..., Callable[[], float]]:
    module, _, name = factory.partition(":")
    function: Callable[..., Callable[[], float]] = getattr(importlib.import_module(module), name)
    return function
