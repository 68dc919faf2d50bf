"""`tuner studies`: what a database holds."""

from typing import TYPE_CHECKING, Any

import click

from tuner.cli import formats
from tuner.cli.options import json_option, store_option, verbosity_options
from tuner.cli.output import print_json, print_table, say
from tuner.cli.stores import store_and_name

if TYPE_CHECKING:
    from results_db.records import StudyRecord
    from results_db.store import Store


@click.command(epilog="\b\nExamples:\n  tuner studies\n  tuner studies --store results.db --json")
@store_option
@json_option
@verbosity_options
def studies(store: str | None, as_json: bool) -> None:
    """List the studies of a database."""
    from tuner.study import open_store

    url, _ = store_and_name(None, store)
    with open_store(url, read_only=True) as opened:
        rows = [_facts(opened, record) for record in opened.list_studies()]
    if as_json:
        print_json(rows)
        return
    if not rows:
        say("the database holds no study yet; `tuner run` starts one")
        return
    headers = (
        "study",
        "status",
        "started",
        "model",
        "devices",
        "trials",
        "best tokens/s",
        "config",
    )
    print_table(headers, map(_cells, rows), right=(4, 5, 6))


def _facts(store: "Store", record: "StudyRecord") -> dict[str, Any]:
    from results_db.queries import best

    fastest = best(store, record.name)
    cluster = record.cluster
    return {
        "name": record.name,
        "status": record.status,
        "created_at": record.created_at,
        "finished_at": record.finished_at,
        "model": record.model.get("name"),
        "devices": cluster.get("num_nodes", 1) * cluster.get("devices_per_node", 1),
        "searcher": record.searcher,
        "launcher": record.launcher,
        "num_trials": len(store.trials(record.id or 0)),
        "num_legal_points": record.num_legal_points,
        "best_tokens_per_s": fastest.tokens_per_s if fastest else None,
        "best": fastest.label if fastest else None,
        "config_hash": record.config_hash,
    }


def _cells(row: dict[str, Any]) -> tuple[str, ...]:
    return (
        row["name"],
        str(row["status"]),
        formats.moment(row["created_at"]),
        str(row["model"]),
        str(row["devices"]),
        str(row["num_trials"]),
        formats.throughput(row["best_tokens_per_s"]),
        row["best"] or formats.UNKNOWN,
    )
