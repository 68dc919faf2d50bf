"""Configurations, trials and their measurements."""

from sqlalchemy import (
    Column,
    ForeignKey,
    Index,
    Integer,
    PrimaryKeyConstraint,
    Table,
    Text,
    UniqueConstraint,
    text,
)

from results_db.columns import Float64, Int64, UtcDateTime
from results_db.knobs import KNOBS
from results_db.records import Purpose, TrialStatus
from results_db.tables.base import metadata, one_of, study_key, trial_key

parallel_configs = Table(
    "parallel_configs",
    metadata,
    Column("id", Int64, primary_key=True),
    Column("config_key", Text, nullable=False, unique=True),
    Column("label", Text, nullable=False, comment="for people"),
    Column("world_size", Int64, nullable=False, comment="tp * cp * dp * pp"),
    *(knob.column() for knob in KNOBS),
)

trials = Table(
    "trials",
    metadata,
    Column("id", Int64, primary_key=True),
    study_key(),
    Column("number", Int64, nullable=False, comment="1, 2, 3 ... within the study"),
    Column("config_id", Int64, ForeignKey("parallel_configs.id"), nullable=False, index=True),
    Column("status", Text, nullable=False),
    Column("purpose", Text, nullable=False),
    Column("repeat", Int64, nullable=False),
    Column("attempt", Int64, nullable=False),
    Column("seed", Int64, nullable=False),
    Column("warmup_steps", Int64, nullable=False),
    Column("measured_steps", Int64, nullable=False),
    Column("source", Text, nullable=False, comment="what proposed it"),
    Column("queued_at", UtcDateTime, nullable=False),
    Column("started_at", UtcDateTime),
    Column("finished_at", UtcDateTime),
    Column("wall_s", Float64, comment="start to end"),
    Column("num_requeues", Integer, nullable=False, server_default=text("0")),
    Column("folder", Text),
    Column("lease_host", Text, comment="who runs it, while it runs"),
    Column("lease_pid", Int64),
    Column("lease_process_started_at", UtcDateTime),
    Column("lease_heartbeat_at", UtcDateTime),
    UniqueConstraint("study_id", "number"),
    UniqueConstraint("study_id", "config_id", "repeat", "attempt"),
    Index("ix_trials_open", "study_id", "status",
          sqlite_where=text("status IN ('queued', 'running')"),
          postgresql_where=text("status IN ('queued', 'running')")),
    one_of("status", [status.value for status in TrialStatus]),
    one_of("purpose", [purpose.value for purpose in Purpose]),
)  # fmt: skip

software = Table(
    "software",
    metadata,
    Column("id", Int64, primary_key=True),
    Column("versions_hash", Text, nullable=False, unique=True),
)

software_versions = Table(
    "software_versions",
    metadata,
    Column(
        "software_id", Int64, ForeignKey("software.id", ondelete="CASCADE"), nullable=False
    ),
    Column("package", Text, nullable=False),
    Column("version", Text, nullable=False),
    PrimaryKeyConstraint("software_id", "package"),
    sqlite_with_rowid=False,
)  # fmt: skip

measurements = Table(
    "measurements",
    metadata,
    trial_key(is_primary=True),
    Column("step_time_s", Float64, nullable=False),
    Column("step_time_iqr_s", Float64, nullable=False),
    Column("tokens_per_s", Float64, nullable=False),
    Column(
        "tokens_per_s_low", Float64, nullable=False, comment="interval of the median, lower end"
    ),
    Column("tokens_per_s_high", Float64, nullable=False),
    Column("tokens_per_step", Int64, nullable=False),
    Column("num_measured_steps", Int64, nullable=False),
    Column("num_microbatches", Int64, nullable=False),
    Column("num_parameters", Int64, nullable=False),
    Column("num_layers", Int64, nullable=False),
    Column("model_flops_per_step", Float64, nullable=False),
    Column("hardware_flops_per_step", Float64, nullable=False),
    Column("model_flops_per_s_per_device", Float64, nullable=False),
    Column("hardware_flops_per_s_per_device", Float64, nullable=False),
    Column("mfu", Float64),
    Column("peak_memory_bytes", Int64, nullable=False, comment="largest over ranks"),
    Column("final_loss", Float64),
    Column("loss_nonfinite", Text, comment="nan, inf or -inf when final_loss is NULL for it"),
    Column("startup_s", Float64, nullable=False),
    Column("overhead_s", Float64),
    Column("software_id", Int64, ForeignKey("software.id")),
)

trial_tags = Table(
    "trial_tags",
    metadata,
    trial_key(),
    Column("tag", Text, nullable=False),
    PrimaryKeyConstraint("trial_id", "tag"),
    sqlite_with_rowid=False,
)

notes = Table(
    "notes",
    metadata,
    Column("id", Int64, primary_key=True),
    Column(
        "study_id",
        Int64,
        ForeignKey("studies.id", ondelete="CASCADE"),
        nullable=False,
        index=True,
    ),
    Column("trial_id", Int64, ForeignKey("trials.id", ondelete="CASCADE"), index=True),
    Column("author", Text, nullable=False),
    Column("body", Text, nullable=False),
    Column("created_at", UtcDateTime, nullable=False),
)
