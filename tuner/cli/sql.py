"""`tuner sql`: any question to the results database, read-only."""

import csv
import sys
from collections.abc import Sequence
from typing import Any

import click

from tuner.cli.options import csv_option, json_option, verbosity_options
from tuner.cli.output import print_json, print_table
from tuner.errors import EnvironmentProblem, UsageError

database_option = click.option(
    "--store",
    "-d",
    metavar="URL",
    envvar="TUNER_STORE",
    help="Results database: a SQLAlchemy URL or the path of a SQLite file.",
)


def store_url(store: str | None) -> str:
    """The database that is meant: the option, `TUNER_STORE`, or the default file."""
    from tuner.config import default_store_url

    return store or default_store_url()


@click.command(
    name="sql",
    epilog="""\b
Views to ask: leaderboard best_configs trial_summary failures pareto knob_effects
  predicted_vs_measured why_not history_of_best stage_summary study_summary config_knobs
\b
Examples:
  tuner sql "SELECT study, config, tokens_per_s FROM best_configs"
  tuner sql --csv "SELECT * FROM trial_summary" > trials.csv
  tuner sql --json - < question.sql""",
)
@click.argument("text", metavar="SELECT")
@database_option
@json_option
@csv_option
@click.option("--markdown", "as_markdown", is_flag=True, help="Print a Markdown table.")
@click.option("--parquet", type=click.Path(dir_okay=False), help="Write a Parquet file.")
@click.option(
    "--timeout", "timeout_s", type=click.FloatRange(min=0.001), default=300.0, show_default=True,
    help="Seconds after which the query is given up.",
)  # fmt: skip
@verbosity_options
def sql_command(
    text: str,
    store: str | None,
    as_json: bool,
    as_csv: bool,
    as_markdown: bool,
    parquet: str | None,
    timeout_s: float,
) -> None:
    """Ask the results database in SQL, read-only.

    SELECT is one statement, or - to read it from standard input. The database itself refuses to
    write. All tables and views are in docs/database/schema.md.
    """
    from results_db.queries import QueryLimits, read_only_sql

    if as_json + as_csv + as_markdown + (parquet is not None) > 1:
        raise UsageError("--json, --csv, --markdown and --parquet exclude each other")
    if text == "-":
        text = sys.stdin.read()
    limits = QueryLimits(max_rows=None, timeout_s=timeout_s)
    columns, rows = read_only_sql(store_url(store), text, limits)
    if as_json:
        print_json([dict(zip(columns, row, strict=True)) for row in rows])
    elif as_csv:
        _print_csv(columns, rows)
    elif as_markdown:
        _print_markdown(columns, rows)
    elif parquet is not None:
        _write_parquet(columns, rows, parquet)
    else:
        _print_table(columns, rows)


def _print_csv(columns: Sequence[str], rows: Sequence[Sequence[Any]]) -> None:
    writer = csv.writer(sys.stdout, lineterminator="\n")
    writer.writerow(columns)
    writer.writerows(["" if value is None else value for value in row] for row in rows)


def _print_markdown(columns: Sequence[str], rows: Sequence[Sequence[Any]]) -> None:
    click.echo("| " + " | ".join(columns) + " |")
    click.echo("|" + " --- |" * len(columns))
    for row in rows:
        cells = (_cell(value).replace("|", "\\|").replace("\n", " ") for value in row)
        click.echo("| " + " | ".join(cells) + " |")


def _print_table(columns: Sequence[str], rows: Sequence[Sequence[Any]]) -> None:
    numeric = [
        place
        for place in range(len(columns))
        if all(isinstance(row[place], int | float | None) for row in rows)
    ]
    print_table(columns, ([_cell(value) for value in row] for row in rows), right=numeric)


def _cell(value: Any) -> str:
    if value is None:
        return ""
    if isinstance(value, float):
        return f"{value:.6g}" if abs(value) < 1e6 else f"{value:.0f}"
    return str(value)


def _write_parquet(columns: Sequence[str], rows: Sequence[Sequence[Any]], target: str) -> None:
    if len(set(columns)) != len(columns):
        raise UsageError("Parquet needs columns of different names", "name them with AS")
    try:
        import pandas as pd

        frame = pd.DataFrame([list(row) for row in rows], columns=list(columns))
        frame.to_parquet(target, index=False)
    except ImportError as error:
        raise EnvironmentProblem(
            "Parquet needs the package pyarrow", 'pip install "parallel-tuner[parquet]"'
        ) from error
    except OSError as error:
        raise UsageError(f"{target} cannot be written: {error.strerror}") from error
