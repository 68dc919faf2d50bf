"""Studies and what is known of their points: inputs, provenance, medians, predictions."""

from sqlalchemy import (
    Boolean,
    Column,
    ForeignKey,
    Index,
    PrimaryKeyConstraint,
    Table,
    Text,
    false,
    text,
)

from results_db.columns import Float64, Int64, UtcDateTime
from results_db.records import StudyStatus
from results_db.tables.base import metadata, one_of, study_key

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
    Column("imported_from", Text, comment="the tool whose results these are, when not ours"),
    one_of("status", [status.value for status in StudyStatus]),
    one_of("objective_direction", ["maximize", "minimize"]),
)  # fmt: skip

provenance = Table(
    "provenance",
    metadata,
    study_key(),
    Column("topic", Text, nullable=False, comment="git, versions, host, devices, ..."),
    Column("name", Text, nullable=False, comment="empty when the topic is one value"),
    Column("value", Text),
    Column("kind", Text, nullable=False, comment="type of the value"),
    PrimaryKeyConstraint("study_id", "topic", "name"),
    one_of("kind", ["text", "json"]),
    sqlite_with_rowid=False,
)

study_tags = Table(
    "study_tags",
    metadata,
    study_key(),
    Column("tag", Text, nullable=False),
    PrimaryKeyConstraint("study_id", "tag"),
    sqlite_with_rowid=False,
)

predictions = Table(
    "predictions",
    metadata,
    study_key(),
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
    study_key(),
    Column("config_id", Int64, ForeignKey("parallel_configs.id"), nullable=False),
    Column("rule", Text, nullable=False),
    Column("reason", Text, nullable=False),
    PrimaryKeyConstraint("study_id", "config_id", "rule"),
    sqlite_with_rowid=False,
)

study_configs = Table(
    "study_configs",
    metadata,
    study_key(),
    Column("config_id", Int64, ForeignKey("parallel_configs.id"), nullable=False, index=True),
    Column("num_completed", Int64, nullable=False, server_default=text("0")),
    Column("tokens_per_s", Float64, comment="median over the completed trials"),
    Column("tokens_per_s_low", Float64, comment="interval of that median"),
    Column("tokens_per_s_high", Float64),
    Column("step_time_s", Float64, comment="median over the completed trials"),
    Column("peak_memory_bytes", Int64, comment="largest over the completed trials"),
    Column("mfu", Float64, comment="median over the completed trials"),
    Column("first_trial", Int64, comment="number of the first completed trial"),
    Column(
        "is_first",
        Boolean,
        nullable=False,
        server_default=false(),
        comment="whether the position is 1",
    ),
    PrimaryKeyConstraint("study_id", "config_id"),
    Index(
        "ix_study_configs_first",
        "study_id",
        sqlite_where=text("is_first"),
        postgresql_where=text("is_first"),
    ),
    Index(None, "study_id", "tokens_per_s"),
    Index(None, "study_id", "tokens_per_s_low"),
    Index(None, "study_id", "tokens_per_s_high"),
    sqlite_with_rowid=False,
)
