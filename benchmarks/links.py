"""Artificial links between ranks of this machine: network namespaces joined by limited veth pairs.

Each rank runs in a namespace of its own whose interface `eth0` leads to a bridge; a token bucket
(`tc tbf`) on it limits what the rank sends. Needs root, `ip` and `tc`; nothing outside the
namespaces is changed, and they are deleted at the end.
"""

import os
import shutil
import subprocess
from typing import Self

INTERFACE = "eth0"


class LinkError(RuntimeError):
    """The machine does not let us make network namespaces."""


def _run(*command: str) -> None:
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode:
        raise LinkError(f"`{' '.join(command)}`: {done.stderr.strip() or done.returncode}")


class Links:
    """Namespaces for some ranks, all on one bridge.

    Raises:
        LinkError: root, `ip`, `tc` or a kernel module is missing; the message says which.
    """

    def __init__(self, num_ranks: int) -> None:
        for tool in ("ip", "tc"):
            if shutil.which(tool) is None:
                raise LinkError(f"the program {tool} (iproute2) is not installed")
        if os.geteuid():
            raise LinkError("network namespaces need root")
        base = f"tuner2d-{os.getpid()}"
        self._hub = f"{base}-hub"
        self._names = [f"{base}-{rank}" for rank in range(num_ranks)]
        self._made: list[str] = []
        try:
            self._make_hub()
            for rank, name in enumerate(self._names):
                self._join(rank, name)
        except LinkError:
            self.close()
            raise

    def _make_namespace(self, name: str) -> None:
        _run("ip", "netns", "add", name)
        self._made.append(name)
        _run("ip", "-n", name, "link", "set", "lo", "up")

    def _make_hub(self) -> None:
        self._make_namespace(self._hub)
        _run("ip", "-n", self._hub, "link", "add", "bridge", "type", "bridge")
        _run("ip", "-n", self._hub, "link", "set", "bridge", "up")

    def _join(self, rank: int, name: str) -> None:
        port = f"port{rank}"
        self._make_namespace(name)
        _run(
            "ip", "-n", name, "link", "add", INTERFACE, "type", "veth",
            "peer", "name", port, "netns", self._hub,
        )  # fmt: skip
        _run("ip", "-n", self._hub, "link", "set", port, "master", "bridge", "up")
        _run("ip", "-n", name, "address", "add", f"10.77.0.{rank + 1}/24", "dev", INTERFACE)
        _run("ip", "-n", name, "link", "set", INTERFACE, "up")

    def limit(self, megabit_per_s: float) -> None:
        """Let every rank send so much and no more."""
        for name in self._names:
            _run(
                "ip", "netns", "exec", name, "tc", "qdisc", "replace", "dev", INTERFACE, "root",
                "tbf", "rate", f"{megabit_per_s}mbit", "burst", "256kb", "latency", "400ms",
            )  # fmt: skip

    def prefix(self, rank: int) -> list[str]:
        """What to put before a command to run it as this rank."""
        return ["ip", "netns", "exec", self._names[rank]]

    def close(self) -> None:
        """Delete the namespaces, and with them all interfaces."""
        for name in self._made:
            subprocess.run(["ip", "netns", "delete", name], capture_output=True, check=False)
        self._made.clear()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *exception: object) -> None:
        self.close()
