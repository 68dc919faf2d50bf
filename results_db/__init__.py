"""The results database: studies, trials and what was measured, in SQL that people can live in.

`results_db.open("tuner_runs/results.db")` gives a `Store`; a URL opens a team's PostgreSQL.
"""

from pathlib import Path

from results_db.store import Store

__all__ = ["Store", "open"]


def open(  # noqa: A001 - read as `results_db.open`
    url_or_path: str | Path, create: bool = True, read_only: bool = False
) -> Store:
    """Open the results database at a path (SQLite) or URL; see `Store.open` for what it raises."""
    return Store.open(url_or_path, create=create, read_only=read_only)
