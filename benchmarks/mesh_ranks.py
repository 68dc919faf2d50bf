"""Ranks as plain processes that build engines, take steps and measure memory when told.

Unlike `benchmarks.ranks` they may be started by any command, such as one that enters a network
namespace. The parent writes one JSON request a line to every rank and reads one JSON answer back.
"""

import gc
import json
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any, Self

import torch
import torch.distributed as dist

from search_spaces.model_spec import ModelSpec
from search_spaces.parallel_config import ParallelConfig
from search_spaces.training_spec import TrainingSpec
from trainer.engine import Engine
from trainer.live_memory import LiveMemory
from trainer.mesh import ParallelMesh
from trainer.parallel import summa
from trainer.parallel.tensor_2d import Tensor2D

MARK = "answer:"


class MeshRanks:
    """Processes of one gloo group.

    Args:
        world_size: ranks.
        interface: network interface that gloo binds to.
        prefix: command that starts a rank's process, by rank.
    """

    def __init__(
        self, world_size: int, interface: str = "lo",
        prefix: Callable[[int], list[str]] = lambda rank: [],
    ) -> None:  # fmt: skip
        self._folder = tempfile.TemporaryDirectory(prefix="mesh-ranks-")
        store = Path(self._folder.name, "store").as_uri()
        environment = {**os.environ, "GLOO_SOCKET_IFNAME": interface, "OMP_NUM_THREADS": "1"}
        self._processes = [
            subprocess.Popen(
                [*prefix(rank), sys.executable, "-m", "benchmarks.mesh_ranks", store, str(rank),
                 str(world_size)],
                stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, env=environment,
                cwd=Path(__file__).parents[1],
            )
            for rank in range(world_size)
        ]  # fmt: skip

    def ask(self, task: str, **arguments: Any) -> list[Any]:
        """Let every rank do a task at once; their answers by rank.

        Raises:
            RuntimeError: a rank failed or ended.
        """
        line = json.dumps({"task": task, **arguments}) + "\n"
        for process in self._processes:
            assert process.stdin is not None
            process.stdin.write(line)
            process.stdin.flush()
        return [self._answer(rank) for rank in range(len(self._processes))]

    def _answer(self, rank: int) -> Any:
        stdout = self._processes[rank].stdout
        assert stdout is not None
        for line in stdout:
            if line.startswith(MARK):
                answer = json.loads(line.removeprefix(MARK))
                if "error" in answer:
                    raise RuntimeError(f"rank {rank}: {answer['error']}")
                return answer["value"]
        raise RuntimeError(f"rank {rank} ended with code {self._processes[rank].wait()}")

    def close(self) -> None:
        """End the ranks."""
        for process in self._processes:
            assert process.stdin is not None
            process.stdin.close()
        for process in self._processes:
            try:
                process.wait(timeout=20)
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait()
            assert process.stdout is not None
            process.stdout.close()
        self._folder.cleanup()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *exception: object) -> None:
        self.close()


class Rank:
    """What one process does for its parent; every public method is a task."""

    def __init__(self, rank: int, world_size: int) -> None:
        self._rank, self._world_size = rank, world_size
        self._engines: dict[str, Engine] = {}
        self._step = 0

    def _engine(
        self, model: dict[str, Any], training: dict[str, Any], knobs: dict[str, Any],
        variant: str | None,
    ) -> Engine:  # fmt: skip
        if variant is not None:
            summa.DEFAULT_VARIANT["gloo"] = variant
        config = ParallelConfig(**knobs)
        mesh = ParallelMesh(config, self._world_size)
        return Engine(
            ModelSpec(**model), TrainingSpec(**training), config, mesh, self._rank,
            torch.device("cpu"),
        )  # fmt: skip

    def build(self, name: str, variant: str | None = None, **parts: dict[str, Any]) -> None:
        """Make an engine that `step` can use."""
        self._engines[name] = self._engine(
            parts["model"], parts["training"], parts["knobs"], variant
        )

    def drop(self) -> None:
        """Forget all engines."""
        self._engines.clear()
        gc.collect()

    def step(self, name: str) -> dict[str, Any]:
        """Take a step; its seconds from a barrier on, and what its tensor-parallel groups sent."""
        engine = self._engines[name]
        dist.barrier()
        start_s = time.perf_counter()
        loss = engine.step(self._step).loss
        seconds = time.perf_counter() - start_s
        self._step += 1
        log = engine.groups.log.totals.items()
        return {
            "seconds": seconds,
            "loss": loss,
            "collectives": {k: dict(v) for k, v in log if k.startswith("tp")},
        }

    def memory(self, variant: str | None = None, **parts: dict[str, Any]) -> dict[str, int]:
        """Bytes of the states, and the peak of what a second step holds besides them.

        Counted are live tensors, operation by operation, and gloo's receive buffers; resident
        memory moves by pages and arenas, which is coarse beside ranks as small as these. Panel
        buffers outlive a step and count; what the first step sets up for good in gloo does not.
        """
        with LiveMemory(as_resident=True) as live:
            engine = self._engine(parts["model"], parts["training"], parts["knobs"], variant)
            engine.step(0)
            gc.collect()
            before = live.live_bytes
            live.start()
            engine.step(1)
            activations = live.peak_bytes - before
        if isinstance(engine.form, Tensor2D):
            activations += engine.form.grid.buffers.num_bytes
        return {"activations": activations, "states": engine.state_bytes()}


def _serve(store: str, rank: int, world_size: int) -> None:
    torch.set_num_threads(1)
    dist.init_process_group("gloo", init_method=store, rank=rank, world_size=world_size)
    tasks = Rank(rank, world_size)
    for line in sys.stdin:
        request = json.loads(line)
        answer: dict[str, Any]
        try:
            answer = {"value": getattr(tasks, request.pop("task"))(**request)}
        except Exception as error:
            answer = {"error": repr(error)}
        print(MARK + json.dumps(answer), flush=True)
    dist.destroy_process_group()


if __name__ == "__main__":
    _serve(sys.argv[1], int(sys.argv[2]), int(sys.argv[3]))
