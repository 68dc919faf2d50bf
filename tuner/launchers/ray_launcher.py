"""`ray`: trials on a Ray cluster, started here on demand or joined by its address."""

import os
import secrets
import shutil
import tempfile
import time
from collections.abc import Mapping
from dataclasses import asdict
from pathlib import Path
from typing import Any

from trainer.contract import TrialJob, TrialOutput, read_output
from tuner.errors import LauncherError
from tuner.launchers.channel import Channel
from tuner.launchers.classification import with_failures
from tuner.launchers.local import num_usable_cores
from tuner.launchers.network import check_reachable
from tuner.launchers.node import write_job
from tuner.launchers.placement import NodeSlots, check_can_ever_fit, plan_bundles
from tuner.launchers.rank_processes import DEFAULT_ENTRY
from tuner.launchers.ray_agent import SHARED_MARK, AgentOptions, store_files
from tuner.launchers.ray_cluster import DriverOptions
from tuner.launchers.ray_trial import Submission
from tuner.launchers.supervision import Cause, NodeResult, Patience, patience_of

_START_TIMEOUT_S = 300.0
_STOP_TIMEOUT_S = 20.0
_START_TIMEOUT_WORDS = "timed out during startup"
"""What Ray says when a machine is too busy to start it within its fixed 30 s; once more helps."""
_DESCRIBE_TIMEOUT_S = 60.0
_TEMP_PREFIX = "tuner-ray-"
_RAY_ENVIRONMENT = {
    "RAY_USAGE_STATS_ENABLED": "0",
    "RAY_memory_monitor_refresh_ms": "0",  # it kills workers; a trial's memory is its own affair
    "RAY_ACCEL_ENV_VAR_OVERRIDE_ON_ZERO": "0",
    "RAY_EXPERIMENTAL_NOSET_CUDA_VISIBLE_DEVICES": "1",  # ranks see all the trial's GPUs
    "RAY_EXPERIMENTAL_NOSET_HIP_VISIBLE_DEVICES": "1",
    "RAY_DEDUP_LOGS": "0",
    # Ray's workers yield to every other process (nice 15), which would slow the ranks they start.
    "RAY_worker_niceness": "0",
}
_LOCAL_CLUSTER = {
    # On a busy machine Ray's own agents take longer to start than it waits for by default.
    "RAY_agent_register_timeout_ms": "180000",
    # Ray's only switch that keeps a node at 127.0.0.1, so that every port listens there alone.
    "RAY_ENABLE_WINDOWS_OR_OSX_CLUSTER": "0",
}


class RayHandle:
    """A trial on Ray."""

    def __init__(self, launcher: "RayLauncher", job: TrialJob, folder: Path, name: str) -> None:
        self.job = job
        self.folder = folder
        self.name = name
        self.bundles: tuple[int, ...] = ()
        self._launcher = launcher
        self._output: TrialOutput | None = None
        self._asked = False

    @property
    def is_done(self) -> bool:
        """Whether the trial has ended."""
        return self._output is not None

    def poll(self) -> TrialOutput | None:
        """The output once all ranks have ended and been cleaned up."""
        if self._output is None:
            self._launcher.pump()
        return self._output

    def progress(self) -> TrialOutput:
        """What the ranks have written so far; a little late where the folder is not shared."""
        if self._output is not None:
            return self._output
        self._launcher.pump()
        if not any(self.folder.glob("report.*.jsonl")) or self._asked:
            self._asked = True
            self._launcher.ask_progress(self)
        return _read(self.folder)

    def cancel(self) -> None:
        """End the trial."""
        if self._output is None:
            self._launcher.cancel(self)

    def finish(self, nodes: list[NodeResult]) -> None:
        """Take in how all parts of the trial ended."""
        for node in nodes:
            store_files(self.folder, node.files)
        self._output = with_failures(_read(self.folder), nodes, self.job)


def _read(folder: Path) -> TrialOutput:
    try:
        return read_output(folder)
    except OSError:
        return TrialOutput()


class RayLauncher:
    """Reserves a trial's devices at once and starts its ranks through one agent per node.

    Args:
        num_devices: Devices of a cluster that is started here; none = what Ray finds. With an
            `address`, the most that are used at one time.
        run_folder: Parent of the trials' folders.
        address: `host:port` of a running cluster, `auto` for one on this machine; none starts one
            that listens on the loopback interface alone and ends with this launcher.
        device_kind: `cpu`, `cuda` or `rocm`: which of Ray's resources is a device.
        entry: What a rank runs, `module:function`.
        start_method: `fork` or `spawn`.
        split_tensor_parallel: Whether tensor-parallel groups may span nodes.
        placement_timeout_s: How long a trial waits for devices that other users hold.
        patience: Waiting times of the supervision, by the names of `supervision.Patience`.
    """

    name = "ray"

    def __init__(
        self,
        *,
        num_devices: int | None,
        run_folder: Path,
        address: str | None = None,
        device_kind: str = "cpu",
        entry: str = DEFAULT_ENTRY,
        start_method: str = "fork",
        split_tensor_parallel: bool = False,
        placement_timeout_s: float = 300.0,
        patience: Patience | Mapping[str, float] | None = None,
    ) -> None:
        if device_kind not in ("cpu", "cuda", "rocm"):
            raise LauncherError(f"unknown device_kind {device_kind!r}", "one of cpu, cuda, rocm")
        if address is None and num_devices is None and device_kind == "cpu":
            num_devices = num_usable_cores()
        self._limit = num_devices
        self._address = address
        self._device_kind = device_kind
        self._split = split_tensor_parallel
        self._placement_timeout_s = placement_timeout_s
        self._agent = AgentOptions(
            entry=entry, start_method=start_method, patience=asdict(patience_of(patience))
        )
        self._channel: Channel | None = None
        self._temp_folder: str | None = None
        self._nodes: list[NodeSlots] = []
        self._running: dict[str, RayHandle] = {}
        self._descriptions: list[dict[str, Any]] = []

    def open(self) -> None:
        """Start or join the cluster and start the agents.

        Raises:
            LauncherError: Ray is missing, unreachable, or an agent cannot start ranks.
        """
        if self._channel is not None:
            return
        if self._address is not None:
            check_reachable(self._address)
        _sweep_stale_folders()
        event = self._start_driver()
        if event["event"] != "ready" and _START_TIMEOUT_WORDS in event["message"]:
            event = self._start_driver()
        if event["event"] != "ready":
            place = "a local Ray cluster" if self._address is None else f"Ray at {self._address}"
            self.close()
            raise LauncherError(
                f"{place} cannot be used: {event['message']}",
                "check `ray status`, or use the launcher `local`",
            )
        self._set_nodes(event["nodes"])

    def _start_driver(self) -> dict[str, Any]:
        """Start the process that speaks to Ray; its first event."""
        self.close()
        self._temp_folder = tempfile.mkdtemp(prefix=f"{_TEMP_PREFIX}{os.getpid()}-")
        options = DriverOptions(
            address=self._address,
            num_devices=self._limit,
            device_kind=self._device_kind,
            temp_folder=self._temp_folder,
            placement_timeout_s=self._placement_timeout_s,
            agent=self._agent,
        )
        self._channel = Channel(
            "tuner.launchers.ray_driver", [options.model_dump_json()], self._environment()
        )
        return self._channel.start(_START_TIMEOUT_S)

    def _environment(self) -> dict[str, str]:
        if self._address is not None:
            # A token of an existing cluster comes from the user's environment or ~/.ray/auth_token.
            return dict(_RAY_ENVIRONMENT)
        token = {"RAY_AUTH_MODE": "token", "RAY_AUTH_TOKEN": secrets.token_hex(32)}
        return {**_RAY_ENVIRONMENT, **_LOCAL_CLUSTER, **token}

    def close(self) -> None:
        """End all trials and what `open` started. Idempotent."""
        if self._channel is not None:
            self._channel.close(_STOP_TIMEOUT_S)
            self._channel = None
        if self._temp_folder is not None:
            _remove(Path(self._temp_folder))
            self._temp_folder = None
        running, self._running = list(self._running.values()), {}
        for handle in running:
            handle.finish([NodeResult(cause=Cause.CANCELLED)])

    def num_devices(self) -> int:
        """Devices of all living nodes, at most the number asked for."""
        self.pump()
        total = sum(node.total for node in self._nodes)
        return total if self._limit is None else min(total, self._limit)

    def num_nodes(self) -> int:
        """Living nodes that have devices."""
        self.pump()
        return len(self._nodes)

    def has_room(self, num_devices: int) -> bool:
        """Whether so many devices are free of our own trials."""
        self.pump()
        return self.num_devices() - self._num_busy() >= num_devices

    def _num_busy(self) -> int:
        return sum(handle.job.config.world_size for handle in self._running.values())

    def submit(self, job: TrialJob, folder: Path) -> RayHandle:
        """Start a trial.

        Raises:
            LauncherError: It can never run on this cluster (the sentence says what is missing), or
                too few devices are free now, or Ray is gone and cannot be brought up again.
        """
        self.pump()
        self.open()
        bundles = self._bundles(job)
        name = f"{job.trial_id}-{secrets.token_hex(4)}"
        handle = RayHandle(self, job, folder, name)
        mark = secrets.token_hex(8)
        try:
            write_job(job, folder)
            (folder / SHARED_MARK).write_text(mark)
        except OSError as error:
            message = f"{folder}: {error.strerror}"
            handle.finish([NodeResult(cause=Cause.START_FAILED, message=message)])
            return handle
        submission = Submission(
            trial=name, job=job, folder=str(folder.resolve()), mark=mark, bundles=list(bundles)
        )
        handle.bundles = bundles
        self._running[name] = handle
        self._send({"op": "submit", "submission": submission.model_dump(mode="json")})
        return handle

    def _bundles(self, job: TrialJob) -> tuple[int, ...]:
        resource = "CPU slots" if job.device_kind == "cpu" else "GPUs"
        check_can_ever_fit(
            self._nodes, job.config, resource=resource, split_tensor_parallel=self._split
        )
        wanted = job.config.world_size
        free = self.num_devices() - self._num_busy()
        if wanted > free:
            raise LauncherError(
                f"{wanted} devices are wanted and {free} of {self.num_devices()} are free"
            )
        bundles = plan_bundles(self._free_nodes(), job.config, split_tensor_parallel=self._split)
        if bundles is None:  # free, but scattered: wait for the whole nodes that an empty one gives
            bundles = plan_bundles(self._nodes, job.config, split_tensor_parallel=self._split)
        assert bundles is not None  # noqa: S101 - checked above
        return bundles

    def _free_nodes(self) -> list[NodeSlots]:
        """Nodes with what our own trials leave free, as if Ray packed them largest first."""
        free = {node.node_id: node.total for node in self._nodes}
        parts = (part for handle in self._running.values() for part in handle.bundles)
        for part in sorted(parts, reverse=True):
            fitting = [name for name, left in free.items() if left >= part]
            if fitting:
                free[min(fitting, key=lambda name: free[name])] -= part
        return [
            NodeSlots(
                node_id=node.node_id, hostname=node.hostname, total=node.total,
                free=free[node.node_id],
            )
            for node in self._nodes
        ]  # fmt: skip

    def cancel(self, handle: RayHandle) -> None:
        """End a trial; its handle learns of it by `poll`."""
        self._send({"op": "cancel", "trial": handle.name})

    def ask_progress(self, handle: RayHandle) -> None:
        """Have rank 0's report sent here, if its node does not share the folder."""
        self._send({"op": "progress", "trial": handle.name})

    def describe_nodes(self) -> list[dict[str, Any]]:
        """What the agent of each node says of it (see `NodeAgent.describe`); waits for all.

        Raises:
            LauncherError: Ray is gone, or an agent does not answer.
        """
        self.open()
        self._descriptions.clear()
        self._send({"op": "describe"})
        deadline_s = time.monotonic() + _DESCRIBE_TIMEOUT_S
        while not self._descriptions:
            self.pump()
            if self._channel is None or time.monotonic() > deadline_s:
                raise LauncherError("the agents on the cluster's nodes do not answer")
            time.sleep(0.01)
        return list(self._descriptions)

    def _send(self, request: Mapping[str, Any]) -> None:
        if self._channel is None or not self._channel.send(request):
            self._lose("its process does not answer")

    def pump(self) -> None:
        """Take in what Ray's process has to say."""
        if self._channel is None:
            return
        events, is_alive = self._channel.receive()
        for event in events:
            self._dispatch(event)
        if not is_alive:
            self._lose("the process that speaks to Ray died")

    def _dispatch(self, event: Mapping[str, Any]) -> None:
        if event["event"] == "nodes":
            self._set_nodes(event["nodes"])
        elif event["event"] == "done" and event["trial"] in self._running:
            nodes = [NodeResult.model_validate(node) for node in event["nodes"]]
            self._running.pop(event["trial"]).finish(nodes)
        elif event["event"] == "progress" and event["trial"] in self._running:
            store_files(self._running[event["trial"]].folder, event["files"])
        elif event["event"] == "described":
            self._descriptions = event["nodes"]
        elif event["event"] == "lost":
            self._lose(event["message"])

    def _set_nodes(self, rows: list[dict[str, Any]]) -> None:
        self._nodes = [
            NodeSlots(
                node_id=row["node_id"], hostname=row["hostname"], total=row["total"],
                free=row["total"],
            )
            for row in rows
            if row["total"] > 0
        ]  # fmt: skip

    def _lose(self, message: str) -> None:
        """Ray is gone: its trials failed; the next `submit` brings it up again."""
        running, self._running = list(self._running.values()), {}
        self.close()
        for handle in running:
            handle.finish([NodeResult(cause=Cause.AGENT_LOST, message=message)])


def _remove(folder: Path) -> None:
    """Remove a folder that dying processes may still write to."""
    deadline_s = time.monotonic() + _STOP_TIMEOUT_S
    while folder.exists() and time.monotonic() < deadline_s:
        shutil.rmtree(folder, ignore_errors=True)
        time.sleep(0.01)


def _sweep_stale_folders() -> None:
    """Remove temporary folders whose controller is dead (killed together with its Ray process)."""
    for folder in Path(tempfile.gettempdir()).glob(f"{_TEMP_PREFIX}*-*"):
        pid = folder.name.removeprefix(_TEMP_PREFIX).split("-")[0]
        if pid.isdigit() and not Path(f"/proc/{pid}").exists() and Path("/proc/self").exists():
            shutil.rmtree(folder, ignore_errors=True)
