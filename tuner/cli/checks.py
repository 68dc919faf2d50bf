"""`tuner doctor` looks at the machine, `tuner smoke` runs the whole chain once."""

from dataclasses import asdict
from typing import Literal

import click

from tuner.cli import formats
from tuner.cli.inputs import launcher_option, searcher_option
from tuner.cli.options import json_option, verbosity_options
from tuner.cli.output import print_json, say
from tuner.cli.progress import make_display
from tuner.errors import EnvironmentProblem


@click.command(
    epilog="\b\nExamples:\n  tuner doctor\n  tuner doctor --json\n"
    "  tuner doctor --address 10.0.0.1:6379 --nodes 4 --device-kind cuda\n"
    "  tuner doctor --devices 2"
)
@click.option("--address", metavar="HOST:PORT", help="Look at the Ray cluster there, too.")
@click.option("--devices", type=click.IntRange(min=1), metavar="N",
              help="Look at a local Ray cluster of so many devices, too.")  # fmt: skip
@click.option("--nodes", type=click.IntRange(min=1), metavar="N",
              help="Nodes that must join the cluster within two minutes.")  # fmt: skip
@click.option("--device-kind", type=click.Choice(["cpu", "cuda", "rocm"]), default="cpu",
              show_default=True, help="Devices of the cluster.")  # fmt: skip
@json_option
@verbosity_options
@click.pass_context
def doctor(
    ctx: click.Context,
    address: str | None,
    devices: int | None,
    nodes: int | None,
    device_kind: Literal["cpu", "cuda", "rocm"],
    as_json: bool,
) -> None:
    """Check this machine before the first trial, and the cluster if one is given.

    Of a cluster: an agent answers on every node, versions are equal, devices are seen, collectives
    work across nodes, and no node is much slower than the others.
    """
    from tuner.doctor import run_checks, run_cluster_checks

    if address and devices:
        raise click.UsageError("--devices is for a local cluster, --address for a running one")
    if nodes and not address:
        raise click.UsageError("--nodes needs the --address of their cluster")
    checks = run_checks()
    if address or devices:
        checks += run_cluster_checks(
            address=address, num_devices=devices, num_nodes=nodes, device_kind=device_kind
        )
    if as_json:
        print_json([asdict(check) for check in checks])
    else:
        for check in checks:
            mark = "ok  " if check.is_ok else "FAIL" if check.is_required else "warn"
            click.echo(f"{mark}  {check.name}: {check.message}")
            if not check.is_ok and check.hint:
                click.echo(f"      hint: {check.hint}")
    if any(check.is_required and not check.is_ok for check in checks):
        ctx.exit(EnvironmentProblem.exit_code)


@click.command(
    epilog="\b\nExamples:\n  tuner smoke\n  tuner smoke --launcher local --json\n"
    "  tuner smoke --store head.db --repeats 3 && tuner compare main.db head.db\n\n"
    "Exits with 0 only if every link worked: propose, run 2 ranks, measure, store, rank."
)
@launcher_option
@searcher_option
@click.option("--store", metavar="URL", help="Keep the study in this database, for tuner compare.")
@click.option("--name", default="smoke", show_default=True, help="Name of the study.")
@click.option(
    "--repeats",
    type=click.IntRange(min=0),
    default=0,
    show_default=True,
    help="Further measurements of the two leaders, at most; they narrow the interval.",
)
@json_option
@verbosity_options
def smoke(
    launcher: str | None,
    searcher: str | None,
    store: str | None,
    name: str,
    repeats: int,
    as_json: bool,
) -> None:
    """Run a tiny search end to end, in under a minute."""
    from tuner.smoke import SmokeOptions, run_smoke

    options = SmokeOptions(
        launcher=launcher or "ray",
        searcher=searcher or "cbo",
        store=store,
        name=name,
        repeats=repeats,
    )
    with make_display("smoke search: a tiny model on 2 ranks") as display:
        report = run_smoke(display, options)
    if as_json:
        print_json(
            {
                "is_ok": True,
                "links_s": dict(report.links),
                "total_s": report.total_s,
                "best": report.best,
                "tokens_per_s": report.tokens_per_s,
            }
        )
        return
    for link, seconds in report.links:
        click.echo(f"ok  {link}: {formats.step_time(seconds)}")
    say(f"every link works; {formats.step_time(report.total_s)} in all")
