"""Leases: who runs a trial or a study, and when that claim has died."""

from collections.abc import Callable, Mapping
from datetime import datetime
from typing import Any

from results_db.records import Lease

SILENCE_S = 120.0
"""A lease of another host is dead after this long without a heartbeat."""


def lease_is_dead(
    lease: Lease,
    now: datetime,
    host: str,
    pid_alive: Callable[[int, datetime], bool],
    silence_s: float = SILENCE_S,
) -> bool:
    """Whether the owner is gone.

    On the same host the process itself is looked at, because a stopped or swapping owner may be
    silent and alive. Elsewhere only the heartbeat tells.

    Args:
        lease: the claim to judge.
        now: the time to judge it at, zoned.
        host: name of the host that asks.
        pid_alive: whether the process of this number, started at this time, exists on `host`; the
            start time tells it from a later process of the same number.
        silence_s: heartbeats of other hosts older than this are those of the dead.
    """
    if lease.host == host:
        return not pid_alive(lease.pid, lease.process_started_at)
    return (now - lease.heartbeat_at).total_seconds() > silence_s


def same_owner(one: Lease, other: Lease) -> bool:
    """Whether two leases are of the same process; heartbeats may differ."""
    return (one.host, one.pid, one.process_started_at) == (
        other.host,
        other.pid,
        other.process_started_at,
    )


COLUMNS = ("lease_host", "lease_pid", "lease_process_started_at", "lease_heartbeat_at")


def to_columns(lease: Lease | None) -> dict[str, Any]:
    """The lease columns of a row; all NULL without a lease."""
    return {
        "lease_host": lease.host if lease else None,
        "lease_pid": lease.pid if lease else None,
        "lease_process_started_at": lease.process_started_at if lease else None,
        "lease_heartbeat_at": lease.heartbeat_at if lease else None,
    }


def from_columns(row: Mapping[Any, Any]) -> Lease | None:
    """The lease of a row, if any."""
    if row["lease_host"] is None:
        return None
    return Lease(
        host=row["lease_host"],
        pid=row["lease_pid"],
        process_started_at=row["lease_process_started_at"],
        heartbeat_at=row["lease_heartbeat_at"],
    )
