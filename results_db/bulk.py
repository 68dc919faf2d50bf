"""Many rows at once, and rows that may be there already, on both databases."""

from collections.abc import Iterable, Mapping, Sequence
from functools import lru_cache
from typing import Any

from sqlalchemy import Connection, Dialect, Insert, Table, insert, select
from sqlalchemy.dialects.postgresql import insert as postgresql_insert
from sqlalchemy.dialects.sqlite import insert as sqlite_insert
from sqlalchemy.sql.dml import ReturningInsert

from results_db import known_ids
from results_db.errors import InvalidRecord

_INSERTS: Mapping[str, Any] = {"sqlite": sqlite_insert, "postgresql": postgresql_insert}
"""What makes an INSERT with ON CONFLICT, by dialect."""
COPY_FROM = 200
"""Rows from which PostgreSQL's COPY is faster than one INSERT of arrays."""


def insert_or_ignore(
    connection: Connection, table: Table, rows: Sequence[Mapping[str, Any]]
) -> None:
    """Insert rows and skip those whose key exists."""
    if rows:
        connection.execute(_ignoring(table, connection.dialect.name), list(rows))


@lru_cache(maxsize=64)
def _ignoring(table: Table, dialect: str) -> Insert:
    statement: Insert = _INSERTS[dialect](table).on_conflict_do_nothing()
    return statement


def insert_or_replace(
    connection: Connection, table: Table, rows: Sequence[Mapping[str, Any]]
) -> None:
    """Insert rows of equal columns; the values of those whose primary key exists are replaced."""
    if not rows:
        return
    names = tuple(rows[0])
    if connection.dialect.name == "sqlite":
        connection.execute(_replacing(table, names), list(rows))
        return
    keys = [column.name for column in table.primary_key.columns]
    # one statement must not meet a key twice; the last one counts
    last = {tuple(row[key] for key in keys): tuple(row.values()) for row in rows}
    values = for_driver(connection, table, names, last.values())
    connection.exec_driver_sql(_upsert_plan(table, names, connection.dialect), as_columns(values))


@lru_cache(maxsize=64)
def _upsert_plan(table: Table, names: tuple[str, ...], dialect: Dialect) -> str:
    quote = dialect.identifier_preparer.quote
    keys = [column.name for column in table.primary_key.columns]
    target = ", ".join(map(quote, keys))
    changed = ", ".join(
        f"{quote(name)} = excluded.{quote(name)}" for name in names if name not in keys
    )
    plan = _arrays_plan(table, names, dialect)
    return f"{plan} ON CONFLICT ({target}) DO UPDATE SET {changed}"


@lru_cache(maxsize=64)
def _replacing(table: Table, names: tuple[str, ...]) -> Insert:
    keys = [column.name for column in table.primary_key.columns]
    statement = sqlite_insert(table)
    changed = {name: statement.excluded[name] for name in names if name not in keys}
    return statement.on_conflict_do_update(index_elements=keys, set_=changed)


def insert_new(
    connection: Connection,
    table: Table,
    rows: Sequence[Mapping[str, Any]],
    returning: tuple[str, ...],
) -> Sequence[Any]:
    """Insert rows of equal columns, but for those whose key exists.

    Returns:
        The columns `returning` of those that were inserted, in any order.
    """
    names = tuple(rows[0])
    dialect = connection.dialect
    if dialect.name == "sqlite":
        return connection.execute(_adding(table, returning), list(rows)).all()
    values = for_driver(connection, table, names, (tuple(row.values()) for row in rows))
    back = ", ".join(dialect.identifier_preparer.quote(name) for name in returning)
    statement = f"{_arrays_plan(table, names, dialect)} ON CONFLICT DO NOTHING RETURNING {back}"
    return connection.exec_driver_sql(statement, as_columns(values)).all()


@lru_cache(maxsize=64)
def _adding(table: Table, returning: tuple[str, ...]) -> ReturningInsert[Any]:
    return sqlite_insert(table).on_conflict_do_nothing().returning(*(table.c[n] for n in returning))


def as_columns(rows: Sequence[tuple[Any, ...]]) -> tuple[list[Any], ...]:
    """Rows turned into one list a column."""
    return tuple(list(column) for column in zip(*rows, strict=True))


def intern(connection: Connection, table: Table, key: str, row: Mapping[str, Any]) -> int:
    """The id of the row with this unique key, inserted when it is new.

    The table is one whose rows are never deleted: their ids are remembered.
    """
    value = str(row[key])
    if (known := known_ids.find(connection, table.name, value)) is not None:
        return known[0]
    find = select(table.c.id).where(table.c[key] == value)
    found = connection.execute(find).scalar_one_or_none()
    if found is None:
        insert_or_ignore(connection, table, [row])
        found = connection.execute(find).scalar_one()
    known_ids.learn(connection, table.name, value, int(found))
    return int(found)


@lru_cache(maxsize=64)
def _plan(table: Table, names: tuple[str, ...], dialect: Dialect) -> str:
    """SQLite's INSERT text with positional places."""
    return str(insert(table).compile(dialect=dialect, column_keys=list(names)))


@lru_cache(maxsize=128)
def _processors(table: Table, names: tuple[str, ...], dialect: Dialect) -> tuple[Any, ...]:
    """What turns a value of each column into the driver's; none where nothing has to."""
    return tuple(table.c[name].type.bind_processor(dialect) for name in names)


def insert_rows(
    connection: Connection, table: Table, names: tuple[str, ...], rows: Iterable[tuple[Any, ...]]
) -> None:
    """Insert plain tuples, as fast as the database takes them, in the running transaction.

    Args:
        connection: in a write transaction.
        table: where to.
        names: columns, in the table's own order.
        rows: their values, in the order of `names`.
    """
    insert_together(connection, [(table, names, rows)])


Rows = tuple[Table, tuple[str, ...], Iterable[tuple[Any, ...]]]
"""A table, columns of it in its own order, and rows of their values."""


def insert_together(connection: Connection, groups: Iterable[Rows]) -> None:
    """Insert rows of several tables, parents before children; few rows all in one statement.

    Each statement is a trip to the server, and PostgreSQL checks foreign keys at its end.
    """
    waiting: list[tuple[Table, tuple[str, ...], list[tuple[Any, ...]]]] = []
    dialect = connection.dialect
    for table, names, rows in groups:
        values = for_driver(connection, table, names, rows)
        if not values:
            continue
        if dialect.name == "sqlite":
            connection.exec_driver_sql(_plan(table, names, dialect), values)
        elif len(values) < COPY_FROM:
            waiting.append((table, names, values))
        else:
            _insert_few(connection, waiting)
            waiting = []
            _copy(connection, table, names, values)
    _insert_few(connection, waiting)


def _insert_few(
    connection: Connection, groups: Sequence[tuple[Table, tuple[str, ...], list[tuple[Any, ...]]]]
) -> None:
    """One statement of PostgreSQL for all groups."""
    if not groups:
        return
    shapes = tuple((table, names, len(values) == 1) for table, names, values in groups)
    arguments: list[Any] = []
    for _, _, values in groups:
        # arrays of one row cost more to make than they save
        arguments += values[0] if len(values) == 1 else as_columns(values)
    connection.exec_driver_sql(_together_plan(shapes, connection.dialect), tuple(arguments))


@lru_cache(maxsize=64)
def _together_plan(
    shapes: tuple[tuple[Table, tuple[str, ...], bool], ...], dialect: Dialect
) -> str:
    plans = [
        (_one_row_plan if is_one else _arrays_plan)(table, names, dialect)
        for table, names, is_one in shapes
    ]
    first = ", ".join(f"part{n} AS ({plan})" for n, plan in enumerate(plans[:-1]))
    return f"WITH {first} {plans[-1]}" if first else plans[-1]


@lru_cache(maxsize=64)
def _one_row_plan(table: Table, names: tuple[str, ...], dialect: Dialect) -> str:
    quote = dialect.identifier_preparer.quote
    columns, places = ", ".join(map(quote, names)), ", ".join(["%s"] * len(names))
    return f"INSERT INTO {quote(table.name)} ({columns}) VALUES ({places})"  # noqa: S608


@lru_cache(maxsize=64)
def _arrays_plan(table: Table, names: tuple[str, ...], dialect: Dialect) -> str:
    """One INSERT for any number of rows: PostgreSQL plans it once and takes them in one trip."""
    quote = dialect.identifier_preparer.quote
    kinds = (table.c[name].type.compile(dialect) for name in names)
    places = ", ".join(f"CAST(%s AS {kind}[])" for kind in kinds)
    columns = ", ".join(quote(name) for name in names)
    return f"INSERT INTO {quote(table.name)} ({columns}) SELECT * FROM unnest({places})"  # noqa: S608


def for_driver(
    connection: Connection, table: Table, names: tuple[str, ...], rows: Iterable[tuple[Any, ...]]
) -> list[tuple[Any, ...]]:
    """Rows with the values that the driver takes."""
    processors = _processors(table, names, connection.dialect)
    busy = [(place, work) for place, work in enumerate(processors) if work is not None]
    return [_processed(row, busy) for row in rows] if busy else list(rows)


def _processed(row: tuple[Any, ...], busy: Sequence[tuple[int, Any]]) -> tuple[Any, ...]:
    changed = list(row)
    for place, work in busy:
        changed[place] = work(changed[place])
    return tuple(changed)


def _copy(
    connection: Connection, table: Table, names: tuple[str, ...], rows: Sequence[tuple[Any, ...]]
) -> None:
    """PostgreSQL's COPY on the transaction's own connection."""
    import psycopg
    from psycopg import sql

    raw = connection.connection.driver_connection
    if not isinstance(raw, psycopg.Connection):
        raise InvalidRecord("COPY needs the psycopg driver")
    statement = sql.SQL("COPY {} ({}) FROM STDIN").format(
        sql.Identifier(table.name), sql.SQL(", ").join(sql.Identifier(name) for name in names)
    )
    try:
        with raw.cursor() as cursor, cursor.copy(statement) as copy:
            for row in rows:
                copy.write_row(row)
    except psycopg.Error as error:
        raise _as_sqlalchemy(error) from error


def _as_sqlalchemy(error: Any) -> BaseException:
    """The wrapper that SQLAlchemy would have put around a driver's error."""
    import psycopg
    from sqlalchemy.exc import DBAPIError

    wrapped: BaseException = DBAPIError.instance("COPY", None, error, psycopg.Error)
    return wrapped
