"""`tuner calibrate`: measure this machine and describe it as a cluster file."""

import json
import subprocess
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from tuner.cli import formats
from tuner.cli.options import json_option, verbosity_options
from tuner.cli.output import print_json, print_table, say
from tuner.errors import EnvironmentProblem, UsageError

if TYPE_CHECKING:
    from search_spaces.cluster_spec import ClusterSpec

_TIMEOUT_S = 300.0


@click.command(
    epilog="\b\nExamples:\n  tuner calibrate\n  tuner calibrate --devices 2 --output node.toml\n"
    "  tuner plan --model gpt2-124m --cluster ./cluster.toml"
)
@click.option("--devices", type=click.IntRange(min=1), metavar="N", help="Ranks to measure with.")
@click.option(
    "--output", type=click.Path(dir_okay=False, path_type=Path), default=Path("cluster.toml"),
    show_default=True, help="The cluster file to write.",
)  # fmt: skip
@click.option("--force", is_flag=True, help="Replace the file if it exists.")
@json_option
@verbosity_options
def calibrate(devices: int | None, output: Path, force: bool, as_json: bool) -> None:
    """Measure this machine and write it down as a cluster file."""
    from search_spaces.cluster_detect import detect_local_cluster
    from search_spaces.cluster_io import dump_cluster_spec

    if output.exists() and not force:
        raise UsageError(f"{output} exists", "choose another --output, or replace it with --force")
    cluster = detect_local_cluster(devices)
    say(f"measuring {cluster.devices_per_node} ranks of {cluster.device_name} at a time")
    report = _measure(cluster)
    measured = _described(cluster, report)
    text = "".join(f"# {line}\n" for line in _notes(report)) + dump_cluster_spec(measured)
    output.write_text(text, encoding="utf-8")
    if as_json:
        print_json({"file": str(output), "cluster": measured.model_dump(), "measured": report})
        return
    print_table(["measured", "value"], _rows(measured, report))
    click.echo(f"wrote {output}")


def _measure(cluster: "ClusterSpec") -> dict[str, Any]:
    """Run the measurement where torch is: in a process of the trainer's."""
    from tuner.provenance import child_environment

    device = "cpu" if cluster.device_kind == "cpu" else "cuda"
    command = [
        sys.executable, "-m", "trainer.calibrate", "--ranks", str(cluster.devices_per_node),
        "--threads", str(cluster.threads_per_device), "--device", device,
    ]  # fmt: skip
    try:
        done = subprocess.run(  # noqa: S603 -- our own module, no shell
            command, capture_output=True, text=True, timeout=_TIMEOUT_S, check=False,
            env=child_environment(),
        )  # fmt: skip
    except (OSError, subprocess.SubprocessError) as error:
        raise EnvironmentProblem(f"the measurement did not end: {error}") from error
    try:
        report = json.loads(done.stdout.splitlines()[-1])
    except (ValueError, IndexError) as error:
        last = (done.stderr.strip().splitlines() or ["it printed nothing"])[-1]
        raise EnvironmentProblem(f"the measurement failed: {last}", "see `tuner doctor`") from error
    return dict(report)


def _described(cluster: "ClusterSpec", report: dict[str, Any]) -> "ClusterSpec":
    """The detected cluster with measured rates in place of guesses."""
    from search_spaces.cluster_spec import LinkSpec

    changes: dict[str, Any] = {
        "name": "calibrated",
        "peak_flops_per_s": report["peak_flops_per_s"],
        "memory_bytes_per_s": report["memory_bytes_per_s"],
    }
    reduces = [link for name, link in report["links"].items() if name.startswith("all_reduce")]
    if reduces:
        changes["intra_node"] = LinkSpec(**reduces[-1])
    return cluster.model_copy(update=changes)


def _notes(report: dict[str, Any]) -> list[str]:
    """What a cluster file has no key for."""
    host = report["host_forward_s"], report["host_backward_s"]
    notes = [
        "Written by `tuner calibrate`; all ranks of the node measured at the same time.",
        f"Host time of a layer: forward {host[0] * 1e6:.0f} us, backward {host[1] * 1e6:.0f} us.",
    ]
    for dtype, curve in report["gemm_curve"].items():
        points = ", ".join(f"{p['rows']:.0f}: {p['flops_per_s'] / 1e9:.1f}" for p in curve)
        notes.append(f"GFLOP/s of [rows, 1024] @ [1024, 1024] in {dtype} by rows: {points}.")
    return notes


def _rows(cluster: "ClusterSpec", report: dict[str, Any]) -> list[list[str]]:
    rows = [
        [f"peak {dtype}", formats.flops(rate)] for dtype, rate in cluster.peak_flops_per_s.items()
    ]
    rows.append(["memory bandwidth", f"{cluster.memory_bytes_per_s / 1e9:.2f} GB/s"])
    for name, link in report["links"].items():
        alpha, rate = formats.step_time(link["alpha_s"]), link["bytes_per_s"] / 1e9
        rows.append([name.replace("_", " "), f"{alpha} + {rate:.2f} GB/s"])
    for name in ("forward", "backward"):
        rows += [[f"host {name} of a layer", formats.step_time(report[f"host_{name}_s"])]]
    return rows


calibrate_command = calibrate
