"""Export of tables and views to Parquet or CSV, for DuckDB, pandas and spreadsheets."""

import csv
from collections.abc import Iterator, Sequence
from importlib import import_module
from pathlib import Path
from typing import Any

from sqlalchemy import Connection, Table, select

from results_db import view_columns
from results_db.errors import DatabaseUnreadable, NotFound
from results_db.schema import metadata, schema_versions
from results_db.store import Store
from results_db.views import view_statements

FORMATS = ("parquet", "csv")
_CHUNK = 50_000


def export(
    store: Store, folder: Path, file_format: str = "parquet", names: Sequence[str] = ()
) -> list[Path]:
    """Write one file per table and view into a folder, all from one snapshot.

    Args:
        store: what to export.
        folder: made if absent; files of the same names are replaced.
        file_format: `parquet` (typed, compressed) or `csv`.
        names: which tables and views; all of them when empty.

    Returns:
        The files written.

    Raises:
        NotFound: a name is neither a table nor a view, or the format is unknown.
        DatabaseUnreadable: the folder cannot be written, or Parquet is not installed.
    """
    if file_format not in FORMATS:
        raise NotFound(f"There is no format {file_format!r}", f"the formats are {FORMATS}")
    known = [name for name in metadata.tables if name != schema_versions.name]
    known += list(view_statements())
    unknown = sorted(set(names) - set(known))
    if unknown:
        raise NotFound(f"There is no table or view {unknown[0]!r}", f"there are {', '.join(known)}")
    write = _write_parquet if file_format == "parquet" else _write_csv
    written = []
    try:
        folder.mkdir(parents=True, exist_ok=True)
        with store.database.read() as connection:
            for name in names or known:
                path = folder / f"{name}.{file_format}"
                write(connection, view_columns.relation(connection, name), path)
                written.append(path)
    except OSError as error:
        raise DatabaseUnreadable(f"{folder} cannot be written: {error.strerror}") from error
    return written


def _chunks(connection: Connection, table: Table) -> Iterator[Sequence[Any]]:
    query = select(table).execution_options(yield_per=_CHUNK)
    yield from connection.execute(query).partitions(_CHUNK)


def _write_csv(connection: Connection, table: Table, path: Path) -> None:
    with path.open("w", newline="", encoding="utf-8") as sink:
        writer = csv.writer(sink)
        writer.writerow(table.columns.keys())
        for rows in _chunks(connection, table):
            writer.writerows(rows)


def _write_parquet(connection: Connection, table: Table, path: Path) -> None:
    try:
        pa: Any = import_module("pyarrow")  # its stubs are incomplete
        pq: Any = import_module("pyarrow.parquet")
    except ImportError as error:
        raise DatabaseUnreadable(
            "Parquet needs the package pyarrow", 'pip install "parallel-tuner[parquet]"'
        ) from error
    kinds = {
        "int": pa.int64(),
        "float": pa.float64(),
        "bool": pa.bool_(),
        "text": pa.string(),
        "time": pa.timestamp("us", tz="UTC"),
    }
    schema = pa.schema(
        [(column.name, kinds[view_columns.kind_of(column.type)]) for column in table.columns]
    )
    with pq.ParquetWriter(path, schema, compression="zstd") as writer:
        for rows in _chunks(connection, table):
            columns = list(zip(*rows, strict=True))
            writer.write_table(pa.table(columns, schema=schema))
