"""`tuner rank`: the leaderboard of a stored study."""

from typing import TYPE_CHECKING, Any

import click

from tuner.cli import formats
from tuner.cli.leaderboard import (
    Leaderboard,
    against_baseline,
    footnotes,
    print_leaderboard,
    read_leaderboard,
)
from tuner.cli.options import (
    csv_option,
    json_option,
    store_option,
    stored_study_argument,
    verbosity_options,
)
from tuner.cli.output import print_csv, print_json, print_table, say
from tuner.cli.stores import open_for_reading
from tuner.errors import UsageError

if TYPE_CHECKING:
    from results_db.records import TrialSummary

_CSV_COLUMNS = (
    "position", "study", "trial_number", "label", "num_trials", "tokens_per_s", "tokens_per_s_low",
    "tokens_per_s_high", "step_time_s", "mfu", "peak_memory_bytes", "speedup_vs_median",
    "speedup_vs_baseline", "config_key",
)  # fmt: skip


@click.command(
    epilog="\b\nExamples:\n  tuner rank                  the newest study\n"
    "  tuner rank my-study --all   every configuration, and why the others gave no number\n"
    "  tuner rank --csv > best.csv"
)
@stored_study_argument
@store_option
@click.option(
    "--top", type=click.IntRange(min=1), default=10, show_default=True, help="Rows to show."
)
@click.option("--all", "show_all", is_flag=True, help="Every row, and the trials without a number.")
@json_option
@csv_option
@verbosity_options
def rank(
    study: str | None, store: str | None, top: int, show_all: bool, as_json: bool, as_csv: bool
) -> None:
    """Show the leaderboard of a study."""
    if as_json and as_csv:
        raise UsageError("--json and --csv exclude each other")
    opened, record = open_for_reading(study, store)
    with opened:
        board = read_leaderboard(opened, record)
    shown = None if show_all else top
    if as_json:
        print_json(_document(board, shown, show_all))
    elif as_csv:
        print_csv(_CSV_COLUMNS + _knob_columns(), map(_flat, board.records(shown)))
    else:
        _print_for_people(board, shown, show_all)


def _document(board: Leaderboard, top: int | None, show_all: bool) -> dict[str, Any]:
    document: dict[str, Any] = {
        "study": board.study.name,
        "status": board.study.status,
        "model": board.study.model.get("name"),
        "num_trials": len(board.trials),
        "median_tokens_per_s": board.median_tokens_per_s,
        "baseline_tokens_per_s": board.baseline_tokens_per_s,
        "leaderboard": board.records(top),
    }
    if show_all:
        document["without_a_number"] = [
            {
                "trial_number": row.trial.number,
                "status": row.trial.status,
                "kind": row.failure.kind if row.failure else None,
                "message": row.failure.message if row.failure else None,
                "knobs": dict(row.trial.knobs),
            }
            for row in board.without_a_number
        ]
    return document


def _knob_columns() -> tuple[str, ...]:
    from search_spaces.parallel_config import KNOBS

    return KNOBS


def _flat(row: dict[str, Any]) -> dict[str, Any]:
    return {**row, **row["knobs"]}


def _print_for_people(board: Leaderboard, top: int | None, show_all: bool) -> None:
    say(f"study {board.study.name} ({board.study.status}), {board.study.model.get('name')}")
    if board.rows:
        print_leaderboard(board, top)
        if baseline := against_baseline(board):
            say(f"best: {board.rows[0].label}, {baseline}")
    else:
        say("no trial has given a number yet")
    for note in footnotes(board, top):
        if not (show_all and "--all" in note):
            say(note)
    lost = board.without_a_number
    if show_all and lost:
        click.echo("\nTrials without a number")
        print_table(("trial", "status", "configuration", "why"), map(_lost_cells, lost), right=(0,))


def _lost_cells(row: "TrialSummary") -> tuple[str, ...]:
    from tuner.outcomes import config_of

    why = "its first steps excluded it" if row.trial.status == "pruned" else formats.UNKNOWN
    if row.failure is not None:
        why = f"{row.failure.kind}: {row.failure.message}"
    status, config = row.trial.status.value, config_of(row.trial).short()
    return str(row.trial.number), status, config, " ".join(why.split())
