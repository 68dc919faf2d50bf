"""Looks at a cluster before the first trial: versions, devices, collectives, slow nodes.

`check_cluster` starts a launcher of its own whose ranks run `check_ranks`, so that everything is
tested on the way that trials take: placement, agents, forked ranks, rendezvous, network interface.
"""

import statistics
import tempfile
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from search_spaces.model_spec import ModelSpec
from search_spaces.parallel_config import ParallelConfig
from search_spaces.training_spec import TrainingSpec
from trainer.contract import MeasureSpec, RankReport, TrialJob, TrialOutput
from tuner.errors import LauncherError
from tuner.launchers.ray_launcher import RayLauncher
from tuner.ports import Launcher

CHECK_ENTRY = "tuner.launchers.check_ranks:run_rank"
_TIMEOUT_S = 120.0
_JOIN_TIMEOUT_S = 120.0
_STRAGGLER_RATIO = 1.3
"""A node whose median matrix product takes this much longer than the median node's is named."""


@dataclass(frozen=True, kw_only=True)
class ClusterCheck:
    """One thing that was looked at."""

    name: str
    is_ok: bool
    message: str
    hint: str = ""


def check_cluster(
    *,
    num_devices: int | None = None,
    address: str | None = None,
    device_kind: Literal["cpu", "cuda", "rocm"] = "cpu",
    num_nodes: int | None = None,
) -> list[ClusterCheck]:
    """Look at the Ray cluster at `address`, or at a local one of `num_devices`.

    With `num_nodes`, so many must join within two minutes.
    """
    with tempfile.TemporaryDirectory(prefix="tuner-check-") as name:
        launcher = RayLauncher(
            num_devices=num_devices,
            run_folder=Path(name),
            address=address,
            device_kind=device_kind,
            entry=CHECK_ENTRY,
            split_tensor_parallel=True,
        )
        try:
            launcher.open()
            joined = [_wait_for_nodes(launcher, num_nodes)] if num_nodes else []
            nodes = launcher.describe_nodes()
            checks = [
                *joined,
                check_agents(nodes),
                check_versions(nodes),
                check_devices(nodes, device_kind),
            ]
            return checks + check_collectives(launcher, Path(name), device_kind)[0]
        except LauncherError as error:
            return [
                ClusterCheck(name="cluster", is_ok=False, message=error.message, hint=error.hint)
            ]
        finally:
            launcher.close()


def check_agents(nodes: Sequence[Mapping[str, Any]]) -> ClusterCheck:
    """Whether an agent answers on every node."""
    silent = [f"{node['hostname']} ({node['error']})" for node in nodes if "error" in node]
    if silent or not nodes:
        message = f"no answer from {', '.join(silent)}" if silent else "no node is alive"
        hint = "is parallel-tuner installed in the environment that `ray start` was run in?"
        return ClusterCheck(name="nodes", is_ok=False, message=message, hint=hint)
    names = ", ".join(str(node["hostname"]) for node in nodes)
    return ClusterCheck(name="nodes", is_ok=True, message=f"{len(nodes)} nodes answer: {names}")


def check_versions(nodes: Sequence[Mapping[str, Any]]) -> ClusterCheck:
    """Whether Python and the packages that matter are the same everywhere."""
    answering = [node for node in nodes if "versions" in node]
    differences = []
    for package in answering[0]["versions"] if answering else ():
        found = {node["hostname"]: node["versions"].get(package, "missing") for node in answering}
        if len(set(found.values())) > 1:
            listed = ", ".join(f"{version} on {host}" for host, version in sorted(found.items()))
            differences.append(f"{package} is {listed}")
    if differences:
        hint = "install the same versions on every node"
        return ClusterCheck(name="versions", is_ok=False, message="; ".join(differences), hint=hint)
    return ClusterCheck(name="versions", is_ok=True, message="equal on all nodes")


def check_devices(nodes: Sequence[Mapping[str, Any]], device_kind: str) -> ClusterCheck:
    """Whether every node has the devices that Ray counts on."""
    counted = ", ".join(f"{node['hostname']}: {node['total']}" for node in nodes)
    if device_kind == "cpu":
        short = [
            f"{node['hostname']} has {node['num_cores']} cores for {node['total']} ranks"
            for node in nodes
            if node.get("num_cores", node["total"]) < node["total"]
        ]
        hint = "lower the devices per node: ranks that share a core measure each other"
    else:
        short = [
            f"{node['hostname']} shows {node['num_gpus_seen']} GPUs and Ray counts {node['total']}"
            for node in nodes
            if node.get("num_gpus_seen", node["total"]) != node["total"]
        ]
        hint = "check the driver there, and `--num-gpus` of its `ray start`"
    if short:
        return ClusterCheck(name="devices", is_ok=False, message="; ".join(short), hint=hint)
    return ClusterCheck(name="devices", is_ok=True, message=f"ranks by node: {counted}")


def check_collectives(
    launcher: Launcher, run_folder: Path, device_kind: Literal["cpu", "cuda", "rocm"]
) -> tuple[list[ClusterCheck], list[RankReport]]:
    """Reduce over all devices, and compare the nodes' speed; `launcher` has `CHECK_ENTRY`.

    Returns:
        The checks, and what each rank measured; no ranks when the reduction did not work.
    """
    world_size = launcher.num_devices()
    job = _check_job(world_size, device_kind)
    output = _run(launcher, job, run_folder / "check")
    if len(output.ranks) < world_size:
        reason = output.failures[0].message if output.failures else "no rank said why"
        failed = ClusterCheck(
            name="collectives", is_ok=False, message=f"{world_size} ranks: {reason}",
            hint="check firewalls between the nodes and the interface of their addresses",
        )  # fmt: skip
        return [failed], []
    worst = max(rank.breakdown_s["all_reduce"] for rank in output.ranks)
    message = f"4 MB over {world_size} ranks in {worst * 1e3:.1f} ms"
    works = ClusterCheck(name="collectives", is_ok=True, message=message)
    return [works, check_stragglers(output.ranks)], output.ranks


def check_stragglers(ranks: Sequence[RankReport]) -> ClusterCheck:
    """Whether one node is slower than the others; it would set the pace of every trial."""
    by_node: dict[str, list[float]] = {}
    for rank in ranks:
        by_node.setdefault(rank.hostname, []).append(rank.breakdown_s["compute"])
    speeds = {host: statistics.median(seconds) for host, seconds in by_node.items()}
    typical = statistics.median_low(speeds.values())
    slow = {host: value / typical for host, value in speeds.items()}
    named = [f"{host} ({ratio:.1f}x)" for host, ratio in slow.items() if ratio > _STRAGGLER_RATIO]
    if named:
        message = f"slower than the median node: {', '.join(sorted(named))}"
        hint = "look for other jobs, thermal limits or a wrong power state there"
        return ClusterCheck(name="stragglers", is_ok=False, message=message, hint=hint)
    message = f"{len(speeds)} nodes within {max(slow.values()):.2f}x of the median"
    return ClusterCheck(name="stragglers", is_ok=True, message=message)


def _check_job(world_size: int, device_kind: Literal["cpu", "cuda", "rocm"]) -> TrialJob:
    model = ModelSpec(
        name="check", family="llama", num_layers=1, hidden_size=1, num_heads=1, num_kv_heads=1,
        head_dim=1, ffn_size=1, vocab_size=1, max_positions=1,
    )  # fmt: skip
    return TrialJob(
        trial_id="check",
        model=model,
        training=TrainingSpec(sequence_length=1, global_batch_size=world_size),
        config=ParallelConfig(dp=world_size),
        measure=MeasureSpec(deadline_s=_TIMEOUT_S, hang_s=_TIMEOUT_S),
        device_kind=device_kind,
    )


def _run(launcher: Launcher, job: TrialJob, folder: Path) -> TrialOutput:
    handle = launcher.submit(job, folder)
    while (output := handle.poll()) is None:
        time.sleep(0.02)
    return output


def _wait_for_nodes(launcher: RayLauncher, wanted: int) -> ClusterCheck:
    """Give nodes time to join: their `ray start` runs at the same time as this."""
    deadline_s = time.monotonic() + _JOIN_TIMEOUT_S
    while (found := launcher.num_nodes()) < wanted and time.monotonic() < deadline_s:
        time.sleep(0.5)
    hint = "" if found >= wanted else "look at the output of `ray start` on the missing ones"
    message = f"{found} of {wanted} nodes with devices have joined"
    return ClusterCheck(name="joined", is_ok=found >= wanted, message=message, hint=hint)
