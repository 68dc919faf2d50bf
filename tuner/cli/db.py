"""`tuner db`: care for the results database. `tuner sql` is re-exported for the command table."""

from pathlib import Path
from typing import TYPE_CHECKING

import click

from tuner.cli.formats import memory
from tuner.cli.options import json_option, verbosity_options
from tuner.cli.output import print_json, print_table, say
from tuner.cli.sql import database_option, sql_command, store_url
from tuner.errors import StorageProblem, UsageError

if TYPE_CHECKING:
    from results_db.maintenance import DatabaseInfo
    from results_db.store import Store

__all__ = ["db", "db_group", "sql", "sql_command"]


@click.group(name="db")
def db_group() -> None:
    """Look after the results database."""


def _open(store: str | None, *, read_only: bool = True, create: bool = False) -> "Store":
    import results_db

    return results_db.open(store_url(store), create=create, read_only=read_only)


@db_group.command()
@database_option
@click.option("--no-backup", is_flag=True, help="Do not copy an SQLite file before changing it.")
@verbosity_options
def upgrade(store: str | None, no_backup: bool) -> None:
    """Bring a database to the schema of this program, all of it or nothing."""
    from results_db.engine import parse_url
    from results_db.schema import SCHEMA_VERSION
    from results_db.upgrades import upgrade as run

    url = parse_url(store_url(store))
    backup = None
    if not no_backup and url.get_backend_name() == "sqlite":
        backup = Path(f"{url.database}.before-{SCHEMA_VERSION}")
    before, after = run(store_url(store), backup)
    if before == after:
        say(f"The schema is {after} already.")
        return
    say(f"Upgraded the schema from {before} to {after}.")
    if backup is not None:
        say(f"The database as it was: {backup}")


@db_group.command()
@database_option
@json_option
@verbosity_options
def info(store: str | None, as_json: bool) -> None:
    """Size, schema version and rows of a database."""
    from dataclasses import asdict

    from results_db.maintenance import info as read

    with _open(store) as opened:
        facts = read(opened)
    if as_json:
        print_json(asdict(facts))
    else:
        _print_info(facts)


def _print_info(facts: "DatabaseInfo") -> None:
    rows = [
        ("database", f"{facts.url} ({facts.kind})"),
        ("schema", facts.schema_version),
        ("size", memory(facts.size_bytes)),
    ]
    if facts.network_filesystem:
        rows.append(("danger", f"on a network file system ({facts.network_filesystem}): locks "
                     "are unreliable there, two writers can damage it"))  # fmt: skip
    rows += [(name, str(facts.num_rows[name])) for name in ("studies", "trials", "steps", "ranks")]
    rows += [(f"trials {name}", str(count)) for name, count in facts.trials_by_status.items()]
    print_table(("", ""), rows)


@db_group.command()
@click.argument("folder", type=click.Path(file_okay=False, path_type=Path))
@click.option("--format", "file_format", type=click.Choice(["parquet", "csv"]), default="parquet")
@click.option("--only", multiple=True, metavar="NAME", help="A table or view; may be repeated.")
@database_option
@verbosity_options
def export(folder: Path, file_format: str, only: tuple[str, ...], store: str | None) -> None:
    """Write tables and views as Parquet or CSV files, for DuckDB and pandas."""
    from results_db.exports import export as run

    with _open(store) as opened:
        written = run(opened, folder, file_format, only)
    for path in written:
        click.echo(path)


@db_group.command(
    name="import",
    epilog="\b\nExamples:\n"
    "  tuner import optuna sqlite:///optuna.db --study earlier\n"
    "  tuner import deepspeed ./autotuning_results --study ds --num-layers 24",
)
@click.argument("tool", metavar="TOOL")
@click.argument("source")
@click.option("--study", required=True, help="Name of the study to make.")
@click.option("--model", "model_name", default="imported", help="Name of the model.")
@click.option("--num-parameters", type=int, help="For operation counts.")
@click.option("--num-layers", type=int, help="For virtual stages.")
@click.option("--sequence-length", type=int, help="Tokens a sequence.")
@click.option("--global-batch-size", type=int, help="Sequences a step.")
@click.option("--metric", help="Column that holds the result, when not the usual one.")
@click.option("--unit", help="Its unit: tokens_per_s, tokens_per_s_per_device, samples_per_s, "
              "step_time_s or step_time_ms.")  # fmt: skip
@click.option("--devices-per-node", type=click.IntRange(min=1), default=8, show_default=True)
@click.option("--device-name", default="unknown")
@click.option("--foreign-study", help="Study of an Optuna storage that holds several.")
@database_option
@verbosity_options
def import_command(
    tool: str,
    source: str,
    study: str,
    model_name: str,
    num_parameters: int | None,
    num_layers: int | None,
    sequence_length: int | None,
    global_batch_size: int | None,
    metric: str | None,
    unit: str | None,
    devices_per_node: int,
    device_name: str,
    foreign_study: str | None,
    store: str | None,
) -> None:
    """Take over another tool's results as a new study.

    TOOL is paddle, flagscale (their history.csv), deepspeed (its folder autotuning_results),
    nanotron (its benchmark CSV) or optuna (the URL of a storage).
    """
    from results_db.importers import IMPORTERS, UNITS, Recipe, import_results

    if tool not in IMPORTERS:
        raise UsageError(f"There is no importer {tool!r}", f"there are {', '.join(IMPORTERS)}")
    if unit is not None and unit not in UNITS:
        raise UsageError(f"There is no unit {unit!r}", f"the units are {', '.join(UNITS)}")
    recipe = Recipe(
        model_name=model_name,
        num_parameters=num_parameters,
        num_layers=num_layers,
        sequence_length=sequence_length,
        global_batch_size=global_batch_size,
        metric=metric,
        unit=unit,
        devices_per_node=devices_per_node,
        device_name=device_name,
    )
    with _open(store, read_only=False, create=True) as opened:
        report = import_results(opened, tool, source, study, recipe, foreign_study)
    for reason in report.skipped:
        say(f"left out: {reason}")
    click.echo(f"{report.num_trials} trials, {report.num_completed} with a result, in {study}")


@db_group.command()
@click.argument("source")
@database_option
@verbosity_options
def merge(source: str, store: str | None) -> None:
    """Bring everything of the database SOURCE into this one; twice does no harm."""
    import results_db
    from results_db.merging import merge as run

    with (
        results_db.open(source, create=False, read_only=True) as reading,
        _open(store, read_only=False, create=True) as opened,
    ):
        report = run(reading, opened)
    click.echo(
        f"{report.num_studies_added} studies and {report.num_trials_added} trials added, "
        f"{report.num_trials_completed} trials completed, {report.num_trials_known} known already"
    )


@db_group.command()
@click.option("--study", help="Delete this study and all its trials.")
@click.option("--details-older-than", "days", type=click.FloatRange(min=0), metavar="DAYS",
              help="Delete steps, timelines and the like of trials that ended before.")  # fmt: skip
@click.option("--keep-best", type=click.IntRange(min=0), default=10, show_default=True,
              help="Configurations of each study that keep their details.")  # fmt: skip
@click.option("--yes", is_flag=True, help="Really delete; without it only counts.")
@database_option
@verbosity_options
def prune(
    study: str | None, days: float | None, keep_best: int, yes: bool, store: str | None
) -> None:
    """Delete a study, or the details of old trials; leaderboards stay as they are."""
    from datetime import UTC, datetime, timedelta

    from results_db import maintenance

    if (study is None) == (days is None):
        raise UsageError("Say what to delete", "either --study or --details-older-than")
    with _open(store, read_only=False) as opened:
        if study is not None:
            report = maintenance.prune_study(opened, study, dry_run=not yes)
        else:
            before = datetime.now(UTC) - timedelta(days=days or 0)
            report = maintenance.prune_details(opened, before, keep_best, dry_run=not yes)
        if yes:
            maintenance.compact(opened)
    done = "Deleted" if yes else "Would delete"
    what = f"{report.num_studies} studies with {report.num_trials} trials"
    if study is None:
        what = f"{report.num_detail_rows} rows of {report.num_trials} trials"
    click.echo(f"{done} {what}.")
    if not yes:
        say("Nothing was changed; add --yes to delete.")


@db_group.command()
@click.argument("target", type=click.Path(path_type=Path))
@database_option
@verbosity_options
def backup(target: Path, store: str | None) -> None:
    """Copy the database into the new SQLite file TARGET while it is in use."""
    from results_db.maintenance import backup as run

    with _open(store) as opened:
        run(opened, target)
    click.echo(target)


@db_group.command()
@database_option
@json_option
@verbosity_options
def check(store: str | None, as_json: bool) -> None:
    """Look whether the database obeys all its laws; exit code 5 when it does not."""
    from results_db.checks import check as run

    with _open(store) as opened:
        problems = run(opened)
    if as_json:
        print_json([{"law": item.law, "detail": item.detail} for item in problems])
    else:
        for item in problems:
            click.echo(f"broken: {item.law}: {item.detail}")
    if problems:
        raise StorageProblem(f"{len(problems)} laws are broken", "restore a backup, or report it")
    if not as_json:
        click.echo("The database obeys all its laws.")


db = db_group
sql = sql_command
