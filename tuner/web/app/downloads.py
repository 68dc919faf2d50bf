"""Downloads as CSV and Parquet: a list of trials with its filters, or the answer of a query.

CSV is opened with spreadsheets, which run a cell that begins like a formula. Texts that do get an
apostrophe in front, as OWASP advises; numbers stay as they are, and Parquet is exact.
"""

import csv
import io
import re
import tempfile
from collections.abc import Iterable, Iterator, Sequence
from importlib import import_module
from pathlib import Path
from typing import Any

from sqlalchemy import Table, select
from starlette.background import BackgroundTask
from starlette.requests import Request
from starlette.responses import FileResponse, Response, StreamingResponse

from results_db import view_columns
from results_db.trial_lists import TrialFilter, matching_ids
from tuner.web.app.dashboard import Dashboard, PageProblem, dashboard_of, id_of
from tuner.web.app.security import is_from_elsewhere
from tuner.web.app.sql_page import ask
from tuner.web.app.trial_query import read_query

MOST_SQL_ROWS = 100_000
_CHUNK = 5_000
_KINDS = ("csv", "parquet")
_NUMBER = re.compile(r"[+-]?(\d+\.?\d*([eE][+-]?\d+)?|\.\d+|inf|nan)\Z")
_CSV = "text/csv; charset=utf-8"


def trials(request: Request) -> Response:
    """The trials of a list with its filters, all pages of it, as rows of `trial_summary`."""
    kind = _kind(request)
    dashboard = dashboard_of(request)
    study = dashboard.study(id_of(request))
    wanted = read_query(study.id or 0, request.query_params).wanted
    name = f"{_file_name(study.name)}-trials"
    if kind == "csv":
        return _stream(_summary_rows(dashboard, wanted), name)
    return _parquet(lambda path: _write_trials(dashboard, wanted, path), name)


def sql(request: Request) -> Response:
    """The answer of a query."""
    kind = _kind(request)
    dashboard = dashboard_of(request)
    text = request.query_params.get("q", "")
    if not text.strip():
        raise PageProblem(400, "There is no query to download", "write one on the SQL page")
    columns, rows = ask(dashboard, text, MOST_SQL_ROWS)
    if len(rows) > MOST_SQL_ROWS:
        raise PageProblem(
            400, f"The answer has more than {MOST_SQL_ROWS:,} rows",
            "add a LIMIT, or use `tuner sql` in a terminal",
        )  # fmt: skip
    if kind == "csv":
        return _stream(iter([columns, *rows]), "query")
    if len(set(columns)) < len(columns):
        raise PageProblem(400, "Parquet needs columns of different names", "name them with AS")
    return _parquet(lambda path: _write_answer(columns, rows, path), "query")


def _kind(request: Request) -> str:
    kind = str(request.path_params["kind"])
    if kind not in _KINDS:
        raise PageProblem(404, f"There is no format {kind!r}", f"there are {', '.join(_KINDS)}")
    if is_from_elsewhere(request):
        raise PageProblem(403, "Another page asked for this download", "start it from here")
    return kind


def _file_name(text: str) -> str:
    """Letters, digits and a few signs of a name: it stands in a header and on a disk."""
    return re.sub(r"[^A-Za-z0-9._-]+", "-", text).strip("-.")[:80] or "study"


def _summary(dashboard: Dashboard, wanted: TrialFilter) -> Iterator[tuple[Table, Iterator[Any]]]:
    """The typed columns and chunks of rows, in one read transaction while it is used."""
    with dashboard.store.database.read() as connection:
        table = view_columns.relation(connection, "trial_summary")
        query = (
            select(table)
            .where(table.c.trial_id.in_(matching_ids(wanted)))
            .order_by(table.c.trial)
            .execution_options(yield_per=_CHUNK)
        )
        yield table, connection.execute(query).partitions(_CHUNK)


def _summary_rows(dashboard: Dashboard, wanted: TrialFilter) -> Iterator[Sequence[Any]]:
    for table, chunks in _summary(dashboard, wanted):
        yield table.columns.keys()
        for chunk in chunks:
            yield from chunk


def _stream(rows: Iterator[Sequence[Any]], name: str) -> Response:
    first = next(rows)  # what goes wrong goes wrong now, while it can still be said
    headers = {"content-disposition": f'attachment; filename="{name}.csv"'}
    return StreamingResponse(_csv_text(first, rows), media_type=_CSV, headers=headers)


def _csv_text(first: Sequence[Any], rows: Iterable[Sequence[Any]]) -> Iterator[str]:
    sink = io.StringIO()
    writer = csv.writer(sink)
    writer.writerow(map(csv_cell, first))
    for count, row in enumerate(rows):
        writer.writerow(map(csv_cell, row))
        if count % _CHUNK == 0:
            yield _drained(sink)
    yield _drained(sink)


def _drained(sink: io.StringIO) -> str:
    text = sink.getvalue()
    sink.seek(0)
    sink.truncate()
    return text


def csv_cell(value: Any) -> Any:
    """A value that no spreadsheet takes for a formula."""
    if value is None:
        return ""
    if hasattr(value, "isoformat"):
        return value.isoformat()
    if isinstance(value, bytes):
        return value.hex()
    if not isinstance(value, str):
        return value
    is_formula = value.startswith(("=", "+", "-", "@", "\t", "\r", "\n"))
    return f"'{value}" if is_formula and not _NUMBER.match(value) else value


def _parquet(write: Any, name: str) -> Response:
    with tempfile.NamedTemporaryFile(suffix=".parquet", delete=False) as file:
        path = Path(file.name)
    try:
        write(path)
    except BaseException:
        path.unlink(missing_ok=True)
        raise
    return FileResponse(
        path,
        media_type="application/vnd.apache.parquet",
        filename=f"{name}.parquet",
        background=BackgroundTask(path.unlink, missing_ok=True),
    )


def _arrow() -> tuple[Any, Any]:
    try:
        return import_module("pyarrow"), import_module("pyarrow.parquet")
    except ImportError:
        raise PageProblem(
            501, "Parquet needs the package pyarrow", 'pip install "parallel-tuner[parquet]"'
        ) from None


def _write_trials(dashboard: Dashboard, wanted: TrialFilter, path: Path) -> None:
    pa, pq = _arrow()
    kinds = {
        "int": pa.int64(), "float": pa.float64(), "bool": pa.bool_(), "text": pa.string(),
        "time": pa.timestamp("us", tz="UTC"),
    }  # fmt: skip
    for table, chunks in _summary(dashboard, wanted):
        schema = pa.schema(
            [(column.name, kinds[view_columns.kind_of(column.type)]) for column in table.columns]
        )
        with pq.ParquetWriter(path, schema, compression="zstd") as writer:
            for chunk in chunks:
                writer.write_table(pa.table(list(zip(*chunk, strict=True)), schema=schema))


def _write_answer(columns: Sequence[str], rows: Sequence[Sequence[Any]], path: Path) -> None:
    pa, pq = _arrow()
    try:
        arrays = [pa.array([row[place] for row in rows]) for place in range(len(columns))]
    except (pa.ArrowInvalid, pa.ArrowTypeError) as error:
        raise PageProblem(
            400, "A column holds values of several types, which Parquet cannot",
            "CAST it in the query, or download CSV",
        ) from error  # fmt: skip
    pq.write_table(pa.table(arrays, names=list(columns)), path, compression="zstd")
