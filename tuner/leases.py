"""Who works on what: leases of controllers, and whether their holder is still alive."""

import os
import socket
from datetime import UTC, datetime, timedelta

import psutil

from results_db.records import Lease

LEASE_TIMEOUT_S = 60.0


def own_lease() -> Lease:
    """A lease in the name of this process."""
    now = datetime.now(UTC)
    started = datetime.fromtimestamp(psutil.Process().create_time(), UTC)
    return Lease(
        host=socket.gethostname(), pid=os.getpid(), process_started_at=started, heartbeat_at=now
    )


def lease_is_dead(lease: Lease | None, now: datetime) -> bool:
    """Whether nobody works under `lease`: its process is gone (same host) or silent (another's)."""
    if lease is None:
        return True
    if lease.host != socket.gethostname():
        return now - lease.heartbeat_at > timedelta(seconds=LEASE_TIMEOUT_S)
    try:
        created = datetime.fromtimestamp(psutil.Process(lease.pid).create_time(), UTC)
    except psutil.Error:
        return True
    # A reused pid belongs to a process that started at another time.
    return abs((created - lease.process_started_at).total_seconds()) > 2.0
