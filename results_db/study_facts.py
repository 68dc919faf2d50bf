"""Small facts of a study that a page shows again and again, each one cheap query."""

from collections.abc import Mapping
from dataclasses import dataclass
from datetime import datetime
from typing import Any

from sqlalchemy import Connection, Integer, and_, cast, func, select

from results_db.knobs import KNOBS, Knob
from results_db.records import PredictionRow
from results_db.schema import (
    failure_reports,
    parallel_configs,
    predictions,
    studies,
    study_configs,
    trials,
    untried_points,
)
from results_db.store import Store


@dataclass(frozen=True)
class Pulse:
    """What changes while a study runs; equal pulses mean that nothing did."""

    status: str
    counts: Mapping[str, int]
    """Trials by status."""
    last_finished_at: datetime | None
    num_untried: int

    @property
    def num_trials(self) -> int:
        """Trials of any status."""
        return sum(self.counts.values())

    @property
    def num_finished(self) -> int:
        """Trials that will not change again."""
        return self.num_trials - self.counts.get("queued", 0) - self.counts.get("running", 0)


def pulse(store: Store, study_id: int) -> Pulse:
    """How far a study is, in about 0.5 µs a trial."""
    counted = (
        select(trials.c.status, func.count(), func.max(trials.c.finished_at))
        .where(trials.c.study_id == study_id)
        .group_by(trials.c.status)
        .order_by(trials.c.status)
    )
    untried = select(func.count()).where(untried_points.c.study_id == study_id)
    with store.database.read() as connection:
        status = connection.execute(select(studies.c.status).where(studies.c.id == study_id))
        rows = connection.execute(counted).all()
        return Pulse(
            status=str(status.scalar_one_or_none() or ""),
            counts={name: count for name, count, _ in rows},
            last_finished_at=max((last for *_, last in rows if last), default=None),
            num_untried=int(connection.execute(untried).scalar_one()),
        )


def counts_by_study(store: Store) -> dict[int, dict[str, int]]:
    """Trials by status of every study that has any."""
    query = select(trials.c.study_id, trials.c.status, func.count()).group_by(
        trials.c.study_id, trials.c.status
    )
    found: dict[int, dict[str, int]] = {}
    with store.database.read() as connection:
        for study_id, status, count in connection.execute(query):
            found.setdefault(study_id, {})[status] = count
    return found


@dataclass(frozen=True)
class Reference:
    """What the speeds of a study are compared with; none where it has no such configuration."""

    median_tokens_per_s: float | None
    """Of the configuration in the middle."""
    baseline_tokens_per_s: float | None
    num_configs: int
    """Configurations with a number."""


def reference(store: Store, study_id: int) -> Reference:
    """Median and baseline of a study, read along an index."""
    speed, mine = study_configs.c.tokens_per_s, study_configs.c.study_id == study_id
    base = (
        select(speed)
        .join(trials, trials.c.config_id == study_configs.c.config_id)
        .where(mine, trials.c.study_id == study_id, trials.c.purpose == "baseline")
        .limit(1)
    )
    with store.database.read() as connection:
        count = int(connection.execute(select(func.count(speed)).where(mine)).scalar_one())
        return Reference(
            median_tokens_per_s=_median(connection, study_id, count),
            baseline_tokens_per_s=connection.execute(base).scalar(),
            num_configs=count,
        )


def _median(connection: Connection, study_id: int, count: int) -> float | None:
    if count == 0:
        return None
    speed = study_configs.c.tokens_per_s
    query = (
        select(speed)
        .where(study_configs.c.study_id == study_id, speed.is_not(None))
        .order_by(speed)
        .offset((count - 1) // 2)
        .limit(2 - count % 2)
    )
    middle = list(connection.execute(query).scalars())
    return float(sum(middle) / len(middle))


def knob_values(store: Store, study_id: int) -> dict[str, list[Any]]:
    """Column values of the knobs that differ between a study's trials, in order."""
    ran = parallel_configs.c.id.in_(
        select(trials.c.config_id).where(trials.c.study_id == study_id).distinct()
    )
    with store.database.read() as connection:
        ends = connection.execute(select(*(_ends(knob) for knob in KNOBS)).where(ran)).one()
        found = {}
        for knob, num_values in zip(KNOBS, ends, strict=True):
            if num_values > 1:
                column = parallel_configs.c[knob.name]
                rows = connection.execute(select(column).where(ran).distinct()).scalars()
                found[knob.name] = sorted(rows, key=lambda value: (value is not None, value))
    return found


def _ends(knob: Knob) -> Any:
    """2 or more when a knob has several values, without counting them."""
    column: Any = parallel_configs.c[knob.name]
    plain = cast(column, Integer) if knob.kind is bool else column
    several = func.min(plain) != func.max(plain)
    absent = and_(func.count(column) != func.count(), func.count(column) > 0)
    return 1 + cast(func.coalesce(several, False), Integer) + cast(absent, Integer)


def failure_kinds(store: Store, study_id: int) -> list[str]:
    """Kinds of the failures that ended trials of a study."""
    query = (
        select(failure_reports.c.kind)
        .distinct()
        .join(trials, trials.c.id == failure_reports.c.trial_id)
        .where(trials.c.study_id == study_id, failure_reports.c.position == 0)
        .order_by(failure_reports.c.kind)
    )
    with store.database.read() as connection:
        return list(connection.execute(query).scalars())


def predictions_of(store: Store, study_id: int, config_key: str) -> list[PredictionRow]:
    """What the cost models said of one configuration of a study."""
    p = predictions.c
    names = PredictionRow.__dataclass_fields__
    query = (
        select(*(p[name] for name in names))
        .where(p.study_id == study_id, p.config_key == config_key)
        .order_by(p.model_name)
    )
    with store.database.read() as connection:
        return [PredictionRow(**row) for row in connection.execute(query).mappings()]
