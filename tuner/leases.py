"""Who works on what: leases of controllers, and whether their holder is still alive."""

import os
import socket
from collections.abc import Iterable
from datetime import UTC, datetime, timedelta
from typing import ClassVar

import psutil

from results_db.leases import same_owner
from results_db.records import Lease, TrialRecord, TrialStatus, TrialSummary
from results_db.store import Store
from tuner.errors import StorageProblem

LEASE_TIMEOUT_S = 60.0
HEARTBEAT_S = 5.0
"""How often a controller says that it lives."""


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


def abandoned(rows: Iterable[TrialSummary], own: Lease) -> list[TrialRecord]:
    """Of rows that this process does not run: running trials whose owner is dead or is itself."""
    now = datetime.now(UTC)
    return [
        row.trial
        for row in rows
        if row.trial.status is TrialStatus.RUNNING
        and (
            row.trial.lease is None
            or same_owner(row.trial.lease, own)
            or lease_is_dead(row.trial.lease, now)
        )
    ]


class StudyHold:
    """A controller's hold on its study: taken by one at a time, kept by heartbeats, given up.

    Args:
        store: where the study is.
        study_id: which one.
        name: its name, for messages.
        lease: of the controller.
    """

    _held_here: ClassVar[set[tuple[str, int]]] = set()
    """Studies that this process holds: a lease alone cannot tell two controllers in one process."""

    def __init__(self, store: Store, study_id: int, name: str, lease: Lease) -> None:
        self._store, self._study_id, self._name, self._lease = store, study_id, name, lease
        self._key = (store.url, study_id)

    def take(self) -> None:
        """Become the study's controller; raises `StorageProblem` while another one lives."""
        holder = self._store.study_lease(self._study_id)
        is_left = holder is not None and same_owner(holder, self._lease)
        is_free = is_left or lease_is_dead(holder, datetime.now(UTC))
        if self._key in self._held_here or (holder is not None and not is_free):
            who = holder or self._lease
            raise StorageProblem(
                f"study {self._name!r} is being run by process {who.pid} on {who.host}",
                hint="wait for it, or stop it first",
            )
        self._store.claim_study(self._study_id, self._lease, takeover=holder is not None)
        self._held_here.add(self._key)

    def beat(self, now: datetime) -> None:
        """Say that the controller lives; raises `IllegalTransition` once another one took over."""
        self._store.heartbeat_study(self._study_id, now, self._lease)

    def drop(self) -> None:
        """Stop holding it, without a word to a database that may be away."""
        self._held_here.discard(self._key)

    def release(self) -> None:
        """Give the study up."""
        self.drop()
        self._store.release_study(self._study_id, self._lease)


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
