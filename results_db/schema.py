"""The tables. Units are in the names: `_s` seconds, `_bytes` bytes, `_flops` operations.

Laws that hold in every column: times are UTC, floats are finite (a loss that is not finite is NULL
with its kind in `loss_nonfinite`), integers have 64 bits, booleans are real booleans.

`study_configs` is the one denormalised table: a row per configuration of a study with its median
over all completed trials and the interval of that median, kept in the transaction that finishes a
trial, so that a leaderboard is a walk over an index and not an aggregation of all trials.
"""

from sqlalchemy import Boolean as Bool
from sqlalchemy import (
    CheckConstraint,
    Column,
    ForeignKey,
    Index,
    Integer,
    MetaData,
    PrimaryKeyConstraint,
    Table,
    Text,
    UniqueConstraint,
    text,
)

from results_db.columns import Float64, Int64, UtcDateTime
from results_db.knobs import KNOBS
from results_db.records import Purpose, StudyStatus, TrialStatus

SCHEMA_VERSION = "0001"
"""Newest migration; what `tuner db info` prints and `alembic_version` holds."""

metadata = MetaData(
    naming_convention={
        "ix": "ix_%(table_name)s_%(column_0_N_name)s",
        "uq": "uq_%(table_name)s_%(column_0_N_name)s",
        "ck": "ck_%(table_name)s_%(constraint_name)s",
        "fk": "fk_%(table_name)s_%(column_0_name)s",
        "pk": "pk_%(table_name)s",
    }
)


def _one_of(column: str, values: list[str]) -> CheckConstraint:
    """A column that takes these words only."""
    words = ", ".join(f"'{value}'" for value in values)
    return CheckConstraint(f"{column} IN ({words})", name=f"{column}_known")


def _trial_fk(*, is_primary: bool = False) -> "Column[int]":
    reference = ForeignKey("trials.id", ondelete="CASCADE")
    return Column("trial_id", Int64, reference, primary_key=is_primary, nullable=False)


def _study_fk() -> "Column[int]":
    return Column("study_id", Int64, ForeignKey("studies.id", ondelete="CASCADE"), nullable=False)


models = Table(
    "models",
    metadata,
    Column("id", Int64, primary_key=True),
    Column("name", Text, nullable=False),
    Column("family", Text),
    Column("num_parameters", Int64),
    Column("num_layers", Int64),
    Column("hidden_size", Int64),
    Column("num_heads", Int64),
    Column("num_kv_heads", Int64),
    Column("head_dim", Int64),
    Column("ffn_size", Int64),
    Column("vocab_size", Int64),
    Column("max_positions", Int64),
    Column("num_experts", Int64),
    Column("experts_per_token", Int64),
    Column("spec", Text, nullable=False, comment="all fields, JSON"),
    Column("spec_hash", Text, nullable=False, unique=True),
)

clusters = Table(
    "clusters",
    metadata,
    Column("id", Int64, primary_key=True),
    Column("name", Text, nullable=False),
    Column("device_kind", Text),
    Column("device_name", Text),
    Column("num_nodes", Int64),
    Column("devices_per_node", Int64),
    Column("memory_bytes", Int64, comment="of one device"),
    Column("memory_bytes_per_s", Float64),
    Column("nics_per_node", Int64),
    Column("price_per_device_hour", Float64),
    Column("spec", Text, nullable=False, comment="all fields, JSON"),
    Column("spec_hash", Text, nullable=False, unique=True),
)

studies = Table(
    "studies",
    metadata,
    Column("id", Int64, primary_key=True),
    Column("uuid", Text, nullable=False, unique=True, comment="the same in every copy"),
    Column("name", Text, nullable=False, unique=True),
    Column("status", Text, nullable=False),
    Column("objective_metric", Text, nullable=False),
    Column("objective_direction", Text, nullable=False),
    Column("searcher", Text, nullable=False),
    Column("launcher", Text, nullable=False),
    Column("seed", Int64, nullable=False),
    Column("max_trials", Int64),
    Column("num_legal_points", Int64),
    Column("model_id", Int64, ForeignKey("models.id"), nullable=False, index=True),
    Column("cluster_id", Int64, ForeignKey("clusters.id"), nullable=False, index=True),
    Column("sequence_length", Int64),
    Column("global_batch_size", Int64),
    Column("training_dtype", Text),
    Column("workload", Text),
    Column("optimizer", Text),
    Column("learning_rate", Float64),
    Column("training_spec", Text, nullable=False, comment="all fields, JSON"),
    Column("resolved_config", Text, nullable=False),
    Column("config_hash", Text, nullable=False),
    Column("created_at", UtcDateTime, nullable=False),
    Column("finished_at", UtcDateTime),
    Column("num_trials", Int64, nullable=False, server_default=text("0"),
           comment="numbers given so far"),
    Column("lease_host", Text, comment="the controller that runs the study now"),
    Column("lease_pid", Int64),
    Column("lease_process_started_at", UtcDateTime),
    Column("lease_heartbeat_at", UtcDateTime),
    _one_of("status", [status.value for status in StudyStatus]),
    _one_of("objective_direction", ["maximize", "minimize"]),
)  # fmt: skip

provenance = Table(
    "provenance",
    metadata,
    _study_fk(),
    Column("topic", Text, nullable=False, comment="git, versions, host, devices, ..."),
    Column("name", Text, nullable=False, comment="empty when the topic is one value"),
    Column("value", Text),
    Column("kind", Text, nullable=False, comment="type of the value"),
    PrimaryKeyConstraint("study_id", "topic", "name"),
    _one_of("kind", ["text", "json"]),
    sqlite_with_rowid=False,
)

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
    _study_fk(),
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
    _one_of("status", [status.value for status in TrialStatus]),
    _one_of("purpose", [purpose.value for purpose in Purpose]),
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
    _trial_fk(is_primary=True),
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

study_configs = Table(
    "study_configs",
    metadata,
    _study_fk(),
    Column("config_id", Int64, ForeignKey("parallel_configs.id"), nullable=False, index=True),
    Column("num_completed", Int64, nullable=False, server_default=text("0")),
    Column("tokens_per_s", Float64, comment="median over the completed trials"),
    Column("tokens_per_s_low", Float64, comment="interval of that median"),
    Column("tokens_per_s_high", Float64),
    Column("step_time_s", Float64, comment="median over the completed trials"),
    Column("peak_memory_bytes", Int64, comment="largest over the completed trials"),
    Column("mfu", Float64, comment="median over the completed trials"),
    PrimaryKeyConstraint("study_id", "config_id"),
    Index(None, "study_id", "tokens_per_s"),
    Index(None, "study_id", "tokens_per_s_low"),
    sqlite_with_rowid=False,
)

steps = Table(
    "steps",
    metadata,
    _trial_fk(),
    Column("step", Integer, nullable=False),
    Column("is_warmup", Bool, nullable=False),
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
    _trial_fk(),
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
    _trial_fk(),
    Column("rank", Integer, nullable=False),
    Column("axis", Text, nullable=False, comment="mesh axis: dp, tp, pp, ..."),
    Column("coordinate", Integer, nullable=False),
    PrimaryKeyConstraint("trial_id", "rank", "axis"),
    sqlite_with_rowid=False,
)

rank_stages = Table(
    "rank_stages",
    metadata,
    _trial_fk(),
    Column("rank", Integer, nullable=False),
    Column("stage", Integer, nullable=False),
    PrimaryKeyConstraint("trial_id", "rank", "stage"),
    sqlite_with_rowid=False,
)

breakdowns = Table(
    "breakdowns",
    metadata,
    _trial_fk(),
    Column("rank", Integer, nullable=False),
    Column("part", Text, nullable=False, comment="forward, backward, bubble, ..."),
    Column("time_s", Float64, comment="of one step"),
    PrimaryKeyConstraint("trial_id", "rank", "part"),
    sqlite_with_rowid=False,
)

collectives = Table(
    "collectives",
    metadata,
    _trial_fk(),
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
    _trial_fk(),
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
    _trial_fk(),
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

predictions = Table(
    "predictions",
    metadata,
    _study_fk(),
    Column("config_key", Text, nullable=False),
    Column("model_name", Text, nullable=False, comment="of the cost model"),
    Column("step_time_s", Float64),
    Column("step_time_low_s", Float64, comment="low..high bound 90 %"),
    Column("step_time_high_s", Float64),
    Column("peak_memory_bytes", Float64),
    Column("probability_fits", Float64),
    PrimaryKeyConstraint("study_id", "config_key", "model_name"),
    sqlite_with_rowid=False,
)

untried_points = Table(
    "untried_points",
    metadata,
    _study_fk(),
    Column("config_id", Int64, ForeignKey("parallel_configs.id"), nullable=False),
    Column("rule", Text, nullable=False),
    Column("reason", Text, nullable=False),
    PrimaryKeyConstraint("study_id", "config_id", "rule"),
    sqlite_with_rowid=False,
)

schema_versions = Table(
    "alembic_version", metadata, Column("version_num", Text, primary_key=True)
)  # the name that Alembic looks for
