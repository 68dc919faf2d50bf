"""Trials: their rows and the changes of their life before the end. In the caller's transaction."""

from collections.abc import Collection, Mapping, Sequence
from dataclasses import replace
from datetime import UTC, datetime
from typing import Any

from sqlalchemy import Connection, and_, bindparam, select, update

from results_db import knobs, known_ids, leases, study_rows
from results_db.bulk import insert_new
from results_db.errors import AlreadyExists, IllegalTransition, InvalidRecord, LeaseLost, NotFound
from results_db.records import (
    Lease,
    TrialRecord,
    TrialStatus,
)
from results_db.schema import (
    parallel_configs,
    studies,
    trials,
)

_CHUNK = 500
"""Keys in one IN list; SQLite takes at most 32766 parameters."""


def config_ids(connection: Connection, points: Mapping[str, Mapping[str, Any]]) -> dict[str, int]:
    """Ids of configurations by key, inserted when new.

    Raises:
        InvalidRecord: a knob is unknown, or a key is known with other knobs.
    """
    # sorted, so that two writers take the same new keys in the same order
    rows = {key: {"config_key": key, **knobs.to_columns(points[key])} for key in sorted(points)}
    found = {}
    for key in rows:
        known = known_ids.find(connection, parallel_configs.name, key)
        if known is not None:
            found[key] = known
    found |= _stored_configs(connection, [key for key in rows if key not in found])
    new = [row for key, row in rows.items() if key not in found]
    if new:
        for config_id, key in insert_new(connection, parallel_configs, new, ("id", "config_key")):
            found[key] = (config_id, _contents(rows[key]))
        # those that another writer made in between
        found |= _stored_configs(connection, [key for key in rows if key not in found])
    for key, row in rows.items():
        config_id, contents = found[key]
        if contents != _contents(row):
            raise InvalidRecord(f"The configuration key {key} is stored with other knobs")
        known_ids.learn(connection, parallel_configs.name, key, config_id, contents)
    return {key: config_id for key, (config_id, _) in found.items()}


def _contents(row: Mapping[Any, Any]) -> int:
    """What tells configurations apart that have one key; a hash, as very many are remembered."""
    return hash(tuple(row[name] for name in knobs.KNOB_NAMES))


def known_config_ids(connection: Connection, keys: Sequence[str]) -> dict[str, int]:
    """Ids of the configurations of these keys that are stored."""
    return {key: found for key, (found, _) in _stored_configs(connection, keys).items()}


def _stored_configs(connection: Connection, keys: Sequence[str]) -> dict[str, tuple[int, object]]:
    found: dict[str, tuple[int, object]] = {}
    for start in range(0, len(keys), _CHUNK):
        wanted = {"keys": keys[start : start + _CHUNK]}
        for row in connection.execute(_CONFIGS_BY_KEY, wanted).mappings():
            found[row["config_key"]] = (int(row["id"]), _contents(row))
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


def add(connection: Connection, records: Sequence[TrialRecord]) -> list[TrialRecord]:
    """Insert queued trials of one study; returns them with id, number and time.

    Raises:
        AlreadyExists: the same configuration, repeat and attempt is in the study.
        InvalidRecord: a trial is not queued.
    """
    for trial in records:
        if trial.status is not TrialStatus.QUEUED:
            raise InvalidRecord(
                f"A new trial is queued, not {trial.status.value}",
                "claim_trial, then finish_trial",
            )
    study_id = records[0].study_id
    first = next_numbers(connection, study_id, len(records))
    configs = config_ids(connection, {trial.config_key: trial.knobs for trial in records})
    now = datetime.now(UTC)
    rows = []
    for number, trial in enumerate(records, first):
        row = {"study_id": study_id, "config_id": configs[trial.config_key]}
        rows.append(row | trial_columns(trial, number, trial.queued_at or now))
    made = insert_new(connection, trials, rows, ("id", "number"))
    ids = {number: int(trial_id) for trial_id, number in made}
    if len(ids) < len(rows):
        refused_row = next(row for row in rows if row["number"] not in ids)
        raise _twin(connection, refused_row)
    return [
        replace(trial, id=ids[row["number"]], number=row["number"], queued_at=row["queued_at"])
        for trial, row in zip(records, rows, strict=True)
    ]


def _twin(connection: Connection, row: Mapping[str, Any]) -> AlreadyExists:
    """The error for a trial that is in its study already."""
    names = ("study_id", "config_id", "repeat", "attempt")
    same = and_(*(trials.c[name] == row[name] for name in names))
    query = (
        select(trials.c.number, parallel_configs.c.config_key)
        .join(parallel_configs, parallel_configs.c.id == trials.c.config_id)
        .where(same)
        .order_by(trials.c.number)
    )
    known = connection.execute(query).first()
    number, key = known or ("?", "?")
    return AlreadyExists(
        f"Trial {number} of this study is configuration {key}, repeat {row['repeat']}, attempt "
        f"{row['attempt']} already", "raise repeat or attempt",
    )  # fmt: skip


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


_CLAIM = (
    update(trials)
    .where(trials.c.id == bindparam("trial"), trials.c.status == TrialStatus.QUEUED.value)
    .values(
        {
            name: bindparam(f"new_{name}")
            for name in ("status", "started_at", "folder", *leases.COLUMNS)
        }
    )
)


def claim(connection: Connection, trial_id: int, lease: Lease, folder: str) -> datetime:
    """QUEUED -> RUNNING; returns the time that is stored as its start.

    Raises:
        IllegalTransition: it is not queued (another controller was faster, or it has ended).
    """
    now = datetime.now(UTC)
    values = {"status": TrialStatus.RUNNING.value, "started_at": now, "folder": folder}
    values |= leases.to_columns(lease)
    change = {f"new_{name}": value for name, value in values.items()} | {"trial": trial_id}
    if connection.execute(_CLAIM, change).rowcount != 1:
        raise refused(connection, trial_id, "claimed", TrialStatus.QUEUED)
    return now


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
