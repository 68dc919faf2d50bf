"""A Ray cluster of several nodes on this machine, for tests: `python -m tuner.testing.ray_nodes`.

Arguments: the CPU slots of each node, such as `2 2 1`. The first output line is a JSON object with
the `address` and the process ids of each node's raylet; the cluster ends with standard input. The
caller's environment holds the token (`environment()`).
"""

import json
import os
import secrets
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any


@dataclass(frozen=True, kw_only=True)
class RayNodes:
    """Where the cluster is."""

    address: str
    raylet_pids: tuple[int, ...]


def environment() -> dict[str, str]:
    """Variables with which a client and the nodes agree, loopback only."""
    return {
        "RAY_AUTH_MODE": "token",
        "RAY_AUTH_TOKEN": secrets.token_hex(32),
        "RAY_USAGE_STATS_ENABLED": "0",
        "RAY_ENABLE_WINDOWS_OR_OSX_CLUSTER": "0",
        "RAY_ACCEL_ENV_VAR_OVERRIDE_ON_ZERO": "0",
    }


@contextmanager
def ray_nodes(slots: Sequence[int], variables: dict[str, str]) -> Iterator[RayNodes]:
    """Run a cluster in a process of its own while the block lasts."""
    program = [sys.executable, "-m", "tuner.testing.ray_nodes", *map(str, slots)]
    with tempfile.TemporaryFile("w+") as words:
        process = subprocess.Popen(  # noqa: S603 - our own module
            program,
            stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=words, text=True,
            env={**os.environ, **variables}, start_new_session=True,
        )  # fmt: skip
        try:
            assert process.stdout is not None  # noqa: S101 - a pipe was asked for
            line = process.stdout.readline()
            if not line:
                words.seek(0)
                raise RuntimeError(f"the Ray nodes did not come up: {words.read()[-500:]}")
            told = json.loads(line)
            yield RayNodes(address=told["address"], raylet_pids=tuple(told["raylet_pids"]))
        finally:
            process.communicate()


def main(slots: Sequence[int]) -> None:
    """Start the nodes, tell where they are, wait for the end of standard input."""
    with tempfile.TemporaryDirectory(prefix="ray-nodes-", ignore_cleanup_errors=True) as folder:
        # where the cluster notes its address, which Ray itself does not make
        os.environ["RAY_TMPDIR"] = folder
        Path(folder, "ray").mkdir()
        from ray.cluster_utils import Cluster

        small: dict[str, Any] = {"object_store_memory": 80 << 20, "include_dashboard": False}
        cluster: Any = Cluster()
        head = {**small, "temp_dir": folder}
        nodes = [
            cluster.add_node(num_cpus=count, **(small if number else head))
            for number, count in enumerate(slots)
        ]
        pids = [node.all_processes["raylet"][0].process.pid for node in nodes]
        told = {"address": cluster.address, "raylet_pids": pids}
        print(json.dumps(told), flush=True)  # noqa: T201 - read by `ray_nodes`
        sys.stdin.read()
        cluster.shutdown()


if __name__ == "__main__":
    main([int(count) for count in sys.argv[1:]])
