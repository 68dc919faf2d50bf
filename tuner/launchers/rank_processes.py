"""Starts and signals the ranks of trials through a `fork_server` process; knows no trial, no Ray.

Nothing here blocks except `ForkServer.start` (the imports, once) and `ForkServer.close`. Events
come in when `ForkServer.pump` is called, which every status method does.
"""

import os
import signal
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from tuner.errors import LauncherError
from tuner.launchers.channel import Channel

DEFAULT_ENTRY = "trainer.worker:run_rank"
_START_TIMEOUT_S = 120.0
_STOP_TIMEOUT_S = 5.0
_SERVER_ENVIRONMENT = {
    "OMP_NUM_THREADS": "1",
    "OPENBLAS_NUM_THREADS": "1",
    "MKL_NUM_THREADS": "1",
    "PYTHONUNBUFFERED": "1",
    # Counting GPUs through NVML leaves the driver untouched; forking after cuInit is fatal.
    "PYTORCH_NVML_BASED_CUDA_CHECK": "1",
}


@dataclass(frozen=True, kw_only=True)
class RankTask:
    """What one rank runs: an imported function (`entry`, `arguments`) or a program (`argv`)."""

    rank: int
    entry: str = ""
    arguments: tuple[str | int, ...] = ()
    argv: tuple[str, ...] = ()
    env: Mapping[str, str] = field(default_factory=dict)
    exec_env: Mapping[str, str] | None = None
    """The whole environment of a program; none = the fork server's with `env` on top."""

    def to_request(self) -> dict[str, Any]:
        """The JSON form that the fork server reads."""
        shared: dict[str, Any] = {"rank": self.rank, "env": dict(self.env)}
        if self.argv:
            exec_env = None if self.exec_env is None else dict(self.exec_env)
            return {**shared, "argv": list(self.argv), "exec_env": exec_env}
        return {**shared, "entry": self.entry, "arguments": list(self.arguments)}


@dataclass(frozen=True, kw_only=True)
class RankExit:
    """How a rank ended: exit code, or minus the signal's number; its peak memory if known."""

    code: int
    peak_rss_bytes: int | None = None


class RankGroup:
    """The processes of one trial on one node."""

    def __init__(self, server: "ForkServer", name: str, ranks: Sequence[int]) -> None:
        self._server = server
        self.name = name
        self.ranks = tuple(ranks)
        self.pids: dict[int, int] = {}
        self.exits: dict[int, RankExit] = {}
        self.start_error = ""
        self.is_empty = False
        """All ranks have ended and what they left behind was killed."""
        self.is_lost = False
        """The fork server died, so that exit codes are unknown."""

    def poll(self) -> bool:
        """Take in news; true once nothing of the group is left."""
        self._server.pump()
        return self.is_empty

    def signal(self, number: signal.Signals, *, whole_group: bool = True) -> None:
        """Send a signal to every living rank, with its children unless `whole_group` is off."""
        self._server.send_signal(self, number, whole_group=whole_group)

    def on_event(self, event: Mapping[str, Any]) -> None:
        """Take one event of the fork server in."""
        if event["event"] == "started":
            self.pids = {int(rank): pid for rank, pid in event["pids"].items()}
            self.start_error = event["message"]
        elif event["event"] == "exited":
            peak = event["peak_rss_bytes"]
            self.exits[event["rank"]] = RankExit(code=event["code"], peak_rss_bytes=peak)
        elif event["event"] == "empty":
            self.is_empty = True

    def on_server_lost(self) -> None:
        """The server is gone: the kernel kills the ranks, we kill what they had started."""
        for rank, pid in self.pids.items():
            if rank not in self.exits:
                _kill_group(pid)
        self.is_lost = self.is_empty = True


class ForkServer:
    """Client of one fork server process, which is started on demand and again when it died.

    Args:
        entry: `module:function` that a rank calls; its module is imported once, in the server.
        preload: further modules to import there, such as torch.
        environment: variables of the server, and so of all ranks, on top of this process's own.
    """

    def __init__(
        self,
        *,
        entry: str | None = DEFAULT_ENTRY,
        preload: Sequence[str] | None = None,
        environment: Mapping[str, str] | None = None,
    ) -> None:
        if preload is None:
            preload = ("torch", "torch.distributed") if entry == DEFAULT_ENTRY else ()
        self._modules = [*preload, *([entry.split(":")[0]] if entry else [])]
        environment = {**_SERVER_ENVIRONMENT, **(environment or {})}
        self._channel = Channel("tuner.launchers.fork_server", self._modules, environment)
        self._groups: dict[str, RankGroup] = {}
        self._num_started = 0

    @property
    def pid(self) -> int | None:
        """Process id of the server, none when it is not up."""
        return self._channel.pid

    def start(self) -> None:
        """Bring the server up and wait for its imports.

        Raises:
            LauncherError: A module cannot be imported, or importing started threads.
        """
        if self._channel.pid is not None:
            return
        event = self._channel.start(_START_TIMEOUT_S)
        if event["event"] != "ready":
            self.close()
            raise LauncherError(
                f"the process that trials are forked from did not start: {event['message']}"
            )
        if event["num_threads"] > 1:
            self.close()
            raise LauncherError(
                f"importing {', '.join(self._modules)} started {event['num_threads'] - 1} threads,"
                " so that forking from that process is unsafe",
                'set start_method = "spawn" for the launcher',
            )

    def start_group(
        self, folder: Path, tasks: Sequence[RankTask], environment: Mapping[str, str]
    ) -> RankGroup:
        """Fork the ranks of one trial in `folder`, which must exist; returns at once."""
        self.pump()
        self.start()
        self._num_started += 1
        group = RankGroup(self, f"{self._num_started}", [task.rank for task in tasks])
        self._groups[group.name] = group
        self._send(
            {
                "op": "start",
                "group": group.name,
                "folder": str(folder.resolve()),
                "env": dict(environment),
                "tasks": [task.to_request() for task in tasks],
            }
        )
        return group

    def send_signal(self, group: RankGroup, number: signal.Signals, *, whole_group: bool) -> None:
        """Signal the living ranks of a group."""
        self._send(
            {
                "op": "signal",
                "group": group.name,
                "signal": int(number),
                "whole_group": whole_group,
            }
        )

    def _send(self, request: Mapping[str, Any]) -> None:
        if self._channel.pid is not None and not self._channel.send(request):
            self.close()

    def pump(self) -> None:
        """Hand the events that have come in to their groups."""
        if self._channel.pid is None:
            return
        events, is_alive = self._channel.receive()
        for event in events:
            self._dispatch(event)
        if not is_alive:
            self.close()

    def _dispatch(self, event: Mapping[str, Any]) -> None:
        group = self._groups.get(event.get("group", ""))
        if group is None:
            return
        group.on_event(event)
        if group.is_empty:
            del self._groups[group.name]

    def close(self) -> None:
        """End all ranks and the server. Idempotent."""
        self._channel.close(_STOP_TIMEOUT_S)
        groups, self._groups = list(self._groups.values()), {}
        for group in groups:
            group.on_server_lost()


def _kill_group(pid: int) -> None:
    try:
        os.killpg(pid, signal.SIGKILL)
    except (ProcessLookupError, PermissionError):
        return
