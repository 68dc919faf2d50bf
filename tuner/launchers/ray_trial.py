"""One trial on its way through Ray, as a state machine that the driver process advances."""

import time
from typing import Any

from pydantic import BaseModel, ConfigDict

from trainer.contract import TrialJob
from tuner.launchers.ray_agent import NodeOrder
from tuner.launchers.ray_cluster import Cluster, DeviceGroup, first_line
from tuner.launchers.supervision import Cause, NodeResult

_NODE_DEATH_WAIT_S = 40.0
_PEER_GRACE_S = 15.0
_STOP_GRACE_S = 20.0


class Submission(BaseModel):
    """A trial with the sizes of its parts, one part per node, in the order of ranks."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    trial: str
    job: TrialJob
    folder: str
    mark: str
    bundles: list[int]


class RunningTrial:
    """One trial on its way through Ray. `advance` never waits."""

    def __init__(self, cluster: Cluster, submission: Submission, group: DeviceGroup) -> None:
        self._cluster = cluster
        self._submission = submission
        self.group = group
        self._node_ids: list[str] = []
        self._port_call: Any = None
        self._calls: dict[int, Any] = {}
        self._results: dict[int, NodeResult] = {}
        self._lost_s: dict[int, float] = {}
        self._stopped_s: float | None = None
        self._stop_cause: Cause | None = None
        self._step = self._place
        self._started_s = self._ended_s = time.monotonic()

    def advance(self) -> list[NodeResult] | None:
        """Move on; the results of all parts at the end."""
        self._step()
        if len(self._results) < len(self._submission.bundles):
            return None
        return [self._results[part] for part in sorted(self._results)]

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
        node_ids = self.group.node_ids()
        if node_ids is not None:
            self._node_ids = node_ids
            self._step = self._meet
            self._step()
        elif time.monotonic() - self._started_s > self._cluster.options.placement_timeout_s:
            wanted = " + ".join(map(str, self._submission.bundles))
            self._give_up(
                Cause.NEVER_PLACED,
                f"{wanted} {self.group.resource} were not free within"
                f" {self._cluster.options.placement_timeout_s:g} s; others use this cluster",
            )

    def _meet(self) -> None:
        """Learn which GPUs they are and, for several nodes, a port of rank 0's."""
        import ray

        if len(self._node_ids) > 1 and self._port_call is None:
            agent = self._cluster.agent(self._node_ids[0])
            self._port_call = agent.meeting_port.remote(self._master_host())
        try:
            if not self.group.knows_devices():
                return
            if self._port_call is None:
                self._run(0)
            elif ray.wait([self._port_call], timeout=0)[0]:
                self._run(ray.get(self._port_call))
        except Exception as error:
            self._cluster.forget_agent(self._node_ids[0])
            self._give_up(Cause.AGENT_LOST, first_line(error), self._hostname(0))

    def _master_host(self) -> str:
        if len(self._node_ids) == 1:
            return ""
        address: str = self._cluster.nodes()[self._node_ids[0]]["NodeManagerAddress"]
        return address

    def _hostname(self, part: int) -> str:
        known = self._cluster.nodes().get(self._node_ids[part])
        return known["NodeManagerHostname"] if known else self._node_ids[part][:12]

    def _run(self, port: int) -> None:
        first_rank, devices = 0, self.group.device_ids
        for part, size in enumerate(self._submission.bundles):
            order = NodeOrder(
                trial=self._submission.trial, job=self._submission.job,
                folder=self._submission.folder, mark=self._submission.mark,
                first_rank=first_rank, num_ranks=size, world_size=sum(self._submission.bundles),
                master_host=self._master_host(), master_port=port,
                device_ids=devices[part] if devices else None,
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
        self._stop(Cause.PEER_ENDED)
        is_node_alive = self._cluster.is_alive(node_id)
        if is_node_alive and time.monotonic() - lost_s < _NODE_DEATH_WAIT_S and not _is_kill(error):
            return
        cause = Cause.AGENT_LOST if is_node_alive else Cause.NODE_LOST
        hostname = self._hostname(part)
        self._cluster.forget_agent(node_id)
        self._results[part] = NodeResult(cause=cause, hostname=hostname, message=first_line(error))

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
            waiting = [part for part in self._calls if part not in self._results]
            for part in waiting:
                if part not in self._lost_s:
                    self._cluster.forget_agent(self._node_ids[part])
            if not set(waiting) <= set(self._lost_s):
                self._give_up(Cause.AGENT_LOST, "its agent did not end the ranks in time")


def _is_kill(error: Exception) -> bool:
    """Whether Ray itself says that only the worker process died."""
    return "worker process" in str(error).lower() or "worker died" in str(error).lower()
