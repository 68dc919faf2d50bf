"""The box for read-only SQL, with the cookbook's queries."""

import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import lru_cache
from typing import Any

from starlette.requests import Request
from starlette.responses import Response

from results_db import view_columns
from results_db.errors import InvalidQuery
from results_db.queries import QueryLimits, read_only_sql
from results_db.schema import metadata, schema_versions
from results_db.views import view_statements
from tuner.web.app.cookbook import SavedQuery, saved_queries
from tuner.web.app.dashboard import Dashboard, PageProblem, dashboard_of
from tuner.web.app.rendering import page
from tuner.web.app.security import is_from_elsewhere

MOST_ROWS = 1_000
"""Rows that the page shows."""
TIMEOUT_S = 10.0
MOST_BYTES = 32 * 2**20
"""Of all texts of an answer."""
MOST_CHARACTERS = 2_000
"""Of one cell on the page."""
WAIT_S = 5.0
"""How long a query waits for others to end."""


@dataclass(frozen=True)
class Answer:
    """Columns and rows of a query, as the page shows them."""

    columns: Sequence[str]
    rows: Sequence[Sequence[str]]
    numeric: Sequence[bool]
    is_cut: bool
    elapsed_s: float


def sql(request: Request) -> Response:
    """The page; with a query in its address it runs that."""
    dashboard = dashboard_of(request)
    studies = [study.name for study in reversed(dashboard.store.list_studies())]
    chosen = request.query_params.get("study") or (studies[0] if studies else "")
    saved = _saved(request.query_params.get("saved"))
    text = request.query_params.get("q", "")
    if saved is not None:
        text = saved.for_study(chosen)
    answer, problem, is_held = None, None, False
    if text.strip() and is_from_elsewhere(request):
        is_held = True  # a link on another page fills the box, but somebody here has to run it
    elif text.strip():
        try:
            answer = _answer(dashboard, text)
        except InvalidQuery as error:
            problem = error
    return page(
        request,
        "sql.html",
        400 if problem else 200,
        text=text,
        answer=answer,
        problem=problem,
        is_held=is_held,
        sections=sections(),
        saved=saved,
        studies=studies,
        chosen=chosen,
        relations=relations(dashboard),
        most_rows=MOST_ROWS,
        timeout_s=TIMEOUT_S,
    )


def _saved(slug: str | None) -> SavedQuery | None:
    if not slug:
        return None
    for query in saved_queries():
        if query.slug == slug:
            return query
    raise PageProblem(404, f"There is no saved query {slug!r}", "choose one on the SQL page")


@lru_cache(maxsize=1)
def sections() -> dict[str, list[SavedQuery]]:
    """Saved queries by the cookbook's sections."""
    found: dict[str, list[SavedQuery]] = {}
    for query in saved_queries():
        found.setdefault(query.section, []).append(query)
    return found


@contextmanager
def slot(dashboard: Dashboard) -> Iterator[None]:
    """The right to run one costly query.

    Raises:
        PageProblem: others run as many as may run, and did not end in time.
    """
    if not dashboard.sql_slots.acquire(timeout=WAIT_S):
        raise PageProblem(503, "Other queries are running", "try again in a few seconds")
    try:
        yield
    finally:
        dashboard.sql_slots.release()


def ask(dashboard: Dashboard, text: str, most_rows: int) -> tuple[list[str], list[tuple[Any, ...]]]:
    """Columns and at most one row more than `most_rows` of a user's query.

    Raises:
        InvalidQuery: the database refused it, or it took too long.
        PageProblem: too many run at once.
    """
    limits = QueryLimits(max_rows=most_rows, timeout_s=TIMEOUT_S, max_bytes=MOST_BYTES, cuts=True)
    with slot(dashboard):
        return read_only_sql(dashboard.store_url, text, limits)


def _answer(dashboard: Dashboard, text: str) -> Answer:
    began = time.perf_counter()
    columns, rows = ask(dashboard, text, MOST_ROWS)
    elapsed_s = time.perf_counter() - began
    shown = rows[:MOST_ROWS]
    return Answer(
        columns=columns,
        rows=[[_cell(value) for value in row] for row in shown],
        numeric=[_is_numeric([row[place] for row in shown]) for place in range(len(columns))],
        is_cut=len(rows) > MOST_ROWS,
        elapsed_s=elapsed_s,
    )


def _is_numeric(values: Sequence[Any]) -> bool:
    known = [value for value in values if value is not None]
    return bool(known) and all(isinstance(value, int | float) for value in known)


def _cell(value: Any) -> str:
    """A value as text; long ones end with dots."""
    if value is None:
        return ""
    if isinstance(value, float):
        return f"{value:.6g}" if abs(value) < 1e6 else f"{value:.0f}"
    text = value.hex() if isinstance(value, bytes) else str(value)
    return text if len(text) <= MOST_CHARACTERS else f"{text[:MOST_CHARACTERS]}…"


_relations: dict[str, list[tuple[str, list[str]]]] = {}


def relations(dashboard: Dashboard) -> list[tuple[str, list[str]]]:
    """Views and tables with their columns; the views, made for people, come first."""
    known = _relations.get(dashboard.store.url)
    if known is None:
        names = [*view_statements(), *(n for n in metadata.tables if n != schema_versions.name)]
        with dashboard.store.database.read() as connection:
            known = [
                (name, list(view_columns.relation(connection, name).columns.keys()))
                for name in names
            ]
        _relations[dashboard.store.url] = known
    return known
