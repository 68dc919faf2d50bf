"""Options that several commands share."""

from collections.abc import Callable
from typing import Any, TypeVar

import click
from click.shell_completion import CompletionItem

from tuner.log import configure_logging

Command = TypeVar("Command", bound=Callable[..., Any])
_VERBOSITY = "tuner.verbosity"


def _change_verbosity(ctx: click.Context, parameter: click.Parameter, value: int) -> None:
    """Add to what was said before, so that `tuner -v run` and `tuner run -v` mean the same."""
    sign = -1 if parameter.name == "quiet" else 1
    ctx.meta[_VERBOSITY] = verbosity() + sign * int(value)
    configure_logging(ctx.meta[_VERBOSITY])


def verbosity() -> int:
    """-1 and less: quiet, 0: usual, 1 and more: verbose."""
    ctx = click.get_current_context(silent=True)
    return 0 if ctx is None else int(ctx.meta.get(_VERBOSITY, 0))


def verbosity_options(command: Command) -> Command:
    """`-v` and `-q`, before or after the command's name."""
    verbose = click.option(
        "-v",
        "--verbose",
        count=True,
        is_eager=True,
        expose_value=False,
        callback=_change_verbosity,
        help="Say more; twice for every detail. Also shows tracebacks.",
    )
    quiet = click.option(
        "-q",
        "--quiet",
        count=True,
        is_eager=True,
        expose_value=False,
        callback=_change_verbosity,
        help="Results and errors only.",
    )
    return verbose(quiet(command))


def complete_study(
    ctx: click.Context, parameter: click.Parameter, incomplete: str
) -> list[CompletionItem]:
    """Names of stored studies, newest first, and study files."""
    from tuner.cli.stores import study_names

    try:
        names = study_names(ctx.params.get("store"))
    except Exception:  # a shell that completes shows no errors
        names = []
    found = [CompletionItem(name) for name in names if name.startswith(incomplete)]
    return [*found, CompletionItem(incomplete, type="file")]


stored_study_argument = click.argument("study", required=False, shell_complete=complete_study)
study_option = click.option(
    "--study",
    metavar="NAME",
    shell_complete=complete_study,
    help="The study; left out: the newest one.",
)
store_option = click.option(
    "--store",
    metavar="URL",
    help="Results database: a SQLAlchemy URL or the path of a SQLite file.",
)
json_option = click.option("--json", "as_json", is_flag=True, help="Print JSON for machines.")
csv_option = click.option("--csv", "as_csv", is_flag=True, help="Print CSV for spreadsheets.")
