"""Pages of trials for people: filtered, sorted, and found by key, so that no page is slow.

A page is named by the row it follows (or precedes) and not by an offset: it costs the same wherever
it lies, and trials that end meanwhile neither hide nor repeat a row.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from typing import Any

from sqlalchemy import ColumnElement, Select, and_, func, or_, select

from results_db import trial_summaries
from results_db.records import TrialSummary
from results_db.schema import failure_reports, measurements, parallel_configs, trials
from results_db.store import Store

_SORTS: dict[str, ColumnElement[Any]] = {
    "number": trials.c.number,
    "status": trials.c.status,
    "tokens_per_s": measurements.c.tokens_per_s,
    "step_time_s": measurements.c.step_time_s,
    "mfu": measurements.c.mfu,
    "peak_memory_bytes": measurements.c.peak_memory_bytes,
    "wall_s": trials.c.wall_s,
    "config": parallel_configs.c.label,
}
SORT_KEYS = tuple(_SORTS)
"""What trials can be sorted by."""


@dataclass(frozen=True, kw_only=True)
class TrialFilter:
    """Which trials of a study are meant; every part that is given must hold."""

    study_id: int
    statuses: tuple[str, ...] = ()
    purposes: tuple[str, ...] = ()
    failure_kinds: tuple[str, ...] = ()
    knobs: Mapping[str, tuple[Any, ...]] = field(default_factory=dict)
    """Column values that a knob may have, by knob."""
    text: str = ""
    """Words in the configuration's label or in the failure's message, in any case."""
    min_tokens_per_s: float | None = None
    max_memory_bytes: float | None = None

    def conditions(self) -> list[ColumnElement[bool]]:
        """The parts as SQL conditions over the joined tables."""
        found: list[ColumnElement[bool]] = [trials.c.study_id == self.study_id]
        for column, words in (
            (trials.c.status, self.statuses),
            (trials.c.purpose, self.purposes),
            (failure_reports.c.kind, self.failure_kinds),
        ):
            if words:
                found.append(column.in_(words))
        if self.knobs:
            # a handful of configurations first, then their trials by index
            configs = select(parallel_configs.c.id)
            for name, values in self.knobs.items():
                configs = configs.where(_one_of(parallel_configs.c[name], values))
            found.append(trials.c.config_id.in_(configs))
        if self.text:
            # a configuration has many trials: its label is looked at once
            label, message = parallel_configs.c.label, failure_reports.c.message
            configs = select(parallel_configs.c.id).where(_contains(label, self.text))
            failed = select(failure_reports.c.trial_id).where(
                failure_reports.c.position == 0, _contains(message, self.text)
            )
            found.append(trials.c.config_id.in_(configs) | trials.c.id.in_(failed))
        if self.min_tokens_per_s is not None:
            found.append(measurements.c.tokens_per_s >= self.min_tokens_per_s)
        if self.max_memory_bytes is not None:
            found.append(measurements.c.peak_memory_bytes <= self.max_memory_bytes)
        return found


def _contains(column: ColumnElement[Any], words: str) -> ColumnElement[bool]:
    return column.icontains(words, autoescape=True)


def _one_of(column: ColumnElement[Any], values: Sequence[Any]) -> ColumnElement[bool]:
    known = [value for value in values if value is not None]
    if len(known) < len(values):
        return or_(column.in_(known), column.is_(None))
    return column.in_(known)


@dataclass(frozen=True)
class TrialOrder:
    """Sorted by one of `SORT_KEYS`, then by number; trials without a value come last."""

    key: str = "number"
    descending: bool = True


@dataclass(frozen=True)
class Cursor:
    """The row that a page follows, or precedes when `is_backward`."""

    value: Any
    """Of the sort key, none where the row has none."""
    number: int
    is_backward: bool = False


@dataclass(frozen=True, slots=True)
class TrialLine:
    """One line of a list of trials; times UTC, `_s` seconds, `_bytes` bytes."""

    trial_id: int
    number: int
    status: str
    purpose: str
    repeat: int
    attempt: int
    config: str
    tokens_per_s: float | None
    tokens_per_s_low: float | None
    tokens_per_s_high: float | None
    step_time_s: float | None
    mfu: float | None
    peak_memory_bytes: int | None
    wall_s: float | None
    failure_kind: str | None
    failure_message: str | None
    finished_at: datetime | None


@dataclass(frozen=True)
class TrialPage:
    """Lines in order, and where the neighbouring pages begin."""

    lines: Sequence[TrialLine]
    before: Cursor | None
    """The page before this one; none on the first."""
    after: Cursor | None


_LINE = (
    trials.c.id, trials.c.number, trials.c.status, trials.c.purpose, trials.c.repeat,
    trials.c.attempt, parallel_configs.c.label, measurements.c.tokens_per_s,
    measurements.c.tokens_per_s_low, measurements.c.tokens_per_s_high, measurements.c.step_time_s,
    measurements.c.mfu, measurements.c.peak_memory_bytes, trials.c.wall_s, failure_reports.c.kind,
    failure_reports.c.message, trials.c.finished_at,
)  # fmt: skip


def trial_page(
    store: Store, wanted: TrialFilter, order: TrialOrder, cursor: Cursor | None, size: int
) -> TrialPage:
    """The page of at most `size` trials at a cursor; the first one without."""
    is_backward = cursor is not None and cursor.is_backward
    column = _SORTS[order.key]
    query = _joined(select(column.label("sort_value"), trials.c.id)).where(*wanted.conditions())
    if cursor is not None:
        query = query.where(_beyond(column, order, cursor))
    query = query.order_by(*_ordering(column, order, is_backward=is_backward)).limit(size + 1)
    with store.database.read() as connection:
        keys = connection.execute(query).all()
        is_cut, keys = len(keys) > size, keys[:size]
        ids = [key.id for key in keys]
        rows = connection.execute(_joined(select(*_LINE)).where(trials.c.id.in_(ids)))
        by_id = {row[0]: TrialLine(*row) for row in rows}
    places = [(key.sort_value, by_id[key.id]) for key in keys]
    if is_backward:
        places.reverse()
    has_before = is_cut if is_backward else cursor is not None
    has_after = True if is_backward else is_cut
    first, last = (places[0], places[-1]) if places else (None, None)
    return TrialPage(
        lines=[line for _, line in places],
        before=Cursor(first[0], first[1].number, True) if first and has_before else None,
        after=Cursor(last[0], last[1].number) if last and has_after else None,
    )


def count_trials(store: Store, wanted: TrialFilter) -> int:
    """How many trials a filter lets through."""
    query = _joined(select(func.count())).where(*wanted.conditions())
    with store.database.read() as connection:
        return int(connection.execute(query).scalar_one())


def trials_by_id(store: Store, ids: Sequence[int]) -> list[TrialSummary]:
    """Trials of any studies in the order of `ids`; unknown ones are left out."""
    query = trial_summaries.summary_query().where(trials.c.id.in_(ids))
    with store.database.read() as connection:
        found = {row.trial.id: row for row in trial_summaries.summaries(connection, query)}
    return [found[key] for key in ids if key in found]


def matching_ids(wanted: TrialFilter) -> Select[Any]:
    """The ids of the trials that a filter lets through, as a subquery."""
    return _joined(select(trials.c.id)).where(*wanted.conditions())


def _joined(query: Select[Any]) -> Select[Any]:
    """The tables of a line; databases skip the outer ones that a query does not use."""
    first = and_(failure_reports.c.trial_id == trials.c.id, failure_reports.c.position == 0)
    return (
        query.select_from(trials)
        .join(parallel_configs, parallel_configs.c.id == trials.c.config_id)
        .outerjoin(measurements, measurements.c.trial_id == trials.c.id)
        .outerjoin(failure_reports, first)
    )


def _ordering(
    column: ColumnElement[Any], order: TrialOrder, *, is_backward: bool
) -> list[ColumnElement[Any]]:
    """Values, then none, then the number; the other way round for the page before."""
    is_descending = order.descending != is_backward
    number = trials.c.number.desc() if is_descending else trials.c.number.asc()
    if column is trials.c.number:
        return [number]
    absent = column.is_(None)
    return [
        absent.desc() if is_backward else absent.asc(),
        column.desc() if is_descending else column.asc(),
        number,
    ]


def _beyond(column: ColumnElement[Any], order: TrialOrder, cursor: Cursor) -> ColumnElement[bool]:
    """Rows after the cursor's, or before it when it looks backward."""
    is_descending = order.descending != cursor.is_backward
    number = trials.c.number
    further = number < cursor.number if is_descending else number > cursor.number
    if column is number:
        return further
    if cursor.value is None:
        tied = and_(column.is_(None), further)
        return or_(column.is_not(None), tied) if cursor.is_backward else tied
    beyond = column < cursor.value if is_descending else column > cursor.value
    found = or_(beyond, and_(column == cursor.value, further))
    return found if cursor.is_backward else or_(found, column.is_(None))
