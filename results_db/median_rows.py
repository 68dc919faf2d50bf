"""The medians of `study_configs`, kept in the transaction that ends a trial."""

from collections import defaultdict
from collections.abc import Collection, Iterable, Sequence
from functools import lru_cache
from statistics import median
from typing import Any, NamedTuple

from sqlalchemy import (
    Connection,
    Dialect,
    Update,
    and_,
    bindparam,
    func,
    literal_column,
    select,
    text,
    union_all,
    update,
)

from results_db.bulk import insert_or_replace
from results_db.columns import Int64
from results_db.intervals import Interval, combine
from results_db.records import TrialStatus
from results_db.schema import measurements, study_configs, trials

_CHUNK = 500


def refresh_study_configs(
    connection: Connection, study_id: int, config_ids: Collection[int]
) -> None:
    """Recompute the medians of configurations of a study from all their completed trials.

    The study's row is locked by the caller, so no other writer changes them in between.
    """
    completed = _completed(connection, study_id, config_ids)
    if not completed:
        return
    rows = [
        {"study_id": study_id, "config_id": config_id, **_medians_of(runs)}
        for config_id, runs in completed.items()
    ]
    known = [runs[0] for runs in completed.values()]
    best_low = known[0].best_low
    if best_low is not None:
        for row in rows:
            row["is_first"] = row["tokens_per_s_high"] >= best_low
    insert_or_replace(connection, study_configs, rows)
    # the bar that a first position must reach is another one now, or may be
    is_bar_moved = (
        best_low is None
        or any(row["tokens_per_s_low"] > best_low for row in rows)
        or any(row.known_low == best_low for row in known)
    )
    if is_bar_moved:
        connection.execute(MARK_FIRST[connection.dialect.name], {"study": study_id})


class Completed(NamedTuple):
    """What the medians take of one completed trial."""

    number: int
    tokens_per_s: float
    tokens_per_s_low: float
    tokens_per_s_high: float
    step_time_s: float
    peak_memory_bytes: int
    mfu: float | None


def add_first(connection: Connection, study_id: int, config_id: int, run: Completed) -> bool:
    """Store the medians of a configuration by its first completed trial, on PostgreSQL.

    The study's row is locked by the caller. Returns false, with nothing done, when the
    configuration has medians already: then they are to be computed from all its trials.
    """
    row = {"study_id": study_id, "config_id": config_id, **_medians_of([run])}
    statement = _first_plan(tuple(row), connection.dialect)
    values = (*row.values(), row["tokens_per_s_high"], study_id, study_id)
    added = connection.exec_driver_sql(statement, values).one_or_none()
    if added is None:
        return False
    (best_low,) = added
    if best_low is None or row["tokens_per_s_low"] > best_low:
        connection.execute(MARK_FIRST[connection.dialect.name], {"study": study_id})
    return True


@lru_cache(maxsize=8)
def _first_plan(names: tuple[str, ...], dialect: Dialect) -> str:
    """One INSERT; what it returns is the bar as it was before."""
    bar = "(SELECT max(tokens_per_s_low) FROM study_configs WHERE study_id = %s)"
    quote = dialect.identifier_preparer.quote
    kinds = (study_configs.c[name].type.compile(dialect) for name in names)
    places = ", ".join(f"CAST(%s AS {kind})" for kind in kinds)
    return (
        f"INSERT INTO study_configs ({', '.join(map(quote, names))}, is_first)"  # noqa: S608
        f" VALUES ({places}, COALESCE(CAST(%s AS FLOAT) >= {bar}, true))"
        f" ON CONFLICT DO NOTHING RETURNING {bar}"
    )


# statements that every trial runs are built once: building costs more than running them
_OTHER = study_configs.alias("other")
_BEST_LOW = (
    select(func.max(_OTHER.c.tokens_per_s_low))
    .where(_OTHER.c.study_id == bindparam("study"))
    .scalar_subquery()
)
_LEADS = study_configs.c.tokens_per_s_high >= _BEST_LOW
# SQLite takes a partial index neither without its very words nor, without statistics, unasked
_MARKED_FROM = {
    "sqlite": "study_configs AS marked INDEXED BY ix_study_configs_first",
    "postgresql": "study_configs AS marked",
}


def _mark_first(dialect: str) -> Update:
    """Marks the configurations of position 1: no other's interval lies wholly above theirs."""
    leading = study_configs.alias("leading")
    of_study = bindparam("study", type_=Int64)
    found = union_all(
        select(leading.c.config_id).where(
            leading.c.study_id == of_study, leading.c.tokens_per_s_high >= _BEST_LOW
        ),
        select(literal_column("marked.config_id", Int64))
        .select_from(text(_MARKED_FROM[dialect]))
        .where(literal_column("marked.study_id", Int64) == of_study, text("marked.is_first")),
    )
    return (
        update(study_configs)
        .where(
            study_configs.c.study_id == of_study,
            study_configs.c.config_id.in_(found),
            study_configs.c.is_first != _LEADS,
        )
        .values(is_first=_LEADS)
    )


MARK_FIRST = {dialect: _mark_first(dialect) for dialect in _MARKED_FROM}
_COMPLETED = (
    select(
        trials.c.config_id,
        trials.c.number,
        measurements.c.tokens_per_s,
        measurements.c.tokens_per_s_low,
        measurements.c.tokens_per_s_high,
        measurements.c.step_time_s,
        measurements.c.peak_memory_bytes,
        measurements.c.mfu,
        study_configs.c.tokens_per_s_low.label("known_low"),
        _BEST_LOW.label("best_low"),
    )
    .join(measurements, measurements.c.trial_id == trials.c.id)
    .outerjoin(
        study_configs,
        and_(
            study_configs.c.study_id == trials.c.study_id,
            study_configs.c.config_id == trials.c.config_id,
        ),
    )
    .where(
        trials.c.study_id == bindparam("study"),
        trials.c.status == TrialStatus.COMPLETED.value,
        trials.c.config_id.in_(bindparam("configs", expanding=True)),
    )
)


def medians(
    connection: Connection, study_id: int, config_ids: Collection[int]
) -> dict[int, dict[str, Any]]:
    """What `study_configs` holds of each configuration that has a completed trial."""
    completed = _completed(connection, study_id, config_ids)
    return {config_id: _medians_of(rows) for config_id, rows in completed.items()}


def _medians_of(rows: Sequence[Any]) -> dict[str, Any]:
    best = combine(
        [Interval(row.tokens_per_s, row.tokens_per_s_low, row.tokens_per_s_high) for row in rows]
    )
    shares = [row.mfu for row in rows if row.mfu is not None]
    return {
        "num_completed": len(rows),
        "tokens_per_s": best.median,
        "tokens_per_s_low": best.low,
        "tokens_per_s_high": best.high,
        "step_time_s": median(row.step_time_s for row in rows),
        "peak_memory_bytes": max(row.peak_memory_bytes for row in rows),
        "mfu": median(shares) if shares else None,
        "first_trial": min(row.number for row in rows),
    }


def _completed(
    connection: Connection, study_id: int, config_ids: Iterable[int]
) -> dict[int, list[Any]]:
    wanted = list(config_ids)
    found: dict[int, list[Any]] = defaultdict(list)
    for start in range(0, len(wanted), _CHUNK):
        chunk = {"study": study_id, "configs": wanted[start : start + _CHUNK]}
        for row in connection.execute(_COMPLETED, chunk):
            found[row.config_id].append(row)
    return found
