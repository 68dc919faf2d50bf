"""All that the figures and the report need of one study, read in one transaction.

Trials come as slim rows and not as records: a figure needs a dozen of their sixty columns, and a
study may hold a hundred thousand of them. Details (ranks, stages, timeline) are read for the
leaders alone.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from functools import cached_property
from statistics import median
from typing import Any

from sqlalchemy import Connection, func, select

from results_db import knobs as knob_columns
from results_db.queries import LeaderboardRow, leaderboard
from results_db.records import PredictionRow, StudyRecord
from results_db.schema import (
    failure_reports,
    measurements,
    parallel_configs,
    trials,
    untried_points,
)
from results_db.store import Store
from tuner.web.leader_details import LeaderDetails, read_leaders

NUM_LEADERS = 8
"""Configurations whose ranks, stages and timeline are read."""


@dataclass(frozen=True, slots=True)
class TrialPoint:
    """One trial as figures see it; times UTC, `_s` seconds, `_bytes` bytes."""

    trial_id: int
    number: int
    config_key: str
    status: str
    purpose: str
    repeat: int
    source: str
    started_at: datetime | None
    finished_at: datetime | None
    wall_s: float | None
    tokens_per_s: float | None
    tokens_per_s_low: float | None
    tokens_per_s_high: float | None
    step_time_s: float | None
    step_time_iqr_s: float | None
    peak_memory_bytes: int | None
    mfu: float | None
    overhead_s: float | None
    failure_kind: str | None
    failure_phase: str | None
    failure_message: str | None
    failure_memory_bytes: int | None

    @property
    def is_finished(self) -> bool:
        """Whether the trial has ended, well or not."""
        return self.status not in ("queued", "running")


@dataclass(frozen=True, slots=True)
class ConfigPoint:
    """A configuration that any trial of the study ran."""

    config_key: str
    label: str
    world_size: int
    knobs: Mapping[str, Any]


@dataclass(frozen=True, slots=True)
class UntriedGroup:
    """Points that one rule kept from running."""

    rule: str
    count: int
    example: str
    """Label of one of them."""
    reason: str
    """The reason of that one."""
    is_legal: bool = True
    """Whether they could have run; false of points that a rule of legality refuses."""


@dataclass(frozen=True, kw_only=True, eq=False)
class StudyData:
    """One study as it was at one moment; equal only to itself, so that figures may keep results."""

    study: StudyRecord
    trials: Sequence[TrialPoint]
    """By number."""
    configs: Mapping[str, ConfigPoint]
    """By `config_key`."""
    leaderboard: Sequence[LeaderboardRow]
    """By position, then speed; ties share a position."""
    predictions: Sequence[PredictionRow]
    untried: Sequence[UntriedGroup]
    """Legal points first, then those refused; the largest group of each first."""
    leaders: Sequence[LeaderDetails]
    """Details of the fastest configurations, in the leaderboard's order."""
    pipelined: LeaderDetails | None
    """Details of the fastest configuration with more than one pipeline rank."""

    @property
    def name(self) -> str:
        """The study's name."""
        return self.study.name

    @property
    def is_simulated(self) -> bool:
        """Whether a cost model played the machine."""
        return self.study.launcher == "simulated"

    @property
    def is_kernel(self) -> bool:
        """Whether the built-in kernel ran the trials, and neither a user's trainer nor a tool."""
        return bool(self.study.section("model")) and not self.study.section("trainer")

    @property
    def best(self) -> LeaderboardRow | None:
        """The first row of the leaderboard, if any trial gave a number."""
        return self.leaderboard[0] if self.leaderboard else None

    @property
    def memory_limit_bytes(self) -> float | None:
        """Memory of one device, or the launcher's limit on a rank where that is lower."""
        known = [
            float(value)
            for value in (self.study.cluster.get("memory_bytes"), self.rank_limit_bytes)
            if isinstance(value, int | float) and value > 0
        ]
        return min(known) if known else None

    @cached_property
    def rank_limit_bytes(self) -> float | None:
        """`launcher.memory_limit_gib` of the study file in bytes."""
        gib = self.study.section("launcher").get("memory_limit_gib")
        return float(gib) * 2**30 if isinstance(gib, int | float) else None

    @cached_property
    def median_tokens_per_s(self) -> float | None:
        """Throughput of the configuration in the middle."""
        speeds = [row.tokens_per_s for row in self.leaderboard]
        return median(speeds) if speeds else None

    @cached_property
    def baseline(self) -> LeaderboardRow | None:
        """The study's baseline, where it has one that ran."""
        keys = {trial.config_key for trial in self.trials if trial.purpose == "baseline"}
        return next((row for row in self.leaderboard if row.config_key in keys), None)

    @cached_property
    def varying_knobs(self) -> tuple[str, ...]:
        """Knobs that differ between the measured configurations, in the table's order."""
        return tuple(
            name
            for name in knob_columns.KNOB_NAMES
            if len({row.knobs[name] for row in self.leaderboard}) > 1
        )

    def label(self, config_key: str) -> str:
        """The label of a configuration; its key where it never ran."""
        config = self.configs.get(config_key)
        return config.label if config else config_key


def load_study_data(store: Store, study: int | str, num_leaders: int = NUM_LEADERS) -> StudyData:
    """Read a study for its figures: tens of milliseconds per thousand trials.

    Args:
        store: an open database, read-only or not.
        study: name or id.
        num_leaders: how many of the fastest configurations are read with their ranks.

    Raises:
        NotFound: there is no such study.
    """
    record = store.get_study(study)
    study_id = record.id or 0
    board = leaderboard(store, study_id)
    pipelined = next((row for row in board if row.knobs["pp"] > 1), None)
    wanted = [*board[:num_leaders], *([pipelined] if pipelined else [])]
    numbers = {row.config_key: row.trial_number for row in wanted}
    with store.database.read() as connection:
        points = _trials(connection, study_id)
        ids = {point.number: point.trial_id for point in points}
        details = read_leaders(
            connection, {key: (number, ids[number]) for key, number in numbers.items()}
        )
        return StudyData(
            study=record,
            trials=points,
            configs=_configs(connection, study_id),
            leaderboard=board,
            predictions=_predictions(connection, study_id),
            untried=[*_untried(connection, study_id), *_refused(record)],
            leaders=[details[row.config_key] for row in board[:num_leaders]],
            pipelined=details[pipelined.config_key] if pipelined else None,
        )


def _trials(connection: Connection, study_id: int) -> list[TrialPoint]:
    t, m, f = trials.c, measurements.c, failure_reports.c
    query = (
        select(
            t.id, t.number, parallel_configs.c.config_key, t.status, t.purpose, t.repeat, t.source,
            t.started_at, t.finished_at, t.wall_s, m.tokens_per_s, m.tokens_per_s_low,
            m.tokens_per_s_high, m.step_time_s, m.step_time_iqr_s, m.peak_memory_bytes, m.mfu,
            m.overhead_s, f.kind, f.phase, f.message, f.peak_memory_bytes,
        )
        .select_from(trials)
        .join(parallel_configs, parallel_configs.c.id == t.config_id)
        .outerjoin(measurements, m.trial_id == t.id)
        .outerjoin(failure_reports, (f.trial_id == t.id) & (f.position == 0))
        .where(t.study_id == study_id)
        .order_by(t.number)
    )  # fmt: skip
    return [TrialPoint(*tuple(row)) for row in connection.execute(query)]


def _configs(connection: Connection, study_id: int) -> dict[str, ConfigPoint]:
    ran = select(trials.c.config_id).where(trials.c.study_id == study_id)
    query = select(parallel_configs).where(parallel_configs.c.id.in_(ran))
    return {
        row["config_key"]: ConfigPoint(
            row["config_key"], row["label"], row["world_size"], knob_columns.from_columns(row)
        )
        for row in connection.execute(query).mappings()
    }


def _predictions(connection: Connection, study_id: int) -> list[PredictionRow]:
    from results_db.detail_rows import read_predictions

    return read_predictions(connection, study_id)


def _untried(connection: Connection, study_id: int) -> list[UntriedGroup]:
    """Rules with how many points each kept from running: few rows, however many points."""
    u, c = untried_points.c, parallel_configs.c
    groups = (
        select(u.rule, func.count().label("count"), func.min(u.config_id).label("config_id"))
        .where(u.study_id == study_id)
        .group_by(u.rule)
        .subquery()
    )
    query = (
        select(groups.c.rule, groups.c.count, c.label, u.reason)
        .join(c.id.table, c.id == groups.c.config_id)
        .join(
            untried_points,
            (u.study_id == study_id)
            & (u.config_id == groups.c.config_id)
            & (u.rule == groups.c.rule),
        )
        .order_by(groups.c.count.desc(), groups.c.rule)
    )
    return [UntriedGroup(*row) for row in connection.execute(query)]


def _refused(record: StudyRecord) -> list[UntriedGroup]:
    """Points that are not legal, by rule, as the study counted them when it was made."""
    found = record.provenance.get("refusals")
    rows = [row for row in found if isinstance(row, Mapping)] if isinstance(found, list) else []
    groups = [
        UntriedGroup(str(row.get("rule")), int(row.get("num_points") or 0), "",
                     str(row.get("example") or ""), is_legal=False)
        for row in rows
    ]  # fmt: skip
    return sorted(groups, key=lambda group: -group.count)
