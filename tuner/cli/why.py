"""`tuner why`: whether a configuration is legal, which rules it breaks, what is legal near it."""

import click

from tuner.cli.inputs import (
    devices_option,
    model_option,
    search_space,
    set_option,
    study_argument,
    study_config,
)
from tuner.cli.knobs import parse_config
from tuner.cli.options import json_option, verbosity_options
from tuner.cli.output import print_json
from tuner.errors import NothingFeasibleError

_NUM_NEAREST = 3


@click.command(
    epilog='\b\nExamples:\n  tuner why "tp=3,pp=2" --model gpt2-124m --devices 6\n'
    '  tuner why "tp2 pp1 dp2 mbs4 zero1" study.toml\n\n'
    "Exits with 0 for a legal configuration and with 3 for an illegal one."
)
@click.argument("knobs")
@study_argument
@model_option
@devices_option
@set_option
@json_option
@verbosity_options
@click.pass_context
def why(
    ctx: click.Context,
    knobs: str,
    study: str | None,
    model: str | None,
    devices: int | None,
    overrides: tuple[str, ...],
    as_json: bool,
) -> None:
    """Say whether a configuration is legal, and if not, why."""
    space, config = search_space(study_config(study, overrides, model=model, devices=devices))
    point = parse_config(knobs, config.training.dtype)
    violations = space.explain(point)
    near = [] if not violations else space.nearest(point, _NUM_NEAREST)
    if as_json:
        rules = [
            {"rule": item.rule, "message": item.message, "legal_values": dict(item.legal_values)}
            for item in violations
        ]
        nearest = [item.canonical() for item in near]
        print_json({"is_legal": not violations, "violations": rules, "nearest": nearest})
    elif not violations:
        click.echo(f"{point.short()} is legal")
    else:
        click.echo(f"{point.short()} cannot run:")
        for item in violations:
            click.echo(f"  {item.rule}: {item.message}")
        if near:
            click.echo("nearest legal configurations:")
            for point in near:
                click.echo(f"  {point.short()}")
    if violations:
        ctx.exit(NothingFeasibleError.exit_code)
