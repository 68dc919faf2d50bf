"""The process that speaks to Ray: `python -P -m tuner.launchers.ray_driver FD OPTIONS`.

Ray reads its security settings when it is imported, ends the whole process when its head is lost,
and changes signal handlers and the environment. So the controller never imports it: this child
does, and is spoken to in JSON lines. When the controller dies, the socket closes, and the child
shuts Ray down and removes the temporary folder of a cluster that it had started.

A trial goes PLACING (its placement group waits for free devices) -> MEETING (several nodes:
rank 0's picks a port) -> RUNNING (one `run` call per agent) -> done.
"""

import contextlib
import json
import os
import secrets
import shutil
import signal
import sys
import time
import warnings
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from pydantic import BaseModel, ConfigDict

from trainer.contract import TrialJob
from tuner.launchers.channel import ChannelServer
from tuner.launchers.ray_agent import AgentOptions, NodeAgent, NodeOrder
from tuner.launchers.supervision import Cause, NodeResult

_RESOURCES = {"cpu": "CPU", "cuda": "GPU", "rocm": "GPU"}
_BUSY_POLL_S = 0.005
_IDLE_POLL_S = 0.2
_NODES_REFRESH_S = 1.0
_AGENT_TIMEOUT_S = 120.0
_NODE_DEATH_WAIT_S = 4.0
_PEER_GRACE_S = 15.0
_STOP_GRACE_S = 20.0
_SMALL_OBJECT_STORE_BYTES = 80 << 20


class DriverOptions(BaseModel):
    """What the controller tells its Ray process."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    address: str | None
    num_devices: int | None
    device_kind: str
    temp_folder: str
    placement_timeout_s: float
    agent: AgentOptions


class Submission(BaseModel):
    """A trial with the sizes of its parts, one part per node, in the order of ranks."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    trial: str
    job: TrialJob
    folder: str
    mark: str
    bundles: list[int]


class Cluster:
    """Ray's nodes and our agents on them."""

    def __init__(self, options: DriverOptions) -> None:
        self.options = options
        self.resource = _RESOURCES[options.device_kind]
        self._agents: dict[str, Any] = {}
        self._nodes: dict[str, Mapping[str, Any]] = {}
        self._refreshed_s = float("-inf")

    def connect(self) -> None:
        """Start a local cluster or join the one at `address`."""
        import ray

        warnings.simplefilter("ignore")
        shared: dict[str, Any] = {
            "logging_level": "ERROR", "log_to_driver": False, "configure_logging": False,
            "namespace": f"tuner-{secrets.token_hex(4)}",
        }  # fmt: skip
        if self.options.address is None:
            ray.init(
                address="local", include_dashboard=False, _temp_dir=self.options.temp_folder,
                object_store_memory=_SMALL_OBJECT_STORE_BYTES, **self._local_devices(), **shared,
            )  # fmt: skip
        else:
            ray.init(address=self.options.address, **shared)

    def _local_devices(self) -> dict[str, Any]:
        count = self.options.num_devices
        if count is None:
            return {}
        return {"num_cpus": count} if self.resource == "CPU" else {"num_gpus": count}

    def nodes(self) -> dict[str, Mapping[str, Any]]:
        """Living nodes by id, at most `_NODES_REFRESH_S` old."""
        if time.monotonic() - self._refreshed_s > _NODES_REFRESH_S:
            self._nodes = {node["NodeID"]: node for node in _ray_nodes() if node["Alive"]}
            self._refreshed_s = time.monotonic()
        return self._nodes

    def is_alive(self, node_id: str) -> bool:
        """Whether Ray still counts on a node."""
        self._refreshed_s = float("-inf")
        return node_id in self.nodes()

    def table(self) -> list[dict[str, Any]]:
        """Nodes with their devices, for the controller."""
        return [
            {
                "node_id": node_id,
                "hostname": node["NodeManagerHostname"],
                "address": node["NodeManagerAddress"],
                "total": int(node["Resources"].get(self.resource, 0)),
            }
            for node_id, node in self.nodes().items()
        ]

    def agent(self, node_id: str) -> Any:
        """The agent of a node, started if there is none."""
        import ray
        from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy

        if node_id not in self._agents:
            # No resources: the agent only watches; devices belong to the trials' placement groups.
            actor = ray.remote(num_cpus=0, max_restarts=0, max_task_retries=0)(NodeAgent)
            strategy = NodeAffinitySchedulingStrategy(node_id, soft=False)
            self._agents[node_id] = actor.options(
                scheduling_strategy=strategy, max_concurrency=1000
            ).remote(self.options.agent.model_dump_json())
        return self._agents[node_id]

    def forget_agent(self, node_id: str) -> None:
        """Drop an agent that died; the next trial there gets a new one."""
        import ray

        agent = self._agents.pop(node_id, None)
        if agent is not None:
            with contextlib.suppress(Exception):
                ray.kill(agent, no_restart=True)

    def open_agents(self) -> str:
        """Start an agent on every node that has devices; the first error, or nothing."""
        import ray

        calls = {
            row["hostname"]: self.agent(row["node_id"]).open.remote()
            for row in self.table()
            if row["total"] > 0
        }
        for hostname, call in calls.items():
            try:
                error = ray.get(call, timeout=_AGENT_TIMEOUT_S)
            except Exception as failure:
                error = f"{type(failure).__name__}: {failure}".splitlines()[0]
            if error:
                return f"{hostname}: {error}"
        return ""

    def close(self) -> None:
        """End the agents, leave the cluster, and stop it if it was started here."""
        import ray

        with contextlib.suppress(Exception):
            ray.wait([agent.close.remote() for agent in self._agents.values()], timeout=3.0)
        for node_id in list(self._agents):
            self.forget_agent(node_id)
        with contextlib.suppress(Exception):
            ray.shutdown()


class RunningTrial:
    """One trial on its way through Ray. `advance` never waits."""

    def __init__(self, cluster: Cluster, submission: Submission, resource: str) -> None:
        self._cluster = cluster
        self._submission = submission
        self._resource = resource
        self._group = self._create_group()
        self._node_ids: list[str] = []
        self._device_ids: list[list[str] | None] = [None] * len(submission.bundles)
        self._device_calls: list[Any] = []
        self._port_call: Any = None
        self._calls: dict[int, Any] = {}
        self._results: dict[int, NodeResult] = {}
        self._lost_s: dict[int, float] = {}
        self._stopped_s: float | None = None
        self._stop_cause: Cause | None = None
        self._step = self._place
        self._started_s = self._ended_s = time.monotonic()

    def _create_group(self) -> Any:
        from ray.util.placement_group import placement_group

        bundles = [{self._resource: size} for size in self._submission.bundles]
        strategy = "STRICT_PACK" if len(bundles) == 1 else "STRICT_SPREAD"
        return placement_group(bundles, strategy=strategy)

    def advance(self) -> list[NodeResult] | None:
        """Move on; the results of all parts at the end."""
        self._step()
        if len(self._results) < len(self._submission.bundles):
            return None
        return [self._results[part] for part in sorted(self._results)]

    def release(self) -> None:
        """Give the devices back."""
        from ray.util.placement_group import remove_placement_group

        with contextlib.suppress(Exception):
            remove_placement_group(self._group)

    def cancel(self) -> None:
        """End the trial because the controller says so."""
        if self._calls:
            self._stop(Cause.CANCELLED)
        else:
            self._give_up(Cause.CANCELLED, "")

    def progress_call(self) -> Any:
        """A pending call that gives rank 0's files; none before the trial runs."""
        if 0 not in self._calls or 0 in self._results:
            return None
        return self._cluster.agent(self._node_ids[0]).progress.remote(self._submission.trial)

    def _give_up(self, cause: Cause, message: str, hostname: str = "") -> None:
        for part in range(len(self._submission.bundles)):
            result = NodeResult(cause=cause, message=message, hostname=hostname)
            self._results.setdefault(part, result)

    def _place(self) -> None:
        from ray.util import placement_group_table

        table = placement_group_table(self._group)
        if table["state"] == "CREATED":
            placed: Mapping[int, str] = table["bundles_to_node_id"]
            self._node_ids = [placed[part] for part in range(len(self._submission.bundles))]
            self._ask_for_devices()
            self._step = self._meet
            self._step()
        elif time.monotonic() - self._started_s > self._cluster.options.placement_timeout_s:
            wanted = " + ".join(map(str, self._submission.bundles))
            self._give_up(
                Cause.NEVER_PLACED,
                f"{wanted} {self._resource} were not free within"
                f" {self._cluster.options.placement_timeout_s:g} s; others use this cluster",
            )

    def _ask_for_devices(self) -> None:
        """Only Ray knows which GPUs the bundles got: a task in each looks."""
        if self._resource != "GPU":
            return
        import ray
        from ray.util.scheduling_strategies import PlacementGroupSchedulingStrategy

        look = ray.remote(num_cpus=0, max_retries=0)(_accelerator_ids)
        for part, size in enumerate(self._submission.bundles):
            strategy = PlacementGroupSchedulingStrategy(
                self._group, placement_group_bundle_index=part
            )
            self._device_calls.append(
                look.options(num_gpus=size, scheduling_strategy=strategy).remote()
            )

    def _meet(self) -> None:
        import ray

        several = len(self._node_ids) > 1
        if several and self._port_call is None:
            agent = self._cluster.agent(self._node_ids[0])
            self._port_call = agent.meeting_port.remote(self._master_host())
        waiting = [*self._device_calls, *([self._port_call] if several else [])]
        ready, _ = ray.wait(waiting, num_returns=len(waiting), timeout=0) if waiting else ([], [])
        if len(ready) < len(waiting):
            return
        try:
            if self._device_calls:
                self._device_ids = ray.get(self._device_calls)
            port = ray.get(self._port_call) if several else 0
        except Exception as error:
            self._cluster.forget_agent(self._node_ids[0])
            self._give_up(Cause.AGENT_LOST, _first_line(error), self._hostname(0))
            return
        self._run(port)

    def _master_host(self) -> str:
        if len(self._node_ids) == 1:
            return ""
        address: str = self._cluster.nodes()[self._node_ids[0]]["NodeManagerAddress"]
        return address

    def _hostname(self, part: int) -> str:
        known = self._cluster.nodes().get(self._node_ids[part])
        return known["NodeManagerHostname"] if known else self._node_ids[part][:12]

    def _run(self, port: int) -> None:
        first_rank = 0
        for part, size in enumerate(self._submission.bundles):
            order = NodeOrder(
                trial=self._submission.trial, job=self._submission.job,
                folder=self._submission.folder, mark=self._submission.mark,
                first_rank=first_rank, num_ranks=size, world_size=sum(self._submission.bundles),
                master_host=self._master_host(), master_port=port,
                device_ids=self._device_ids[part],
            )  # fmt: skip
            agent = self._cluster.agent(self._node_ids[part])
            self._calls[part] = agent.run.remote(order.model_dump_json())
            first_rank += size
        self._step = self._watch

    def _watch(self) -> None:
        import ray

        for part, call in self._calls.items():
            if part not in self._results and ray.wait([call], timeout=0)[0]:
                self._take(part, call)
        self._end_leftovers()

    def _take(self, part: int, call: Any) -> None:
        import ray

        try:
            result = NodeResult.model_validate_json(ray.get(call))
        except Exception as error:
            self._lose(part, error)
            return
        self._results[part] = result
        if result.cause is Cause.HANG:
            self._stop(Cause.PEER_HANG)
        elif result.cause is not Cause.ENDED or any(result.exit_codes.values()):
            self._stop(Cause.PEER_ENDED)
        self._ended_s = time.monotonic()

    def _lose(self, part: int, error: Exception) -> None:
        """An agent is gone: tell a dead agent from a dead node, which Ray takes a while to see."""
        node_id = self._node_ids[part]
        lost_s = self._lost_s.setdefault(part, time.monotonic())
        is_node_alive = self._cluster.is_alive(node_id)
        if is_node_alive and time.monotonic() - lost_s < _NODE_DEATH_WAIT_S and not _is_kill(error):
            return
        cause = Cause.AGENT_LOST if is_node_alive else Cause.NODE_LOST
        hostname = self._hostname(part)
        self._cluster.forget_agent(node_id)
        self._results[part] = NodeResult(cause=cause, hostname=hostname, message=_first_line(error))
        self._stop(Cause.PEER_ENDED)

    def _stop(self, cause: Cause) -> None:
        if self._stop_cause is not None:
            return
        self._stop_cause, self._stopped_s = cause, time.monotonic()
        for part in self._calls:
            if part not in self._results:
                agent = self._cluster.agent(self._node_ids[part])
                agent.stop.remote(self._submission.trial, cause.value)

    def _end_leftovers(self) -> None:
        """Parts that outlive another's good end, or that cannot be stopped."""
        now_s = time.monotonic()
        if self._results and self._stopped_s is None and now_s - self._ended_s > _PEER_GRACE_S:
            self._stop(Cause.PEER_ENDED)
        if self._stopped_s is not None and now_s - self._stopped_s > _STOP_GRACE_S:
            for part in self._calls:
                if part not in self._results:
                    self._cluster.forget_agent(self._node_ids[part])
            self._give_up(Cause.AGENT_LOST, "its agent did not end the ranks in time")


def _ray_nodes() -> list[dict[str, Any]]:
    import ray

    found: list[dict[str, Any]] = ray.nodes()  # type: ignore[no-untyped-call]
    return found


def _accelerator_ids() -> list[str]:
    import ray

    found = ray.get_runtime_context().get_accelerator_ids()
    return [str(device) for device in found.get("GPU", [])]


def _first_line(error: Exception) -> str:
    return f"{type(error).__name__}: {error}".strip().splitlines()[0][:300]


def _is_kill(error: Exception) -> bool:
    """Whether Ray itself says that only the worker process died."""
    return "worker process" in str(error).lower() or "worker died" in str(error).lower()


class Driver:
    """Carries out the controller's requests."""

    def __init__(self, channel: ChannelServer, options: DriverOptions) -> None:
        self._channel = channel
        self._options = options
        self._cluster = Cluster(options)
        self._trials: dict[str, RunningTrial] = {}
        self._progress_calls: dict[str, Any] = {}
        self._table: list[dict[str, Any]] = []
        self._looked_s = float("-inf")

    def open(self) -> bool:
        """Connect and start the agents; false when that fails, which the controller is told."""
        try:
            self._cluster.connect()
            error = self._cluster.open_agents()
        except Exception as failure:
            error = _first_line(failure)
        if error:
            self._channel.send("failed", message=error)
            return False
        self._table = self._cluster.table()
        self._channel.send("ready", nodes=self._table)
        return True

    def serve(self) -> None:
        """Until the controller is gone or says `close`."""
        while True:
            wait_s = _BUSY_POLL_S if self._trials else _IDLE_POLL_S
            requests = self._channel.receive(wait_s)
            if requests is None:
                return
            for request in requests:
                if request["op"] == "close":
                    return
                self._handle(request)
            self._advance()
            self._look_at_nodes()

    def _handle(self, request: Mapping[str, Any]) -> None:
        if request["op"] == "submit":
            submission = Submission.model_validate(request["submission"])
            resource = _RESOURCES[submission.job.device_kind]
            self._trials[submission.trial] = RunningTrial(self._cluster, submission, resource)
        elif request["op"] == "cancel" and request["trial"] in self._trials:
            self._trials[request["trial"]].cancel()
        elif request["op"] == "progress" and request["trial"] in self._trials:
            call = self._trials[request["trial"]].progress_call()
            if call is not None:
                self._progress_calls[request["trial"]] = call

    def _advance(self) -> None:
        import ray

        for name, call in list(self._progress_calls.items()):
            if ray.wait([call], timeout=0)[0]:
                del self._progress_calls[name]
                with contextlib.suppress(Exception):
                    self._channel.send("progress", trial=name, files=json.loads(ray.get(call)))
        for name, trial in list(self._trials.items()):
            results = trial.advance()
            if results is not None:
                trial.release()
                del self._trials[name]
                nodes = [result.model_dump(mode="json") for result in results]
                self._channel.send("done", trial=name, nodes=nodes)

    def _look_at_nodes(self) -> None:
        if time.monotonic() - self._looked_s < _NODES_REFRESH_S:
            return
        self._looked_s = time.monotonic()
        if not _is_head_alive():
            self._channel.send("lost", message="Ray's head process died")
            os._exit(1)  # a shutdown would wait for it; the controller kills our process group
        table = self._cluster.table()
        if table != self._table:
            self._table = table
            self._channel.send("nodes", nodes=table)

    def close(self) -> None:
        """Leave nothing behind."""
        self._cluster.close()


def _children() -> Iterator[Any]:
    import psutil

    yield from psutil.Process().children()


def _is_head_alive() -> bool:
    """Whether the head that we started is there; one of others tells by failing calls."""
    if not _HEAD_PIDS:
        return True
    import psutil

    for pid in _HEAD_PIDS:
        try:
            if psutil.Process(pid).status() == psutil.STATUS_ZOMBIE:
                return False
        except psutil.NoSuchProcess:
            return False
    return True


_HEAD_PIDS: list[int] = []


def main(arguments: list[str]) -> None:
    """Serve the socket that was inherited as file descriptor `FD`."""
    channel = ChannelServer(int(arguments[0]))
    options = DriverOptions.model_validate_json(arguments[1])
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(0))
    driver = Driver(channel, options)
    try:
        if driver.open():
            _HEAD_PIDS.extend(
                child.pid for child in _children() if child.name() in ("gcs_server", "raylet")
            )
            driver.serve()
    finally:
        driver.close()
        if options.address is None:
            shutil.rmtree(Path(options.temp_folder), ignore_errors=True)


if __name__ == "__main__":
    main(sys.argv[1:])
