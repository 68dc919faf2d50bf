"""Trials as they are read: rows joined to configuration, measurement and first failure."""

from collections.abc import Mapping, Sequence
from typing import Any

from sqlalchemy import Connection, CursorResult, RowMapping, Select, and_, bindparam, select

from results_db import knobs, leases
from results_db.records import (
    FailureRow,
    MeasurementRow,
    Purpose,
    TrialRecord,
    TrialStatus,
    TrialSummary,
)
from results_db.schema import (
    failure_reports,
    measurements,
    parallel_configs,
    software_versions,
    trials,
)
from results_db.values import join_nonfinite

_CHUNK = 500
"""Keys in one IN list; SQLite takes at most 32766 parameters."""

_FIRST = and_(failure_reports.c.trial_id == trials.c.id, failure_reports.c.position == 0)
_TABLES = {"t": trials, "c": parallel_configs, "m": measurements, "f": failure_reports}


_SUMMARIES = (
    select(
        *(
            column.label(f"{short}_{column.name}")
            for short, table in _TABLES.items()
            for column in table.columns
        )
    )
    .select_from(trials)
    .join(parallel_configs, trials.c.config_id == parallel_configs.c.id)
    .outerjoin(measurements, measurements.c.trial_id == trials.c.id)
    .outerjoin(failure_reports, _FIRST)
)
_SUMMARIES_BY_ID = _SUMMARIES.where(trials.c.id.in_(bindparam("ids", expanding=True))).order_by(
    trials.c.id
)


def summary_query() -> Select[Any]:
    """Trials with configuration, measurement and first failure; columns are `t_id`, `m_mfu`, ..."""
    return _SUMMARIES


def by_ids(connection: Connection, trial_ids: Sequence[int]) -> list[TrialSummary]:
    """Trials by id."""
    found: list[TrialSummary] = []
    for start in range(0, len(trial_ids), _CHUNK):
        wanted = {"ids": trial_ids[start : start + _CHUNK]}
        found += _summaries(connection, connection.execute(_SUMMARIES_BY_ID, wanted))
    return found


def summaries(connection: Connection, query: Select[Any]) -> list[TrialSummary]:
    """Run a `summary_query` with its conditions."""
    return _summaries(connection, connection.execute(query))


def _summaries(connection: Connection, result: CursorResult[Any]) -> list[TrialSummary]:
    rows = result.mappings().all()
    wanted = {row["m_software_id"] for row in rows} - {None}
    versions = _versions(connection, sorted(wanted))
    return [_summary(row, versions) for row in rows]


def _versions(connection: Connection, software_ids: Sequence[int]) -> dict[int, dict[str, str]]:
    found: dict[int, dict[str, str]] = {key: {} for key in software_ids}
    for start in range(0, len(software_ids), _CHUNK):
        wanted = software_versions.c.software_id.in_(software_ids[start : start + _CHUNK])
        for row in connection.execute(select(software_versions).where(wanted)):
            found[row.software_id][row.package] = row.version
    return found


def _part(row: RowMapping, short: str) -> dict[str, Any]:
    prefix = f"{short}_"
    return {column.name: row[prefix + column.name] for column in _TABLES[short].columns}


def _summary(row: RowMapping, versions: Mapping[int, dict[str, str]]) -> TrialSummary:
    measurement = failure = None
    if row["m_trial_id"] is not None:
        measurement = _measurement(_part(row, "m"), versions)
    if row["f_trial_id"] is not None:
        failure = failure_record(_part(row, "f"))
    return TrialSummary(trial=_trial(row), measurement=measurement, failure=failure)


def _trial(row: RowMapping) -> TrialRecord:
    return TrialRecord(
        **{name: row[f"t_{name}"] for name in _PLAIN_TRIAL},
        config_key=row["c_config_key"],
        knobs=knobs.from_columns(_part(row, "c")),
        status=TrialStatus(row["t_status"]),
        purpose=Purpose(row["t_purpose"]),
        lease=leases.from_columns(_part(row, "t")),
    )


_PLAIN_TRIAL = (
    "id", "study_id", "number", "attempt", "repeat", "seed", "warmup_steps", "measured_steps",
    "source", "queued_at", "started_at", "finished_at", "folder",
)  # fmt: skip


def _measurement(row: Mapping[str, Any], versions: Mapping[int, dict[str, str]]) -> MeasurementRow:
    plain = {name: row[name] for name in _PLAIN_MEASUREMENT}
    return MeasurementRow(
        **plain,
        final_loss=join_nonfinite(row["final_loss"], row["loss_nonfinite"]),
        versions=versions.get(row["software_id"], {}),
    )


_PLAIN_MEASUREMENT = tuple(
    name for name in MeasurementRow.__dataclass_fields__ if name not in ("final_loss", "versions")
)


def failure_record(row: Mapping[Any, Any]) -> FailureRow:
    """A failure from its row."""
    return FailureRow(**{name: row[name] for name in FailureRow.__dataclass_fields__})
