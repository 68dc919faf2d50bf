"""`tuner doctor` looks at the machine, `tuner smoke` runs the whole chain once."""

from dataclasses import asdict

import click

from tuner.cli import formats
from tuner.cli.inputs import launcher_option, searcher_option
from tuner.cli.options import json_option, verbosity_options
from tuner.cli.output import print_json, say
from tuner.cli.progress import make_display
from tuner.errors import EnvironmentProblem


@click.command(epilog="\b\nExamples:\n  tuner doctor\n  tuner doctor --json")
@json_option
@verbosity_options
@click.pass_context
def doctor(ctx: click.Context, as_json: bool) -> None:
    """Check this machine before the first trial."""
    from tuner.doctor import run_checks

    checks = run_checks()
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
    epilog="\b\nExamples:\n  tuner smoke\n  tuner smoke --launcher local --json\n\n"
    "Exits with 0 only if every link worked: propose, run 2 ranks, measure, store, rank."
)
@launcher_option
@searcher_option
@json_option
@verbosity_options
def smoke(launcher: str | None, searcher: str | None, as_json: bool) -> None:
    """Run a tiny search end to end, in under a minute."""
    from tuner.smoke import run_smoke

    with make_display("smoke search: a tiny model on 2 ranks") as display:
        report = run_smoke(display, launcher=launcher or "ray", searcher=searcher or "cbo")
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
