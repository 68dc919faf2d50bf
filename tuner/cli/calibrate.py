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
_HEADER = "# Written by `tuner calibrate`; all ranks of the node measured at the same time.\n"


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
    output.write_text(_HEADER + dump_cluster_spec(measured), encoding="utf-8")
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
        "host_forward_s": report["host_forward_s"],
        "host_backward_s": report["host_backward_s"] or None,
        "gemm_flops": _gemm_sizes(report),
        "gemm_flops_per_s": {
            dtype: [point["flops_per_s"] for point in curve]
            for dtype, curve in report["gemm_curve"].items()
        },
    }
    whole = report["links"].get(f"all_reduce_{cluster.devices_per_node}")
    if whole:
        changes["intra_node"] = LinkSpec(**whole)
    return cluster.model_copy(update=changes)


def _gemm_sizes(report: dict[str, Any]) -> list[float]:
    """Operations of the measured matrix products; all precisions have the same shapes."""
    curve = next(iter(report["gemm_curve"].values()))
    return [2.0 * point["rows"] * point["inner"] * point["columns"] for point in curve]


def _rows(cluster: "ClusterSpec", report: dict[str, Any]) -> list[list[str]]:
    rows = [
        [f"peak {dtype}", formats.flops(rate)] for dtype, rate in cluster.peak_flops_per_s.items()
    ]
    for dtype, rates in cluster.gemm_flops_per_s.items():
        rows += [
            [f"matrix product of {size / 1e9:.2g} GFLOP, {dtype}", formats.flops(rate)]
            for size, rate in zip(cluster.gemm_flops, rates, strict=True)
        ]
    rows.append(["memory bandwidth", f"{cluster.memory_bytes_per_s / 1e9:.2f} GB/s"])
    for name, link in report["links"].items():
        alpha, rate = formats.step_time(link["alpha_s"]), link["bytes_per_s"] / 1e9
        rows.append([name.replace("_", " "), f"{alpha} + {rate:.2f} GB/s"])
    for name in ("forward", "backward"):
        rows += [[f"host {name} of a layer", formats.step_time(report[f"host_{name}_s"])]]
    return rows


calibrate_command = calibrate
