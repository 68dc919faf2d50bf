"""What a trial leaves besides its summary: steps, ranks, stages, collectives, failures."""

from sqlalchemy import (
    Boolean,
    Column,
    Integer,
    PrimaryKeyConstraint,
    Table,
    Text,
)

from results_db.columns import Float64, Int64
from results_db.tables.base import metadata, trial_key

steps = Table(
    "steps",
    metadata,
    trial_key(),
    Column("step", Integer, nullable=False),
    Column("is_warmup", Boolean, nullable=False),
    Column("step_time_s", Float64, nullable=False),
    Column("loss", Float64),
    Column("loss_nonfinite", Text, comment="nan, inf or -inf when loss is NULL for it"),
    Column("tokens", Int64, nullable=False),
    PrimaryKeyConstraint("trial_id", "step"),
    sqlite_with_rowid=False,
)

ranks = Table(
    "ranks",
    metadata,
    trial_key(),
    Column("rank", Integer, nullable=False),
    Column("hostname", Text, nullable=False),
    Column("device", Text, nullable=False),
    Column("layers", Text, nullable=False, comment="decoder layers held, e.g. 0,1,2"),
    Column("num_parameters", Int64, nullable=False),
    Column("peak_memory_bytes", Int64, nullable=False),
    Column("state_memory_bytes", Int64, nullable=False),
    PrimaryKeyConstraint("trial_id", "rank"),
    sqlite_with_rowid=False,
)

rank_coordinates = Table(
    "rank_coordinates",
    metadata,
    trial_key(),
    Column("rank", Integer, nullable=False),
    Column("axis", Text, nullable=False, comment="mesh axis: dp, tp, pp, ..."),
    Column("coordinate", Integer, nullable=False),
    PrimaryKeyConstraint("trial_id", "rank", "axis"),
    sqlite_with_rowid=False,
)

rank_stages = Table(
    "rank_stages",
    metadata,
    trial_key(),
    Column("rank", Integer, nullable=False),
    Column("stage", Integer, nullable=False),
    PrimaryKeyConstraint("trial_id", "rank", "stage"),
    sqlite_with_rowid=False,
)

breakdowns = Table(
    "breakdowns",
    metadata,
    trial_key(),
    Column("rank", Integer, nullable=False),
    Column("part", Text, nullable=False, comment="forward, backward, bubble, ..."),
    Column("time_s", Float64, comment="of one step"),
    PrimaryKeyConstraint("trial_id", "rank", "part"),
    sqlite_with_rowid=False,
)

collectives = Table(
    "collectives",
    metadata,
    trial_key(),
    Column("rank", Integer, nullable=False),
    Column("collective", Text, nullable=False),
    Column("calls", Float64, comment="of one step"),
    Column("bytes", Float64),
    Column("seconds", Float64),
    Column("other", Text, comment="further quantities, JSON"),
    PrimaryKeyConstraint("trial_id", "rank", "collective"),
    sqlite_with_rowid=False,
)

timeline = Table(
    "timeline",
    metadata,
    trial_key(),
    Column("rank", Integer, nullable=False),
    Column("position", Integer, nullable=False),
    Column("op", Text, nullable=False),
    Column("micro_batch", Integer, nullable=False),
    Column("stage", Integer, nullable=False),
    Column("start_s", Float64, nullable=False),
    Column("end_s", Float64, nullable=False),
    PrimaryKeyConstraint("trial_id", "rank", "position"),
    sqlite_with_rowid=False,
)

failure_reports = Table(
    "failure_reports",
    metadata,
    trial_key(),
    Column("position", Integer, nullable=False, comment="0 is the cause, later ones followed"),
    Column("kind", Text, nullable=False),
    Column("phase", Text, nullable=False),
    Column("message", Text, nullable=False),
    Column("rank", Integer),
    Column("stage", Integer),
    Column("step", Integer),
    Column("traceback", Text, nullable=False),
    Column("peak_memory_bytes", Int64),
    PrimaryKeyConstraint("trial_id", "position"),
    sqlite_with_rowid=False,
)
