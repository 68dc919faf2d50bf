"""Questions to the database: the leaderboard, and a user's own SQL, for reading only."""

import sqlite3
import time
from bisect import bisect_right
from collections.abc import Iterable, Mapping
from contextlib import closing
from dataclasses import dataclass
from itertools import chain
from pathlib import Path
from typing import Any

from sqlalchemy import Connection, Select, select
from sqlalchemy.exc import SQLAlchemyError

from results_db import knobs, study_rows
from results_db.engine import Database, parse_url
from results_db.errors import InvalidQuery
from results_db.schema import parallel_configs, studies, study_configs
from results_db.store import Store
from results_db.translation import translate


@dataclass(frozen=True, kw_only=True)
class LeaderboardRow:
    """A configuration of a study with its median over all completed trials of it.

    `position` is 1 + the number of configurations whose interval lies wholly above this one's, so
    configurations that the measurements cannot tell apart share a position.
    """

    position: int
    study: str
    trial_number: int
    """The first completed trial of the configuration."""
    config_key: str
    label: str
    knobs: Mapping[str, Any]
    num_trials: int
    tokens_per_s: float
    tokens_per_s_low: float
    tokens_per_s_high: float
    step_time_s: float
    peak_memory_bytes: int
    mfu: float | None


def leaderboard(store: Store, study: int | str, limit: int | None = None) -> list[LeaderboardRow]:
    """Configurations of a study by position, then by speed; all, or the `limit` fastest.

    Raises:
        NotFound: there is no such study.
    """
    with store.database.read() as connection:
        study_id = study_rows.find_id(connection, study)
        rows = connection.execute(_ranked(study_id, limit)).mappings().all()
        if not rows:
            return []
        lows = _lows_above(connection, study_id, min(row["tokens_per_s_high"] for row in rows))
    board = [_leaderboard_row(row, lows) for row in rows]
    # a noisy configuration may tie with faster ones than the steady ones above it do
    return sorted(board, key=lambda row: (row.position, -row.tokens_per_s))


def best(store: Store, study: int | str) -> LeaderboardRow | None:
    """The first row of the leaderboard, or none while no trial is completed."""
    rows = leaderboard(store, study, limit=1)
    return rows[0] if rows else None


def _ranked(study_id: int, limit: int | None) -> Select[Any]:
    return (
        select(
            study_configs,
            parallel_configs,
            studies.c.name.label("study"),
            study_configs.c.first_trial.label("trial_number"),
        )
        .join(parallel_configs, parallel_configs.c.id == study_configs.c.config_id)
        .join(studies, studies.c.id == study_configs.c.study_id)
        .where(study_configs.c.study_id == study_id)
        .order_by(study_configs.c.tokens_per_s.desc(), study_configs.c.config_id)
        .limit(limit)
    )


def _lows_above(connection: Connection, study_id: int, bound: float) -> list[float]:
    """Lower ends of intervals above `bound`, ascending."""
    low = study_configs.c.tokens_per_s_low
    query = select(low).where(study_configs.c.study_id == study_id, low > bound).order_by(low)
    return list(connection.execute(query).scalars())


def _leaderboard_row(row: Mapping[Any, Any], lows: list[float]) -> LeaderboardRow:
    copied = {
        name: row[name]
        for name in LeaderboardRow.__dataclass_fields__
        if name not in ("position", "knobs", "num_trials")
    }
    return LeaderboardRow(
        position=1 + len(lows) - bisect_right(lows, row["tokens_per_s_high"]),
        knobs=knobs.from_columns(row),
        num_trials=row["num_completed"],
        **copied,
    )


@dataclass(frozen=True)
class QueryLimits:
    """What a user's query may use: rows of its answer, and seconds."""

    max_rows: int | None = 1_000_000
    timeout_s: float = 300.0
    max_bytes: int | None = None
    """Of all texts of the answer together."""
    cuts: bool = False
    """Whether rows over `max_rows` are left out (all but one, as a sign) instead of refused."""


def read_only_sql(
    url_or_path: str | Path, text: str, limits: QueryLimits | None = None
) -> tuple[list[str], list[tuple[Any, ...]]]:
    """Run one SQL statement that cannot write; returns its columns and rows.

    The database itself refuses writes: SQLite by opening the file read-only, `query_only` and an
    authorizer; PostgreSQL by a read-only transaction that cannot be left, because the statement is
    prepared, and only a single one can be.

    Raises:
        InvalidQuery: the statement is wrong, would write, or is over its limits.
        NotFound: there is no such database.
    """
    limits = limits or QueryLimits()
    database = Database(parse_url(url_or_path), create=False, read_only=True)
    try:
        with database.read() as connection:
            raw = connection.connection.driver_connection
            if database.is_sqlite:
                return _sqlite_query(raw, text, limits)
            return _postgresql_query(raw, text, limits)
    except SQLAlchemyError as error:
        raise translate(error, database.shown) from error
    finally:
        database.close()


_ALLOWED = frozenset(
    {sqlite3.SQLITE_SELECT, sqlite3.SQLITE_READ, sqlite3.SQLITE_FUNCTION, sqlite3.SQLITE_RECURSIVE}
)
_PRAGMAS = frozenset({"table_info", "table_xinfo", "table_list", "index_list", "index_info",
                      "foreign_key_list", "user_version", "compile_options"})  # fmt: skip


def _authorize(
    action: int, first: str | None, second: str | None, _database: str | None, _by: str | None
) -> int:
    """Let statements read, and nothing else: no ATTACH, no PRAGMA that changes the session."""
    if action == sqlite3.SQLITE_FUNCTION:
        return sqlite3.SQLITE_DENY if second == "load_extension" else sqlite3.SQLITE_OK
    if action == sqlite3.SQLITE_PRAGMA:
        return sqlite3.SQLITE_OK if first in _PRAGMAS else sqlite3.SQLITE_DENY
    return sqlite3.SQLITE_OK if action in _ALLOWED else sqlite3.SQLITE_DENY


def _sqlite_query(
    raw: Any, text: str, limits: QueryLimits
) -> tuple[list[str], list[tuple[Any, ...]]]:
    stop_at = time.monotonic() + limits.timeout_s
    raw.set_authorizer(_authorize)
    raw.set_progress_handler(lambda: time.monotonic() > stop_at, 100_000)
    try:
        if limits.max_bytes is not None:
            raw.setlimit(sqlite3.SQLITE_LIMIT_LENGTH, limits.max_bytes)
        cursor = raw.execute(text)
        return _fetch(cursor, cursor, limits)
    except (sqlite3.Error, sqlite3.Warning, ValueError) as error:
        if time.monotonic() > stop_at:
            raise InvalidQuery(f"The query took longer than {limits.timeout_s:g} s") from error
        raise _refusal(str(error)) from error
    finally:
        raw.set_progress_handler(None, 0)
        raw.set_authorizer(None)


def _postgresql_query(
    raw: Any, text: str, limits: QueryLimits
) -> tuple[list[str], list[tuple[Any, ...]]]:
    import psycopg

    try:
        with raw.cursor() as cursor:
            cursor.execute("SET TRANSACTION READ ONLY")
            cursor.execute(
                "SELECT set_config('statement_timeout', %s, true)",
                [str(int(limits.timeout_s * 1000))],
            )
            # this SELECT took the snapshot: from here on the transaction cannot be made writable
            if limits.max_bytes is None:
                cursor.execute(text, prepare=True)
                return _fetch(cursor, cursor, limits)
            # row by row, so that the whole answer never is in memory; one statement here too
            with closing(cursor.stream(text)) as rows:
                first = next(rows, None)
                if first is not None:
                    return _fetch(cursor, chain([first], rows), limits)
            # an empty stream has no columns; the same snapshot gives no row again
            cursor.execute(text, prepare=True)
            return _fetch(cursor, cursor, limits)
    except psycopg.Error as error:
        raise _refusal(str(error).splitlines()[0]) from error
    finally:
        # functions with side effects exist that a read-only transaction allows; undo those too
        raw.rollback()


def _fetch(
    cursor: Any, rows: Iterable[tuple[Any, ...]], limits: QueryLimits
) -> tuple[list[str], list[tuple[Any, ...]]]:
    """Columns and rows within the limits; `rows` may begin the query only when it is read."""
    kept: list[tuple[Any, ...]] = []
    num_bytes = 0
    if cursor.description is None and rows is cursor:
        raise _no_rows()
    for row in rows:
        kept.append(row)
        if limits.max_bytes is not None:
            num_bytes += sum(len(value) for value in row if isinstance(value, str | bytes))
            if num_bytes > limits.max_bytes:
                raise InvalidQuery(
                    f"The answer is larger than {limits.max_bytes / 2**20:.0f} MiB", "add a LIMIT"
                )
        if limits.max_rows is not None and len(kept) > limits.max_rows:
            if limits.cuts:
                break
            raise InvalidQuery(f"The answer has more than {limits.max_rows} rows", "add a LIMIT")
    if cursor.description is None:
        raise _no_rows()
    return [item[0] for item in cursor.description], kept


def _no_rows() -> InvalidQuery:
    return InvalidQuery("The statement gives no rows", "write a SELECT")


def _refusal(reason: str) -> InvalidQuery:
    is_write = any(word in reason for word in ("not authorized", "read-only", "readonly"))
    if is_write:
        return InvalidQuery(f"The query may only read: {reason}", "write one SELECT")
    return InvalidQuery(f"The database refused the query: {reason}", "see docs/database/schema.md")
