"""How a running study stands, in a few cheap queries: what is watched once a second.

Nothing here walks over all trials in Python: a study may hold a hundred thousand of them.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime

from sqlalchemy import Connection, func, select

from results_db.records import StudyRecord, TrialStatus
from results_db.schema import (
    failure_reports,
    measurements,
    parallel_configs,
    study_configs,
    trials,
)
from results_db.store import Store

_NUM_RECENT = 5
_MOST_BESTS = 400
_CLAIM_S = 30.0


@dataclass(frozen=True, slots=True)
class RunningTrial:
    """A trial under way."""

    number: int
    label: str
    elapsed_s: float


@dataclass(frozen=True, slots=True)
class EndedTrial:
    """A trial that ended, with its throughput or why it has none."""

    number: int
    label: str
    status: str
    tokens_per_s: float | None
    failure: str
    message: str


@dataclass(frozen=True, kw_only=True)
class Pulse:
    """The state of a study at one moment; times in seconds."""

    study: str
    status: str
    is_simulated: bool
    counts: Mapping[str, int]
    """Trials by status."""
    num_searched: int
    """Finished configurations of the search, without baseline, repeats and retries."""
    max_trials: int | None
    best_tokens_per_s: float | None
    best_label: str | None
    bests: Sequence[float]
    """The best so far after each trial that raised it, the present one last."""
    running: Sequence[RunningTrial]
    recent: Sequence[EndedTrial]
    """Those that ended last, the newest first."""
    failures: Sequence[EndedTrial]
    """Those without a number that ended last, the newest first."""
    elapsed_s: float
    remaining_s: float | None
    """At the pace so far; none while nothing is known."""
    silent_s: float | None
    """Since the controller was last heard of; none without a controller."""

    @property
    def num_finished(self) -> int:
        """Trials in a terminal status."""
        return sum(n for status, n in self.counts.items() if TrialStatus(status).is_terminal)

    @property
    def is_over(self) -> bool:
        """Whether no controller runs the study any more."""
        if self.status != "running":
            return True
        # a new study is there for a moment before its controller has claimed it
        return self.silent_s is None and not self.running and self.elapsed_s > _CLAIM_S


def take_pulse(store: Store, study: int | str, now: datetime | None = None) -> Pulse:
    """How a study stands now.

    Raises:
        NotFound: there is no such study.
    """
    now = now or datetime.now(UTC)
    record = store.get_study(study)
    study_id = record.id or 0
    with store.database.read() as connection:
        counts = _counts(connection, study_id)
        searched = _num_searched(connection, study_id)
        best, label = _best(connection, study_id)
        return Pulse(
            study=record.name,
            status=record.status.value,
            is_simulated=record.launcher == "simulated",
            counts=counts,
            num_searched=searched,
            max_trials=_total(record),
            best_tokens_per_s=best,
            best_label=label,
            bests=_bests(connection, study_id),
            running=_running(connection, study_id, now),
            recent=_ended(connection, study_id, only_lost=False),
            failures=_ended(connection, study_id, only_lost=True),
            elapsed_s=_elapsed_s(record, now),
            remaining_s=_remaining_s(connection, record, searched, now),
            silent_s=_silent_s(record, now),
        )


def _total(record: StudyRecord) -> int | None:
    known = [n for n in (record.max_trials, record.num_legal_points) if n is not None]
    return min(known) if known else None


def _elapsed_s(record: StudyRecord, now: datetime) -> float:
    if record.created_at is None:
        return 0.0
    return max(0.0, ((record.finished_at or now) - record.created_at).total_seconds())


def _silent_s(record: StudyRecord, now: datetime) -> float | None:
    return None if record.lease is None else (now - record.lease.heartbeat_at).total_seconds()


def _counts(connection: Connection, study_id: int) -> dict[str, int]:
    query = (
        select(trials.c.status, func.count())
        .where(trials.c.study_id == study_id)
        .group_by(trials.c.status)
        .order_by(trials.c.status)
    )
    return {status: int(count) for status, count in connection.execute(query)}


_SEARCHED = (trials.c.purpose == "search") & (trials.c.repeat == 0) & (trials.c.attempt == 1)
_OPEN = ("queued", "running")


def _num_searched(connection: Connection, study_id: int) -> int:
    query = (
        select(func.count())
        .select_from(trials)
        .where(trials.c.study_id == study_id, _SEARCHED, trials.c.status.not_in(_OPEN))
    )
    return int(connection.execute(query).scalar_one())


def _best(connection: Connection, study_id: int) -> tuple[float | None, str | None]:
    query = (
        select(study_configs.c.tokens_per_s, parallel_configs.c.label)
        .join(parallel_configs, parallel_configs.c.id == study_configs.c.config_id)
        .where(study_configs.c.study_id == study_id)
        .order_by(study_configs.c.tokens_per_s.desc())
        .limit(1)
    )
    row = connection.execute(query).first()
    return (float(row[0]), str(row[1])) if row else (None, None)


def _bests(connection: Connection, study_id: int) -> list[float]:
    """The best first measurement so far at every rise; the database keeps the running maximum."""
    speed = measurements.c.tokens_per_s
    before = func.max(speed).over(order_by=(trials.c.finished_at, trials.c.number), rows=(None, -1))
    course = (
        select(trials.c.finished_at, trials.c.number, speed.label("speed"), before.label("before"))
        .join(measurements, measurements.c.trial_id == trials.c.id)
        .where(trials.c.study_id == study_id, trials.c.status == "completed", trials.c.repeat == 0)
        .subquery()
    )
    query = (
        select(course.c.speed)
        .where(course.c.before.is_(None) | (course.c.speed > course.c.before))
        .order_by(course.c.finished_at, course.c.number)
    )
    return [float(value) for value in connection.execute(query).scalars()][-_MOST_BESTS:]


def _running(connection: Connection, study_id: int, now: datetime) -> list[RunningTrial]:
    query = (
        select(trials.c.number, parallel_configs.c.label, trials.c.started_at)
        .join(parallel_configs, parallel_configs.c.id == trials.c.config_id)
        .where(trials.c.study_id == study_id, trials.c.status == "running")
        .order_by(trials.c.number)
    )
    return [
        RunningTrial(number, label, max(0.0, (now - (start or now)).total_seconds()))
        for number, label, start in connection.execute(query)
    ]


def _ended(connection: Connection, study_id: int, *, only_lost: bool) -> list[EndedTrial]:
    t, f = trials.c, failure_reports.c
    query = (
        select(
            t.number, parallel_configs.c.label, t.status, measurements.c.tokens_per_s, f.kind,
            f.message,
        )
        .join(parallel_configs, parallel_configs.c.id == t.config_id)
        .outerjoin(measurements, measurements.c.trial_id == t.id)
        .outerjoin(failure_reports, (f.trial_id == t.id) & (f.position == 0))
        .where(t.study_id == study_id, t.status.not_in(_OPEN))
        .order_by(t.number.desc())
        .limit(_NUM_RECENT)
    )  # fmt: skip
    if only_lost:
        query = query.where(measurements.c.trial_id.is_(None))
    return [
        EndedTrial(number, label, status, speed, kind or "", " ".join((message or "").split()))
        for number, label, status, speed, kind, message in connection.execute(query)
    ]


def _remaining_s(
    connection: Connection, record: StudyRecord, searched: int, now: datetime
) -> float | None:
    """Time for the rest of the search at the pace of all trials so far; repeats come on top."""
    total = _total(record)
    if record.status.value != "running" or total is None or not searched:
        return None
    first = select(func.min(trials.c.started_at)).where(trials.c.study_id == record.id)
    started = connection.execute(first).scalar_one()
    if started is None:
        return None
    elapsed_s = float((now - started).total_seconds())
    return max(0, total - searched) * elapsed_s / searched
