"""The Ray cluster as the driver process sees it: nodes, our agents on them, reserved devices."""

import contextlib
import json
import secrets
import time
import warnings
from collections.abc import Mapping, Sequence
from typing import Any

from pydantic import BaseModel, ConfigDict

from tuner.launchers.ray_agent import AgentOptions, NodeAgent

RESOURCES: Mapping[str, str] = {"cpu": "CPU", "cuda": "GPU", "rocm": "GPU"}
NODES_REFRESH_S = 1.0
_AGENT_TIMEOUT_S = 120.0
_SMALL_OBJECT_STORE_BYTES = 80 << 20
_IDLE_GROUP_S = 10.0
_DESCRIBE_TIMEOUT_S = 30.0


class DriverOptions(BaseModel):
    """What the controller tells its Ray process."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    address: str | None
    num_devices: int | None
    device_kind: str
    temp_folder: str
    placement_timeout_s: float
    agent: AgentOptions


class Cluster:
    """Ray's nodes and our agents on them."""

    def __init__(self, options: DriverOptions) -> None:
        self.options = options
        self.resource = RESOURCES[options.device_kind]
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
        """Living nodes by id, at most `NODES_REFRESH_S` old."""
        if time.monotonic() - self._refreshed_s > NODES_REFRESH_S:
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
                error = first_line(failure)
            if error:
                return f"{hostname}: {error}"
        return ""

    def describe(self) -> list[dict[str, Any]]:
        """What each node's agent says of it, with what Ray counts there."""
        import ray

        rows = self.table()
        calls = [self.agent(row["node_id"]).describe.remote() for row in rows]
        found: list[dict[str, Any]] = []
        for row, call in zip(rows, calls, strict=True):
            try:
                found.append({**row, **json.loads(ray.get(call, timeout=_DESCRIBE_TIMEOUT_S))})
            except Exception as error:
                found.append({**row, "error": first_line(error)})
        return found

    def close(self) -> None:
        """End the agents, leave the cluster, and stop it if it was started here."""
        import ray

        with contextlib.suppress(Exception):
            ray.wait([agent.close.remote() for agent in self._agents.values()], timeout=3.0)
        for node_id in list(self._agents):
            self.forget_agent(node_id)
        with contextlib.suppress(Exception):
            ray.shutdown()


class DeviceGroup:
    """Devices reserved at once, one bundle per node: a placement group and what it was given."""

    def __init__(self, bundles: Sequence[int], resource: str) -> None:
        from ray.util.placement_group import placement_group

        self.bundles = tuple(bundles)
        self.resource = resource
        self.idle_since_s = 0.0
        self.device_ids: list[list[str]] | None = None
        self._calls: list[Any] | None = None
        strategy = "STRICT_PACK" if len(bundles) == 1 else "STRICT_SPREAD"
        self._group = placement_group([{resource: size} for size in bundles], strategy=strategy)

    def node_ids(self) -> list[str] | None:
        """The node of each bundle; none while the group waits for free devices."""
        from ray.util import placement_group_table

        table = placement_group_table(self._group)
        if table["state"] != "CREATED":
            return None
        placed: Mapping[int, str] = table["bundles_to_node_id"]
        return [placed[part] for part in range(len(self.bundles))]

    def knows_devices(self) -> bool:
        """Whether the GPUs of each bundle are known: only Ray does, so a task in each looks.

        Raises:
            Exception: Whatever Ray raises when such a task cannot run.
        """
        import ray

        if self.resource != "GPU" or self.device_ids is not None:
            return True
        if self._calls is None:
            self._calls = [self._look(part, size) for part, size in enumerate(self.bundles)]
        if len(ray.wait(self._calls, num_returns=len(self._calls), timeout=0)[0]) < len(
            self._calls
        ):
            return False
        self.device_ids = ray.get(self._calls)
        return True

    def _look(self, part: int, size: int) -> Any:
        import ray
        from ray.util.scheduling_strategies import PlacementGroupSchedulingStrategy

        strategy = PlacementGroupSchedulingStrategy(self._group, placement_group_bundle_index=part)
        task = ray.remote(num_cpus=0, max_retries=0)(_accelerator_ids)
        return task.options(num_gpus=size, scheduling_strategy=strategy).remote()

    def remove(self) -> None:
        """Give the devices back to Ray."""
        from ray.util.placement_group import remove_placement_group

        with contextlib.suppress(Exception):
            remove_placement_group(self._group)


class GroupPool:
    """Device groups of trials that ended, for the next trial of the same shape.

    Ray takes up to a second to hand devices from one placement group to the next, which would be
    most of a short trial's overhead.
    """

    def __init__(self) -> None:
        self._idle: list[DeviceGroup] = []

    def take(self, bundles: Sequence[int], resource: str) -> DeviceGroup:
        """An idle group of this shape, or else a new one in place of the idle ones."""
        for group in self._idle:
            if group.bundles == tuple(bundles) and group.resource == resource:
                self._idle.remove(group)
                return group
        self._drop(self._idle)
        return DeviceGroup(bundles, resource)

    def give(self, group: DeviceGroup, *, is_sound: bool) -> None:
        """Take a group back; one that lost a node is removed."""
        if not is_sound:
            group.remove()
            return
        group.idle_since_s = time.monotonic()
        self._idle.append(group)

    def drop_old(self) -> None:
        """Return to others on the cluster what was not used for a while."""
        limit_s = time.monotonic() - _IDLE_GROUP_S
        self._drop([group for group in self._idle if group.idle_since_s < limit_s])

    def _drop(self, groups: Sequence[DeviceGroup]) -> None:
        for group in list(groups):
            group.remove()
            self._idle.remove(group)


def _ray_nodes() -> list[dict[str, Any]]:
    import ray

    found: list[dict[str, Any]] = ray.nodes()  # type: ignore[no-untyped-call]
    return found


def _accelerator_ids() -> list[str]:
    import ray

    found = ray.get_runtime_context().get_accelerator_ids()
    return [str(device) for device in found.get("GPU", [])]


def first_line(error: Exception) -> str:
    """An error of Ray's in one line: its texts run over pages."""
    return f"{type(error).__name__}: {error}".strip().splitlines()[0][:300]
