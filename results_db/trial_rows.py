"""Trials: their rows and the changes of their life before the end. In the caller's transaction."""

from collections.abc import Collection, Mapping, Sequence
from datetime import UTC, datetime
from typing import Any

from sqlalchemy import Connection, RowMapping, Select, and_, bindparam, insert, select, update

from results_db import knobs, leases, study_rows
from results_db.bulk import insert_or_ignore
from results_db.errors import AlreadyExists, IllegalTransition, InvalidRecord, LeaseLost, NotFound
from results_db.records import (
    FailureRow,
    Lease,
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
    studies,
    trials,
)
from results_db.values import join_nonfinite

_CHUNK = 500
"""Keys in one IN list; SQLite takes at most 32766 parameters."""


def config_ids(connection: Connection, points: Mapping[str, Mapping[str, Any]]) -> dict[str, int]:
    """Ids of configurations by key, inserted when new.

    Raises:
        InvalidRecord: a knob is unknown, or a key is known with other knobs.
    """
    # sorted, so that two writers take the same new keys in the same order
    rows = {key: {"config_key": key, **knobs.to_columns(points[key])} for key in sorted(points)}
    found = _known_configs(connection, list(rows))
    new = [row for key, row in rows.items() if key not in found]
    if new:
        insert_or_ignore(connection, parallel_configs, new)
        found |= _known_configs(connection, [row["config_key"] for row in new])
    for key, row in rows.items():
        if any(found[key][name] != row[name] for name in knobs.KNOB_NAMES):
            raise InvalidRecord(f"The configuration key {key} is stored with other knobs")
    return {key: int(found[key]["id"]) for key in rows}


def known_config_ids(connection: Connection, keys: Sequence[str]) -> dict[str, int]:
    """Ids of the configurations of these keys that are stored."""
    return {key: int(row["id"]) for key, row in _known_configs(connection, keys).items()}


def _known_configs(connection: Connection, keys: Sequence[str]) -> dict[str, RowMapping]:
    found: dict[str, RowMapping] = {}
    for start in range(0, len(keys), _CHUNK):
        wanted = {"keys": keys[start : start + _CHUNK]}
        rows = connection.execute(_CONFIGS_BY_KEY, wanted).mappings()
        found |= {row["config_key"]: row for row in rows}
    return found


# statements that every trial runs are built once: building costs more than running them
_TAKE_NUMBERS = (
    update(studies)
    .where(studies.c.id == bindparam("study"))
    .values(num_trials=studies.c.num_trials + bindparam("count"))
    .returning(studies.c.num_trials)
)
_CONFIGS_BY_KEY = select(parallel_configs).where(
    parallel_configs.c.config_key.in_(bindparam("keys", expanding=True))
)


def next_numbers(connection: Connection, study_id: int, count: int) -> int:
    """Take `count` trial numbers of a study; returns the first. Locks the study's row."""
    last = connection.execute(_TAKE_NUMBERS, {"study": study_id, "count": count}).scalar()
    if last is None:
        raise study_rows.unknown_study(connection, study_id)
    return int(last) - count + 1


def add(connection: Connection, trial: TrialRecord) -> tuple[int, int, datetime]:
    """Insert a queued trial; returns its id, its number and when it was queued.

    Raises:
        AlreadyExists: the same configuration, repeat and attempt is in the study.
        InvalidRecord: the trial is not queued.
    """
    if trial.status is not TrialStatus.QUEUED:
        raise InvalidRecord(
            f"A new trial is queued, not {trial.status.value}", "claim_trial, then finish_trial"
        )
    number = next_numbers(connection, trial.study_id, 1)
    config_id = config_ids(connection, {trial.config_key: trial.knobs})[trial.config_key]
    twin = select(trials.c.number).where(
        trials.c.study_id == trial.study_id,
        trials.c.config_id == config_id,
        trials.c.repeat == trial.repeat,
        trials.c.attempt == trial.attempt,
    )
    known = connection.execute(twin).scalar_one_or_none()
    if known is not None:
        raise AlreadyExists(
            f"Trial {known} of this study is configuration {trial.config_key}, repeat "
            f"{trial.repeat}, attempt {trial.attempt} already", "raise repeat or attempt",
        )  # fmt: skip
    row = {"study_id": trial.study_id, "config_id": config_id}
    queued_at = trial.queued_at or datetime.now(UTC)
    values = row | trial_columns(trial, number, queued_at)
    added = connection.execute(insert(trials).returning(trials.c.id), values).scalar_one()
    return int(added), number, queued_at


def trial_columns(trial: TrialRecord, number: int, queued_at: datetime) -> dict[str, Any]:
    """The columns of a trial that are known before it runs."""
    return {
        "number": number,
        "status": trial.status.value,
        "purpose": trial.purpose.value,
        "repeat": trial.repeat,
        "attempt": trial.attempt,
        "seed": trial.seed,
        "warmup_steps": trial.warmup_steps,
        "measured_steps": trial.measured_steps,
        "source": trial.source,
        "queued_at": queued_at,
    }


def claim(connection: Connection, trial_id: int, lease: Lease, folder: str) -> None:
    """QUEUED -> RUNNING.

    Raises:
        IllegalTransition: it is not queued (another controller was faster, or it has ended).
    """
    change = (
        update(trials)
        .where(trials.c.id == trial_id, trials.c.status == TrialStatus.QUEUED.value)
        .values(
            status=TrialStatus.RUNNING.value,
            started_at=datetime.now(UTC),
            folder=folder,
            **leases.to_columns(lease),
        )
    )
    if connection.execute(change).rowcount != 1:
        raise refused(connection, trial_id, "claimed", TrialStatus.QUEUED)


def requeue(connection: Connection, trial_id: int, lease: Lease | None) -> None:
    """RUNNING -> QUEUED, because its controller died; the same row goes on.

    Raises:
        IllegalTransition: it is not running.
        LeaseLost: it runs, but no longer for the owner `lease`.
    """
    change = (
        update(trials)
        .where(trials.c.id == trial_id, trials.c.status == TrialStatus.RUNNING.value)
        .where(owned_by(lease))
        .values(
            status=TrialStatus.QUEUED.value,
            started_at=None,
            folder=None,
            num_requeues=trials.c.num_requeues + 1,
            **leases.to_columns(None),
        )
    )
    if connection.execute(change).rowcount != 1:
        raise refused(connection, trial_id, "requeued", TrialStatus.RUNNING)


def beat(
    connection: Connection, trial_ids: Collection[int], when: datetime, lease: Lease | None
) -> int:
    """Record that the owner of running trials lives; returns how many of them still run."""
    change = (
        update(trials)
        .where(trials.c.id.in_(trial_ids), trials.c.status == TrialStatus.RUNNING.value)
        .where(owned_by(lease))
        .values(lease_heartbeat_at=when)
    )
    return int(connection.execute(change).rowcount)


def owned_by(lease: Lease | None) -> Any:
    """The condition that a trial belongs to this owner; true without one."""
    if lease is None:
        return and_(True)
    return and_(
        trials.c.lease_host == lease.host,
        trials.c.lease_pid == lease.pid,
        trials.c.lease_process_started_at == lease.process_started_at,
    )


def refused(
    connection: Connection, trial_id: int, verb: str, *legal: TrialStatus
) -> IllegalTransition | NotFound:
    """Why a change of a trial's status found no row to change."""
    query = select(trials.c.number, trials.c.status).where(trials.c.id == trial_id)
    row = connection.execute(query).mappings().one_or_none()
    if row is None:
        return NotFound(f"There is no trial with the id {trial_id}")
    if row["status"] in legal:
        return LeaseLost(
            f"Trial {row['number']} cannot be {verb}: another process runs it now",
            "it was requeued after its controller fell silent",
        )
    words = " or ".join(status.value for status in legal)
    return IllegalTransition(
        f"Trial {row['number']} cannot be {verb}: it is {row['status']}, not {words}"
    )


_FIRST = and_(failure_reports.c.trial_id == trials.c.id, failure_reports.c.position == 0)
_TABLES = {"t": trials, "c": parallel_configs, "m": measurements, "f": failure_reports}


def summary_query() -> Select[Any]:
    """Trials with configuration, measurement and first failure; columns are `t_id`, `m_mfu`, ..."""
    columns = [
        column.label(f"{short}_{column.name}")
        for short, table in _TABLES.items()
        for column in table.columns
    ]
    return (
        select(*columns)
        .select_from(trials)
        .join(parallel_configs, trials.c.config_id == parallel_configs.c.id)
        .outerjoin(measurements, measurements.c.trial_id == trials.c.id)
        .outerjoin(failure_reports, _FIRST)
    )


def summaries(connection: Connection, query: Select[Any]) -> list[TrialSummary]:
    """Run a `summary_query` with its conditions."""
    rows = connection.execute(query).mappings().all()
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
        id=row["t_id"],
        study_id=row["t_study_id"],
        number=row["t_number"],
        config_key=row["c_config_key"],
        knobs=knobs.from_columns(_part(row, "c")),
        status=TrialStatus(row["t_status"]),
        purpose=Purpose(row["t_purpose"]),
        attempt=row["t_attempt"],
        repeat=row["t_repeat"],
        seed=row["t_seed"],
        warmup_steps=row["t_warmup_steps"],
        measured_steps=row["t_measured_steps"],
        source=row["t_source"],
        queued_at=row["t_queued_at"],
        started_at=row["t_started_at"],
        finished_at=row["t_finished_at"],
        folder=row["t_folder"],
        lease=leases.from_columns(_part(row, "t")),
    )


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
