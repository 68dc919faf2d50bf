"""A finished trial and all that it leaves in one statement, on PostgreSQL.

A trial that is stored by itself costs as many trips to the server as it takes statements. One
statement takes the number from the study, which locks the study's row as every write does first,
and puts the new trial's id into the rows of the other tables.
"""

from collections.abc import Sequence
from functools import lru_cache
from typing import Any

from sqlalchemy import Connection, Dialect, Table

from results_db.bulk import COPY_FROM, Rows, as_columns, for_driver
from results_db.schema import trials

_Shape = tuple[Table, tuple[str, ...], bool]
"""A table, its columns after the trial's id, and whether it gets one row."""


def add(
    connection: Connection,
    study_id: int,
    names: tuple[str, ...],
    values: tuple[Any, ...],
    groups: Sequence[Rows],
) -> tuple[int, int] | None:
    """Store a trial with its number, and the rows of `groups`, whose first column is its id.

    Args:
        connection: in a write transaction, to PostgreSQL.
        study_id: whose number is taken.
        names: columns of `trials` but for study, number and id.
        values: theirs.
        groups: few rows of each table, parents before children; their first value is replaced.

    Returns:
        The trial's id and number; none when there is no such study.
    """
    shapes: list[_Shape] = []
    (trial,) = for_driver(connection, trials, names, [values])
    arguments: list[Any] = [study_id, *trial]
    for table, columns, rows in groups:
        given = for_driver(connection, table, columns[1:], (row[1:] for row in rows))
        if given:
            shapes.append((table, columns[1:], len(given) == 1))
            arguments += given[0] if len(given) == 1 else as_columns(given)
    statement = _statement(names, tuple(shapes), connection.dialect)
    found = connection.exec_driver_sql(statement, tuple(arguments)).one_or_none()
    return None if found is None else (int(found[0]), int(found[1]))


def is_small(groups: Sequence[Rows]) -> bool:
    """Whether no table gets so many rows that a copy of its own is faster."""
    return all(len(list(rows)) < COPY_FROM for _, _, rows in groups)


@lru_cache(maxsize=64)
def _statement(names: tuple[str, ...], shapes: tuple[_Shape, ...], dialect: Dialect) -> str:
    quote = dialect.identifier_preparer.quote
    parts = [
        "numbered AS (UPDATE studies SET num_trials = num_trials + 1 WHERE id = %s"
        " RETURNING id, num_trials)",
        f"added AS (INSERT INTO trials (study_id, number, {', '.join(map(quote, names))})"  # noqa: S608
        f" SELECT id, num_trials, {_places(trials, names, dialect)} FROM numbered"
        " RETURNING id, number)",
    ]
    for place, (table, columns, is_one) in enumerate(shapes):
        head = f"INSERT INTO {quote(table.name)} (trial_id, {', '.join(map(quote, columns))})"
        places = _places(table, columns, dialect, "" if is_one else "[]")
        rows = places if is_one else "given.*"
        source = "added" if is_one else f"added, unnest({places}) AS given"
        parts.append(f"part{place} AS ({head} SELECT added.id, {rows} FROM {source})")  # noqa: S608
    return f"WITH {', '.join(parts)} SELECT id, number FROM added"  # noqa: S608


def _places(table: Table, names: Sequence[str], dialect: Dialect, suffix: str = "") -> str:
    kinds = (table.c[name].type.compile(dialect) for name in names)
    return ", ".join(f"CAST(%s AS {kind}{suffix})" for kind in kinds)
