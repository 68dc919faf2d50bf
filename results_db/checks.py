"""`tuner db check`: the laws that a results database obeys, looked at row by row.

A law that the schema enforces by itself (keys, references, legal words) is left to the database's
own integrity check.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from sqlalchemy import Connection, Select, exists, func, not_, or_, select

from results_db import median_rows
from results_db.schema import (
    failure_reports,
    measurements,
    predictions,
    steps,
    studies,
    study_configs,
    trials,
)
from results_db.store import Store
from results_db.versions import stored_version
from results_db.views import view_statements

_TOLERANCE = 1e-9
_CHUNK = 500


@dataclass(frozen=True)
class Problem:
    """A broken law and one place where it is broken."""

    law: str
    detail: str


def check(store: Store) -> list[Problem]:
    """All broken laws; an empty list means that the database is sound."""
    with store.database.read() as connection:
        problems = list(_integrity(connection))
        if problems:
            return problems  # counts over damaged pages say nothing
        for law, query in _laws().items():
            count = select(func.count()).select_from(query.subquery())
            broken = int(connection.execute(count).scalar_one())
            if broken:
                first = connection.execute(query.limit(1)).mappings().one()
                place = ", ".join(f"{name} {value}" for name, value in first.items())
                problems.append(Problem(law, f"{broken} rows, the first: {place}"))
        problems += _medians(connection)
        problems += _views(connection)
    return problems


def _integrity(connection: Connection) -> Iterator[Problem]:
    if connection.dialect.name != "sqlite":
        return
    verdicts = [row[0] for row in connection.exec_driver_sql("PRAGMA integrity_check(5)")]
    if verdicts != ["ok"]:
        yield from (Problem("the file is intact", str(verdict)) for verdict in verdicts)
        return  # the next check would stumble over the damage
    for row in connection.exec_driver_sql("PRAGMA foreign_key_check").fetchmany(5):
        yield Problem("references lead somewhere", f"table {row[0]}, row {row[1]}")


def _laws() -> dict[str, Select[Any]]:
    """Each law with a query for the rows that break it."""
    has_measurement = exists(
        select(measurements.c.trial_id).where(measurements.c.trial_id == trials.c.id)
    )
    has_steps = exists(select(steps.c.trial_id).where(steps.c.trial_id == trials.c.id))
    has_failure = exists(
        select(failure_reports.c.trial_id).where(failure_reports.c.trial_id == trials.c.id)
    )
    is_open = trials.c.status.in_(["queued", "running"])
    trial = select(trials.c.study_id, trials.c.number, trials.c.status)
    return {
        "a completed trial has a measurement": trial.where(
            trials.c.status == "completed", not_(has_measurement)
        ),
        "only a completed or pruned trial has a measurement": trial.where(
            trials.c.status.not_in(["completed", "pruned"]), has_measurement
        ),
        "an open trial left nothing yet": trial.where(
            is_open, or_(has_measurement, has_steps, has_failure)
        ),
        "a trial that ended says when": trial.where(not_(is_open), trials.c.finished_at.is_(None)),
        "an open trial has no end": trial.where(is_open, trials.c.finished_at.is_not(None)),
        "a running trial has an owner and a start": trial.where(
            trials.c.status == "running",
            or_(trials.c.lease_host.is_(None), trials.c.started_at.is_(None)),
        ),
        "a queued trial has no owner": trial.where(
            trials.c.status == "queued",
            or_(trials.c.lease_host.is_not(None), trials.c.started_at.is_not(None)),
        ),
        "numbers count from 1 to the study's count": select(
            trials.c.study_id, func.max(trials.c.number).label("number")
        )
        .join(studies, studies.c.id == trials.c.study_id)
        .group_by(trials.c.study_id, studies.c.num_trials)
        .having(
            or_(func.max(trials.c.number) > studies.c.num_trials, func.min(trials.c.number) < 1)
        ),
        "a configuration with a completed trial is on the leaderboard": trial.where(
            trials.c.status == "completed",
            not_(
                exists(
                    select(study_configs.c.config_id).where(
                        study_configs.c.study_id == trials.c.study_id,
                        study_configs.c.config_id == trials.c.config_id,
                    )
                )
            ),
        ),
        "an interval contains its median": select(
            study_configs.c.study_id, study_configs.c.config_id
        ).where(
            or_(
                study_configs.c.tokens_per_s_low > study_configs.c.tokens_per_s,
                study_configs.c.tokens_per_s_high < study_configs.c.tokens_per_s,
                study_configs.c.tokens_per_s.is_(None),
            )
        ),
        "the first positions are marked": select(
            study_configs.c.study_id, study_configs.c.config_id
        ).where(study_configs.c.is_first != (study_configs.c.tokens_per_s_high >= _best_low())),
        "a prediction's bounds are in order": select(
            predictions.c.study_id, predictions.c.config_key
        ).where(predictions.c.step_time_low_s > predictions.c.step_time_high_s),
    }


def _best_low() -> Any:
    """The greatest lower end of an interval in the same study."""
    other = study_configs.alias("other")
    return (
        select(func.max(other.c.tokens_per_s_low))
        .where(other.c.study_id == study_configs.c.study_id)
        .scalar_subquery()
    )


def _medians(connection: Connection) -> Iterator[Problem]:
    """The stored medians are those of the trials."""
    for study_id in connection.execute(select(studies.c.id)).scalars().all():
        query = (
            select(study_configs)
            .where(study_configs.c.study_id == study_id)
            .order_by(study_configs.c.config_id)
        )
        rows = connection.execute(query).mappings().all()
        for start in range(0, len(rows), _CHUNK):
            chunk = {row["config_id"]: row for row in rows[start : start + _CHUNK]}
            fresh = median_rows.medians(connection, study_id, list(chunk))
            wrong = [key for key, row in chunk.items() if not _agree(row, fresh.get(key))]
            if wrong:
                where = f"study {study_id}, {len(wrong)} configurations, the first {wrong[0]}"
                yield Problem("stored medians are those of the trials", where)


def _agree(stored: Any, fresh: dict[str, Any] | None) -> bool:
    if fresh is None:
        return False
    return all(_close(stored[name], value) for name, value in fresh.items())


def _close(one: float | None, other: float | None) -> bool:
    if one is None or other is None:
        return one is other
    return abs(one - other) <= _TOLERANCE * max(abs(one), abs(other))


def _views(connection: Connection) -> Iterator[Problem]:
    from sqlalchemy import inspect

    missing = set(view_statements()) - set(inspect(connection).get_view_names())
    if missing:
        yield Problem("all views exist", f"{', '.join(sorted(missing))} missing")
    if stored_version(connection) is None:
        yield Problem("the schema has a version", "none")
