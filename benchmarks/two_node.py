"""A real study over two nodes on one machine: two network namespaces joined by a slow link.

Each namespace is a Ray node with one device; a veth pair limited to 200 Mbit/s by `tc tbf` joins
them. The link and the nodes' speed are measured; then a study, stored and ranked like any other,
tries tensor, pipeline and data parallelism across the link. Tensor parallelism moves every layer's
activations over it and must lose; the cost model on the measured cluster must say so too.

    make two-node          (as root; skips with the reason where namespaces cannot be made)
    python -m benchmarks.two_node [--rate-mbit 200] [--model NAME] [--quick] [--json]
"""

import argparse
import contextlib
import json
import os
import secrets
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from benchmarks.harness import finish, parser
from results_db import queries
from search_spaces.cluster_spec import ClusterSpec, LinkSpec
from search_spaces.cost_models.analytic import AnalyticCostModel
from search_spaces.model_spec import ModelSpec
from search_spaces.parallel_config import ParallelConfig
from search_spaces.training_spec import TrainingSpec
from tuner.config import StudyConfig, study_config_from
from tuner.controller import run_study
from tuner.launchers.check_ranks import CHECK_FLOPS, CHECK_REDUCED_BYTES
from tuner.launchers.checks import CHECK_ENTRY, check_collectives
from tuner.launchers.ray_launcher import RayLauncher
from tuner.ports import StudyProgress, TrialEvent
from tuner.study import create_study

CONFIGS = {
    "tp2": ParallelConfig(tp=2, micro_batch_size=2),
    "pp2": ParallelConfig(pp=2, micro_batch_size=2),
    "dp2": ParallelConfig(dp=2, micro_batch_size=2),
}
_SUBNET = "10.231.77"
_PORT = 6399
_LINK_ALPHA_S = 200e-6
_NODE_START_S = 120.0


class SkippedError(Exception):
    """This machine cannot do it; the message says what is missing."""


def main() -> None:
    """Run the study, or say why not."""
    options_parser = parser(__doc__)
    options_parser.add_argument("--rate-mbit", type=int, default=200, help="rate of the link")
    options_parser.add_argument("--model", default="gpt2-tiny", help="preset or config.json")
    options_parser.add_argument("--inside", help=argparse.SUPPRESS)
    options = options_parser.parse_args()
    if options.inside:
        print(json.dumps(run_in_namespace(json.loads(options.inside))))
        return
    try:
        figures = run_on_two_nodes(options)
    except SkippedError as reason:
        print(f"skipped: {reason}")
        finish(options, {"skipped": str(reason)})
        return
    finish(options, figures)
    if not figures["tp_loses_measured"] or not figures["tp_loses_predicted"]:
        sys.exit("tensor parallelism across the slow link did not lose")


def run_on_two_nodes(options: argparse.Namespace) -> dict[str, Any]:
    """Bring the two nodes up, run the study in the first one's namespace, give its figures."""
    with (
        two_namespaces(options.rate_mbit) as names,
        tempfile.TemporaryDirectory(prefix="tuner-2n-") as folder,
    ):
        variables = {
            "RAY_AUTH_MODE": "token",
            "RAY_AUTH_TOKEN": secrets.token_hex(32),
            "RAY_USAGE_STATS_ENABLED": "0",
            "RAY_memory_monitor_refresh_ms": "0",
        }
        with ray_in(names, folder, variables):
            order = {
                "address": f"{_SUBNET}.1:{_PORT}",
                "folder": folder,
                "model": options.model,
                "rate_mbit": options.rate_mbit,
                "steps": 2 if options.quick else 4,
            }
            program = [sys.executable, "-m", "benchmarks.two_node", "--inside", json.dumps(order)]
            done = run_in(names[0], program, variables, capture=True)
    if done.returncode:
        raise SystemExit(f"the study in the namespace failed:\n{done.stderr[-2000:]}")
    figures: dict[str, Any] = json.loads(done.stdout.strip().splitlines()[-1])
    return figures


def run(*words: str) -> None:
    """Run a program of the system; `SkippedError` with its own words if it fails."""
    done = subprocess.run(words, capture_output=True, text=True, check=False)
    if done.returncode:
        raise SkippedError(f"`{' '.join(words)}` failed: {done.stderr.strip()}")


@contextmanager
def two_namespaces(rate_mbit: int) -> Iterator[tuple[str, str]]:
    """Two network namespaces and a veth pair with a limited rate; removed afterwards."""
    if sys.platform != "linux" or os.geteuid() != 0:
        raise SkippedError("network namespaces need root on Linux")
    for program in ("ip", "tc"):
        if shutil.which(program) is None:
            raise SkippedError(f"the program `{program}` (iproute2) is missing")
    tag = secrets.token_hex(2)
    names = (f"tuner-{tag}-a", f"tuner-{tag}-b")
    try:
        for name in names:
            run("ip", "netns", "add", name)
        ends = (f"tn{tag}a", f"tn{tag}b")
        run("ip", "link", "add", ends[0], "type", "veth", "peer", "name", ends[1])
        for number, (name, end) in enumerate(zip(names, ends, strict=True), start=1):
            run("ip", "link", "set", end, "netns", name)
            inside = ("ip", "-n", name)
            run(*inside, "addr", "add", f"{_SUBNET}.{number}/24", "dev", end)
            run(*inside, "link", "set", end, "up")
            run(*inside, "link", "set", "lo", "up")
            run(
                "tc", "-n", name, "qdisc", "add", "dev", end, "root", "tbf",
                "rate", f"{rate_mbit}mbit", "burst", "64kb", "latency", "400ms",
            )  # fmt: skip
        yield names
    finally:
        for name in names:  # the veth pair goes with them
            subprocess.run(["ip", "netns", "del", name], capture_output=True, check=False)


def run_in(
    name: str, program: Sequence[str], variables: Mapping[str, str], *, capture: bool = False
) -> "subprocess.CompletedProcess[str]":
    """Run a program to its end inside a namespace."""
    return subprocess.run(
        ["ip", "netns", "exec", name, *program],
        env={**os.environ, **variables}, text=True, check=False, capture_output=capture,
    )  # fmt: skip


@contextmanager
def ray_in(names: Sequence[str], folder: str, variables: Mapping[str, str]) -> Iterator[None]:
    """A Ray node with one device in each namespace."""
    ray = [str(Path(sys.executable).parent / "ray"), "start", "--block", "--num-cpus=1"]
    shared = ["--disable-usage-stats", "--object-store-memory=80000000"]
    head = [
        "--head", f"--node-ip-address={_SUBNET}.1", f"--port={_PORT}",
        "--include-dashboard=false", f"--temp-dir={folder}/ray",
    ]  # fmt: skip
    worker = [f"--address={_SUBNET}.1:{_PORT}", f"--node-ip-address={_SUBNET}.2"]
    nodes: list[subprocess.Popen[bytes]] = []
    try:
        for name, arguments in zip(names, (head, worker), strict=True):
            nodes.append(start_node(name, [*ray, *shared, *arguments], variables))
            wait_for_port(names[0], nodes[-1])
        yield
    finally:
        for node in reversed(nodes):
            end_node(node)
        for name in names:
            end_namespace(name)


def start_node(
    name: str, program: Sequence[str], variables: Mapping[str, str]
) -> "subprocess.Popen[bytes]":
    """Start `ray start --block` inside a namespace, in a process group of its own."""
    return subprocess.Popen(
        ["ip", "netns", "exec", name, *program],
        env={**os.environ, **variables}, start_new_session=True,
        stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL,
    )  # fmt: skip


def wait_for_port(name: str, node: "subprocess.Popen[bytes]") -> None:
    """Wait until the head answers."""
    probe = f"import socket; socket.create_connection(('{_SUBNET}.1', {_PORT}), 1)"
    deadline_s = time.monotonic() + _NODE_START_S
    while time.monotonic() < deadline_s:
        if node.poll() is not None:
            raise SystemExit(f"`ray start` ended with code {node.returncode}")
        done = run_in(name, [sys.executable, "-c", probe], {}, capture=True)
        if done.returncode == 0:
            return
        time.sleep(0.5)
    raise SystemExit("Ray's head did not answer in time")


def end_node(node: "subprocess.Popen[bytes]") -> None:
    """End a node in order, then by force."""
    with contextlib.suppress(ProcessLookupError):
        os.killpg(node.pid, signal.SIGTERM)
    with contextlib.suppress(subprocess.TimeoutExpired):
        node.wait(20)
    with contextlib.suppress(ProcessLookupError):
        os.killpg(node.pid, signal.SIGKILL)
    node.wait()


def end_namespace(name: str) -> None:
    """Kill what still lives in a namespace of ours: Ray's workers leave their process group."""
    listed = subprocess.run(
        ["ip", "netns", "pids", name], capture_output=True, text=True, check=False
    )
    for pid in listed.stdout.split():
        with contextlib.suppress(ProcessLookupError):
            os.kill(int(pid), signal.SIGKILL)


class Silent:
    """An observer that prints nothing but failures."""

    def on_event(self, event: TrialEvent, progress: StudyProgress) -> None:
        """Show what failed."""
        if event.event == "failed":
            print(event.config.short(), event.message, file=sys.stderr)

    def on_message(self, text: str) -> None:
        """Nothing."""


def run_in_namespace(order: Mapping[str, Any]) -> dict[str, Any]:
    """Calibrate, run the study, rank it by SQL and predict the same; inside a namespace."""
    cluster = calibrate(order)
    config = study_config(order, cluster)
    study = create_study(config)
    run_study(study, Silent())
    rows = queries.leaderboard(study.store, study.id)
    by_key = {config.config_key: name for name, config in CONFIGS.items()}
    measured = {by_key[row.config_key]: row.step_time_s for row in rows if row.config_key in by_key}
    study.store.close()
    if missing := set(CONFIGS) - set(measured):
        raise SystemExit(f"no measurement of {', '.join(sorted(missing))}")
    predicted = predict(study.model, study.training, cluster)
    return {
        **{f"measured_{name}_s": value for name, value in measured.items()},
        **{f"predicted_{name}_s": value for name, value in predicted.items()},
        "tp_loses_measured": max(measured, key=lambda name: measured[name]) == "tp2",
        "tp_loses_predicted": max(predicted, key=lambda name: predicted[name]) == "tp2",
        "measured_order": list(measured),
        "predicted_order": sorted(predicted, key=lambda name: predicted[name]),
        "num_trials": len(rows),
        "measured_link_mbit": cluster.inter_node.bytes_per_s * 8 / 1e6,
        "measured_peak_gflops": cluster.peak_flops_per_s["fp32"] / 1e9,
        "rate_mbit": order["rate_mbit"],
        "model": order["model"],
    }


def calibrate(order: Mapping[str, Any]) -> ClusterSpec:
    """The two nodes as a cluster, with the rates that a check over the real link measured.

    A ring all-reduce over two ranks sends as many bytes as the message has.
    """
    folder = Path(order["folder"])
    launcher = RayLauncher(
        num_devices=2, run_folder=folder, address=order["address"], entry=CHECK_ENTRY
    )
    try:
        launcher.open()
        wait_for_devices(launcher)
        checks, ranks = check_collectives(launcher, folder, "cpu")
    finally:
        launcher.close()
    if not ranks:
        raise SystemExit(f"the nodes cannot reach each other: {checks[0].message}")
    reduce_s = max(rank.breakdown_s["all_reduce"] for rank in ranks)
    compute_s = max(rank.breakdown_s["compute"] for rank in ranks)
    return ClusterSpec(
        name="two-namespaces", num_nodes=2, devices_per_node=1, memory_bytes=4 << 30,
        peak_flops_per_s={"fp32": CHECK_FLOPS / compute_s},
        inter_node=LinkSpec(alpha_s=_LINK_ALPHA_S, bytes_per_s=CHECK_REDUCED_BYTES / reduce_s),
    )  # fmt: skip


def study_config(order: Mapping[str, Any], cluster: ClusterSpec) -> StudyConfig:
    """Every way to use two devices, on the cluster as it was measured."""
    folder = Path(order["folder"])
    link = {"alpha_us": cluster.inter_node.alpha_s * 1e6,
            "gb_per_s": cluster.inter_node.bytes_per_s / 1e9}  # fmt: skip
    return study_config_from(
        {
            "name": "two-node",
            "model": {"source": order["model"]},
            "training": {"sequence_length": 128, "global_batch_size": 8},
            "cluster": {
                "name": cluster.name, "device_kind": "cpu", "num_nodes": 2, "devices_per_node": 1,
                "memory_gib": 4.0, "inter_node": link,
                "peak_tflops": {"fp32": cluster.peak_flops_per_s["fp32"] / 1e12},
            },
            "space": {
                "micro_batch_size": 2, "zero_stage": 0, "recompute": "none", "dtype": "fp32",
                "sequence_parallel": False, "pipeline_schedule": "1f1b", "cp": 1,
                "virtual_stages": 1, "tp_layout": "1d", "compile": False,
            },
            "search": {
                "searcher": "grid", "max_trials": 6, "confirm_top": 0, "early_stop": False,
                "check_drift": False,
            },
            "measure": {
                "warmup_steps": 1, "measured_steps": order["steps"], "deadline_s": 200.0,
                "hang_s": 100.0,
            },
            "launcher": {
                "name": "ray", "address": order["address"],
                "options": {"split_tensor_parallel": True},
            },
            "store": {"url": f"sqlite:///{(folder / 'two-node.db').as_posix()}"},
        }
    )  # fmt: skip


def wait_for_devices(launcher: RayLauncher) -> None:
    """The second node joins a moment after the first."""
    deadline_s = time.monotonic() + _NODE_START_S
    while launcher.num_devices() < 2:
        if time.monotonic() > deadline_s:
            raise SystemExit("the second node did not join")
        time.sleep(0.1)


def predict(model: ModelSpec, training: TrainingSpec, cluster: ClusterSpec) -> dict[str, float]:
    """What the cost model says of the calibrated cluster."""
    cost_model = AnalyticCostModel(model, training, cluster)
    return {name: cost_model.estimate(config).step_time_s for name, config in CONFIGS.items()}


if __name__ == "__main__":
    main()
