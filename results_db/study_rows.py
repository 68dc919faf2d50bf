"""Studies: rows to records and back. Every function works in the caller's transaction."""

import uuid
from collections.abc import Mapping
from datetime import UTC, datetime
from typing import Any

from sqlalchemy import Connection, RowMapping, Select, insert, select, update

from results_db import leases
from results_db.bulk import insert_rows, intern
from results_db.errors import AlreadyExists, Busy, IllegalTransition, NotFound
from results_db.records import Lease, StudyRecord, StudyStatus
from results_db.schema import clusters, models, provenance, studies
from results_db.values import content_hash, from_json, real_number, to_json, whole_number

_MODEL_NUMBERS = (
    "num_parameters", "num_layers", "hidden_size", "num_heads", "num_kv_heads", "head_dim",
    "ffn_size", "vocab_size", "max_positions", "num_experts", "experts_per_token",
)  # fmt: skip
_CLUSTER_NUMBERS = ("num_nodes", "devices_per_node", "memory_bytes", "nics_per_node")
_PLAIN = (
    "name", "objective_metric", "objective_direction", "searcher", "launcher", "seed", "max_trials",
    "num_legal_points", "resolved_config", "config_hash", "finished_at",
)  # fmt: skip
"""Fields that are stored as they are."""


def _text(value: Any) -> str | None:
    return None if value is None else str(value)


def _model_id(connection: Connection, model: Mapping[str, Any]) -> int:
    spec = to_json(model)
    row: dict[str, Any] = {name: whole_number(model.get(name)) for name in _MODEL_NUMBERS}
    row |= {"name": str(model.get("name", "?")), "family": _text(model.get("family"))}
    return intern(
        connection, models, "spec_hash", row | {"spec": spec, "spec_hash": content_hash(spec)}
    )


def _cluster_id(connection: Connection, cluster: Mapping[str, Any]) -> int:
    spec = to_json(cluster)
    row: dict[str, Any] = {name: whole_number(cluster.get(name)) for name in _CLUSTER_NUMBERS}
    for name in ("memory_bytes_per_s", "price_per_device_hour"):
        row[name] = real_number(cluster.get(name))
    for name in ("device_kind", "device_name"):
        row[name] = _text(cluster.get(name))
    row["name"] = str(cluster.get("name", "?"))
    return intern(
        connection, clusters, "spec_hash", row | {"spec": spec, "spec_hash": content_hash(spec)}
    )


def create(connection: Connection, study: StudyRecord, study_uuid: str | None = None) -> int:
    """Insert a study; returns its id.

    Raises:
        AlreadyExists: the name is taken.
    """
    taken = select(studies.c.id).where(studies.c.name == study.name)
    if connection.execute(taken).first() is not None:
        raise AlreadyExists(
            f"There is a study {study.name!r} already", "resume it or choose a name"
        )
    training = study.training
    values = {
        **{name: getattr(study, name) for name in _PLAIN},
        "uuid": study_uuid or str(uuid.uuid4()),
        "status": study.status.value,
        "model_id": _model_id(connection, study.model),
        "cluster_id": _cluster_id(connection, study.cluster),
        "sequence_length": whole_number(training.get("sequence_length")),
        "global_batch_size": whole_number(training.get("global_batch_size")),
        "training_dtype": _text(training.get("dtype")),
        "workload": _text(training.get("workload")),
        "optimizer": _text(training.get("optimizer")),
        "learning_rate": real_number(training.get("learning_rate")),
        "training_spec": to_json(training),
        "created_at": study.created_at or datetime.now(UTC),
    }
    study_id = int(connection.execute(insert(studies).returning(studies.c.id), values).scalar_one())
    _add_provenance(connection, study_id, study.provenance)
    return study_id


def _add_provenance(connection: Connection, study_id: int, facts: Mapping[str, Any]) -> None:
    rows: list[tuple[Any, ...]] = []
    for topic, value in facts.items():
        named = value if isinstance(value, Mapping) and value and "" not in value else {"": value}
        for name, item in named.items():
            is_text = isinstance(item, str)
            stored = item if is_text else to_json(item)
            rows.append((study_id, topic, str(name), stored, "text" if is_text else "json"))
    insert_rows(connection, provenance, ("study_id", "topic", "name", "value", "kind"), rows)


def _read_provenance(connection: Connection, study_ids: list[int]) -> dict[int, dict[str, Any]]:
    facts: dict[int, dict[str, Any]] = {study_id: {} for study_id in study_ids}
    query = select(provenance)
    if len(study_ids) == 1:
        query = query.where(provenance.c.study_id == study_ids[0])
    for row in connection.execute(query).mappings():
        value = row["value"] if row["kind"] == "text" else from_json(row["value"])
        mine = facts.setdefault(row["study_id"], {})
        if row["name"]:
            mine.setdefault(row["topic"], {})[row["name"]] = value
        else:
            mine[row["topic"]] = value
    return facts


def _query() -> Select[Any]:
    return (
        select(studies, models.c.spec.label("model_spec"), clusters.c.spec.label("cluster_spec"))
        .join(models, studies.c.model_id == models.c.id)
        .join(clusters, studies.c.cluster_id == clusters.c.id)
    )


def _record(row: RowMapping, facts: Mapping[str, Any]) -> StudyRecord:
    return StudyRecord(
        **{name: row[name] for name in (*_PLAIN, "id", "created_at")},
        model=from_json(row["model_spec"]),
        cluster=from_json(row["cluster_spec"]),
        training=from_json(row["training_spec"]),
        provenance=facts,
        status=StudyStatus(row["status"]),
        lease=leases.from_columns(row),
    )


def find(connection: Connection, name_or_id: str | int) -> StudyRecord:
    """The study of this name or id.

    Raises:
        NotFound: there is none; the hint lists the names that exist.
    """
    column = studies.c.id if isinstance(name_or_id, int) else studies.c.name
    row = connection.execute(_query().where(column == name_or_id)).mappings().one_or_none()
    if row is None:
        raise unknown_study(connection, name_or_id)
    return _record(row, _read_provenance(connection, [row["id"]])[row["id"]])


def find_id(connection: Connection, name_or_id: str | int) -> int:
    """The id of a study; raises `NotFound`."""
    column = studies.c.id if isinstance(name_or_id, int) else studies.c.name
    found = connection.execute(
        select(studies.c.id).where(column == name_or_id)
    ).scalar_one_or_none()
    if found is None:
        raise unknown_study(connection, name_or_id)
    return int(found)


def unknown_study(connection: Connection, name_or_id: str | int) -> NotFound:
    """The error for a study that does not exist; its hint lists the latest names."""
    newest = select(studies.c.name).order_by(studies.c.id.desc()).limit(10)
    names = connection.execute(newest).scalars().all()
    hint = f"the latest studies are {', '.join(names)}" if names else "no study is stored yet"
    return NotFound(f"There is no study {name_or_id!r}", hint)


def find_all(connection: Connection) -> list[StudyRecord]:
    """All studies, oldest first."""
    rows = connection.execute(_query().order_by(studies.c.id)).mappings().all()
    facts = _read_provenance(connection, [row["id"] for row in rows]) if rows else {}
    return [_record(row, facts[row["id"]]) for row in rows]


def set_status(connection: Connection, study_id: int, status: StudyStatus) -> None:
    """Change a study's status; `finished_at` is set when it completes and cleared else."""
    finished_at = datetime.now(UTC) if status is StudyStatus.COMPLETED else None
    change = update(studies).where(studies.c.id == study_id)
    done = connection.execute(change.values(status=status.value, finished_at=finished_at))
    if done.rowcount != 1:
        raise unknown_study(connection, study_id)


def lock(connection: Connection, study_id: int) -> RowMapping:
    """Lock a study's row until the transaction ends: the first lock of a write on PostgreSQL."""
    query = select(studies).where(studies.c.id == study_id).with_for_update(key_share=True)
    row = connection.execute(query).mappings().one_or_none()
    if row is None:
        raise unknown_study(connection, study_id)
    return row


def claim(connection: Connection, study_id: int, lease: Lease, *, takeover: bool) -> None:
    """Make `lease` the owner of a study.

    Raises:
        Busy: another owner holds it and `takeover` is false.
    """
    held = leases.from_columns(lock(connection, study_id))
    if held is not None and not takeover and not leases.same_owner(held, lease):
        raise Busy(
            f"Another controller runs this study: process {held.pid} on {held.host}, last seen "
            f"{held.heartbeat_at:%Y-%m-%d %H:%M:%S} UTC", "stop it, or wait for it to end",
        )  # fmt: skip
    change = update(studies).where(studies.c.id == study_id).values(leases.to_columns(lease))
    connection.execute(change)


def holder(connection: Connection, study_id: int) -> Lease | None:
    """The lease of a study's controller, if one holds it."""
    query = select(studies).where(studies.c.id == study_id)
    row = connection.execute(query).mappings().one_or_none()
    if row is None:
        raise unknown_study(connection, study_id)
    return leases.from_columns(row)


def release(connection: Connection, study_id: int, lease: Lease | None) -> None:
    """Give a study up; with a lease only when it is the owner."""
    held = leases.from_columns(lock(connection, study_id))
    if held is None or (lease is not None and not leases.same_owner(held, lease)):
        return
    change = update(studies).where(studies.c.id == study_id).values(leases.to_columns(None))
    connection.execute(change)


def beat(connection: Connection, study_id: int, when: datetime, lease: Lease) -> None:
    """Record that a study's controller lives.

    Raises:
        IllegalTransition: another controller took the study over.
    """
    held = leases.from_columns(lock(connection, study_id))
    if held is None or not leases.same_owner(held, lease):
        raise IllegalTransition("Another controller took this study over", "stop this one")
    change = update(studies).where(studies.c.id == study_id).values(lease_heartbeat_at=when)
    connection.execute(change)
