"""Who works on what: leases of controllers, and whether their holder is still alive."""

import os
import socket
from collections.abc import Iterable
from datetime import UTC, datetime, timedelta

import psutil

from results_db.records import Lease, TrialRecord

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


def time_spent_s(trials: Iterable[TrialRecord]) -> float:
    """Seconds that earlier controllers spent on a study, as its stored trials tell.

    Counted is the time in which a trial ran, overlaps once, and what passed between two trials up
    to `LEASE_TIMEOUT_S`; the pause between two controllers is not.
    """
    spans = sorted(
        (trial.started_at, trial.finished_at)
        for trial in trials
        if trial.started_at is not None
        and trial.finished_at is not None
        and trial.started_at <= trial.finished_at  # else the clock was set back meanwhile
    )
    spent_s = 0.0
    counted_to: datetime | None = None
    for start, end in spans:
        is_near = counted_to is not None and (
            (start - counted_to).total_seconds() <= LEASE_TIMEOUT_S
        )
        begin = counted_to if is_near and counted_to is not None else start
        if end > begin:
            spent_s += (end - begin).total_seconds()
            counted_to = end
    return spent_s
