"""The actor that stands for one node of a Ray cluster: it starts and watches the ranks there.

One agent per node lives as long as the study. It is an asynchronous actor, so one trial's `run`
does not keep another's `stop` waiting; all its work is polling small state machines. When the
driver or the node's Ray dies, Ray ends the agent, the fork server sees its socket close and kills
the ranks.

Messages are JSON texts: nothing that came from a file or the database is pickled.
"""

import asyncio
import json
import os
import platform
import socket
import sys
from collections.abc import Iterator, Mapping
from importlib import metadata
from pathlib import Path
from typing import Any

import psutil
from pydantic import BaseModel, ConfigDict

from trainer.contract import CONTRACT_VERSION, TrialJob
from tuner.errors import LauncherError
from tuner.launchers.local import num_usable_cores
from tuner.launchers.network import free_port, interface_of, interface_towards, rank_environment
from tuner.launchers.node import Node, RankPlan, rendezvous_file, write_job
from tuner.launchers.supervision import Cause, NodeResult, NodeTrial, patience_of

_POLL_S = 0.01
_GUARD_S = 1.0
_COMPARED_PACKAGES = ("parallel-tuner", "torch", "ray", "numpy", "pydantic")
_FILE_LIMIT_BYTES = 64 << 20
SHARED_MARK = ".controller"
"""File by which an agent sees that it shares the trial's folder with the controller."""


class AgentOptions(BaseModel):
    """How agents start ranks."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    entry: str
    start_method: str
    patience: dict[str, float] = {}


class NodeOrder(BaseModel):
    """One node's part of a trial, as the driver orders it."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    trial: str
    job: TrialJob
    folder: str
    mark: str
    """Content of the mark file that the controller put into the folder."""
    first_rank: int
    num_ranks: int
    world_size: int
    master_host: str = ""
    """Address of rank 0's node; empty when all ranks are on one node."""
    master_port: int = 0
    device_ids: list[str] | None = None


class NodeAgent:
    """See the module's docstring. Wrapped by `ray.remote` in the driver."""

    def __init__(self, options: str) -> None:
        parsed = AgentOptions.model_validate_json(options)
        self._node = Node(
            entry=parsed.entry,
            start_method=parsed.start_method,
            patience=patience_of(parsed.patience),
        )
        self._trials: dict[str, tuple[NodeTrial, NodeOrder]] = {}
        self._stop_causes: dict[str, Cause] = {}
        self._guard: asyncio.Task[None] | None = None

    async def open(self) -> str:
        """Start the process that ranks are forked from; an error text, empty when all is well."""
        self._watch_the_node()
        try:
            self._node.open()
        except LauncherError as error:
            return str(error)
        return ""

    def _watch_the_node(self) -> None:
        if self._guard is None:
            self._guard = asyncio.get_running_loop().create_task(_end_with_the_node())

    async def describe(self) -> str:
        """Facts about this node, for checks."""
        facts: dict[str, Any] = {
            "hostname": socket.gethostname(),
            "executable": sys.executable,
            "num_cores": num_usable_cores(),
            "num_gpus_seen": num_gpus_seen(),
            "versions": {
                "python": platform.python_version(),
                "contract": str(CONTRACT_VERSION),
                **{name: _version(name) for name in _COMPARED_PACKAGES},
            },
        }
        return json.dumps(facts)

    async def meeting_port(self, host: str) -> int:
        """A free port on this node for a trial's rendezvous."""
        return free_port(host)

    async def run(self, order_text: str) -> str:
        """Run this node's ranks of a trial to their end; gives a `NodeResult`."""
        self._watch_the_node()
        order = NodeOrder.model_validate_json(order_text)
        try:
            trial = self._start(order)
        except OSError as error:
            return self._refusal(f"{order.folder}: {error.strerror}")
        except LauncherError as error:
            return self._refusal(str(error))
        self._trials[order.trial] = (trial, order)
        try:
            while (result := trial.poll()) is None:
                await asyncio.sleep(_POLL_S)
        finally:
            del self._trials[order.trial]
        cause = self._stop_causes.pop(order.trial, result.cause)
        files = {} if _is_shared(order) else dict(_own_files(order))
        changes = {"hostname": socket.gethostname(), "files": files}
        if result.cause is Cause.CANCELLED:
            changes["cause"] = cause
        return result.model_copy(update=changes).model_dump_json()

    async def stop(self, trial: str, cause: str) -> None:
        """End a trial's ranks here; with `Cause.PEER_HANG` they write their stacks first."""
        if trial in self._trials:
            self._stop_causes[trial] = Cause(cause)
            self._trials[trial][0].cancel(dump_stacks=cause == Cause.PEER_HANG)

    async def progress(self, trial: str) -> str:
        """Report files by name, for a controller that does not share the folder."""
        order = self._trials[trial][1] if trial in self._trials else None
        if order is None or _is_shared(order):  # writing them back would undo what ranks append
            return "{}"
        return json.dumps(dict(_own_files(order)))

    async def close(self) -> None:
        """End everything on this node."""
        self._node.close()

    def _start(self, order: NodeOrder) -> NodeTrial:
        folder = Path(order.folder)
        if not _is_shared(order):
            write_job(order.job, folder)
        one_node = not order.master_host
        init_method = (
            rendezvous_file(folder)
            if one_node
            else f"tcp://{order.master_host}:{order.master_port}"
        )
        plan = RankPlan(
            ranks=range(order.first_rank, order.first_rank + order.num_ranks),
            world_size=order.world_size,
            init_method=init_method,
            environment=rank_environment(
                order.job,
                interface="lo" if one_node else _interface(order.master_host),
                device_ids=order.device_ids,
            ),
        )
        return self._node.start(order.job, folder, plan)

    def _refusal(self, message: str) -> str:
        return NodeResult(
            cause=Cause.START_FAILED, message=message, hostname=socket.gethostname()
        ).model_dump_json()


async def _end_with_the_node() -> None:
    """End this process, and so its ranks, once the node's Ray daemon is dead.

    Ray's workers look only whether the daemon's process id exists, which a zombie's does.
    """
    daemon = psutil.Process(os.getppid())
    while True:
        try:
            if not daemon.is_running() or daemon.status() == psutil.STATUS_ZOMBIE:
                os._exit(1)
        except psutil.NoSuchProcess:
            os._exit(1)
        await asyncio.sleep(_GUARD_S)


def _version(package: str) -> str:
    try:
        return metadata.version(package)
    except metadata.PackageNotFoundError:
        return "missing"


def num_gpus_seen() -> int:
    """GPUs by their device files: asking a driver's library would bind this process to it."""
    nvidia = [path for path in Path("/dev").glob("nvidia*") if path.name[6:].isdigit()]
    amd = list(Path("/dev/dri").glob("renderD*")) if Path("/dev/kfd").exists() else []
    return len(nvidia) or len(amd)


def _interface(host: str) -> str | None:
    """The interface of `host` if it is ours (others cannot reach loopback), else the way there."""
    return interface_of(host) or interface_towards(host)


def _is_shared(order: NodeOrder) -> bool:
    try:
        return (Path(order.folder) / SHARED_MARK).read_text() == order.mark
    except OSError:
        return False


def _own_files(order: NodeOrder) -> Iterator[tuple[str, str]]:
    ranks = range(order.first_rank, order.first_rank + order.num_ranks)
    for rank in ranks:
        for name in (f"report.{rank}.jsonl", f"rank.{rank}.log"):
            path = Path(order.folder) / name
            if path.exists() and path.stat().st_size <= _FILE_LIMIT_BYTES:
                yield name, path.read_text(errors="replace")


def store_files(folder: Path, files: Mapping[str, str]) -> None:
    """Write what an agent without a shared folder sent."""
    for name, text in files.items():
        (folder / Path(name).name).write_text(text)
