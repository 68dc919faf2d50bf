"""The first released schema: studies, trials, configurations and what was measured."""

import sqlalchemy as sa
from alembic import op

from results_db.columns import UtcDateTime

revision = "0001"
down_revision = None

INT64 = sa.BigInteger().with_variant(sa.Integer(), "sqlite")


def upgrade() -> None:
    """Make the tables."""
    op.create_table(
        "clusters",
        sa.Column("id", INT64, nullable=False),
        sa.Column("name", sa.Text(), nullable=False),
        sa.Column("device_kind", sa.Text()),
        sa.Column("device_name", sa.Text()),
        sa.Column("num_nodes", INT64),
        sa.Column("devices_per_node", INT64),
        sa.Column("memory_bytes", INT64),
        sa.Column("memory_bytes_per_s", sa.Double()),
        sa.Column("nics_per_node", INT64),
        sa.Column("price_per_device_hour", sa.Double()),
        sa.Column("spec", sa.Text(), nullable=False),
        sa.Column("spec_hash", sa.Text(), nullable=False),
        sa.PrimaryKeyConstraint("id", name=op.f("pk_clusters")),
        sa.UniqueConstraint("spec_hash", name=op.f("uq_clusters_spec_hash")),
    )
    op.create_table(
        "models",
        sa.Column("id", INT64, nullable=False),
        sa.Column("name", sa.Text(), nullable=False),
        sa.Column("family", sa.Text()),
        sa.Column("num_parameters", INT64),
        sa.Column("num_layers", INT64),
        sa.Column("hidden_size", INT64),
        sa.Column("num_heads", INT64),
        sa.Column("num_kv_heads", INT64),
        sa.Column("head_dim", INT64),
        sa.Column("ffn_size", INT64),
        sa.Column("vocab_size", INT64),
        sa.Column("max_positions", INT64),
        sa.Column("num_experts", INT64),
        sa.Column("experts_per_token", INT64),
        sa.Column("spec", sa.Text(), nullable=False),
        sa.Column("spec_hash", sa.Text(), nullable=False),
        sa.PrimaryKeyConstraint("id", name=op.f("pk_models")),
        sa.UniqueConstraint("spec_hash", name=op.f("uq_models_spec_hash")),
    )
    op.create_table(
        "parallel_configs",
        sa.Column("id", INT64, nullable=False),
        sa.Column("config_key", sa.Text(), nullable=False),
        sa.Column("label", sa.Text(), nullable=False),
        sa.Column("world_size", INT64, nullable=False),
        sa.Column("dp", sa.Integer(), nullable=False),
        sa.Column("tp", sa.Integer(), nullable=False),
        sa.Column("tp_layout", sa.Text(), nullable=False),
        sa.Column("tp_depth", sa.Integer(), nullable=False),
        sa.Column("sequence_parallel", sa.Boolean(), nullable=False),
        sa.Column("cp", sa.Integer(), nullable=False),
        sa.Column("ep", sa.Integer(), nullable=False),
        sa.Column("pp", sa.Integer(), nullable=False),
        sa.Column("virtual_stages", sa.Integer(), nullable=False),
        sa.Column("pipeline_schedule", sa.Text(), nullable=False),
        sa.Column("stage_layers", sa.Text()),
        sa.Column("micro_batch_size", sa.Integer(), nullable=False),
        sa.Column("zero_stage", sa.Integer(), nullable=False),
        sa.Column("zero_shard_degree", sa.Integer(), nullable=False),
        sa.Column("recompute", sa.Text(), nullable=False),
        sa.Column("recompute_layers", sa.Integer()),
        sa.Column("dtype", sa.Text(), nullable=False),
        sa.Column("reduce_dtype", sa.Text(), nullable=False),
        sa.Column("compile", sa.Boolean(), nullable=False),
        sa.Column("optimizer_offload", sa.Boolean(), nullable=False),
        sa.PrimaryKeyConstraint("id", name=op.f("pk_parallel_configs")),
        sa.UniqueConstraint("config_key", name=op.f("uq_parallel_configs_config_key")),
    )
    op.create_table(
        "software",
        sa.Column("id", INT64, nullable=False),
        sa.Column("versions_hash", sa.Text(), nullable=False),
        sa.PrimaryKeyConstraint("id", name=op.f("pk_software")),
        sa.UniqueConstraint("versions_hash", name=op.f("uq_software_versions_hash")),
    )
    op.create_table(
        "software_versions",
        sa.Column("software_id", INT64, nullable=False),
        sa.Column("package", sa.Text(), nullable=False),
        sa.Column("version", sa.Text(), nullable=False),
        sa.ForeignKeyConstraint(
            ["software_id"],
            ["software.id"],
            name=op.f("fk_software_versions_software_id"),
            ondelete="CASCADE",
        ),
        sa.PrimaryKeyConstraint("software_id", "package", name=op.f("pk_software_versions")),
        sqlite_with_rowid=False,
    )
    op.create_table(
        "studies",
        sa.Column("id", INT64, nullable=False),
        sa.Column("uuid", sa.Text(), nullable=False),
        sa.Column("name", sa.Text(), nullable=False),
        sa.Column("status", sa.Text(), nullable=False),
        sa.Column("objective_metric", sa.Text(), nullable=False),
        sa.Column("objective_direction", sa.Text(), nullable=False),
        sa.Column("searcher", sa.Text(), nullable=False),
        sa.Column("launcher", sa.Text(), nullable=False),
        sa.Column("seed", INT64, nullable=False),
        sa.Column("max_trials", INT64),
        sa.Column("num_legal_points", INT64),
        sa.Column("model_id", INT64, nullable=False),
        sa.Column("cluster_id", INT64, nullable=False),
        sa.Column("sequence_length", INT64),
        sa.Column("global_batch_size", INT64),
        sa.Column("training_dtype", sa.Text()),
        sa.Column("workload", sa.Text()),
        sa.Column("optimizer", sa.Text()),
        sa.Column("learning_rate", sa.Double()),
        sa.Column("training_spec", sa.Text(), nullable=False),
        sa.Column("resolved_config", sa.Text(), nullable=False),
        sa.Column("config_hash", sa.Text(), nullable=False),
        sa.Column("created_at", UtcDateTime(), nullable=False),
        sa.Column("finished_at", UtcDateTime()),
        sa.Column("num_trials", INT64, server_default=sa.text("0"), nullable=False),
        sa.Column("lease_host", sa.Text()),
        sa.Column("lease_pid", INT64),
        sa.Column("lease_process_started_at", UtcDateTime()),
        sa.Column("lease_heartbeat_at", UtcDateTime()),
        sa.CheckConstraint(
            "objective_direction IN ('maximize', 'minimize')",
            name=op.f("ck_studies_objective_direction_known"),
        ),
        sa.CheckConstraint(
            "status IN ('running', 'interrupted', 'completed')",
            name=op.f("ck_studies_status_known"),
        ),
        sa.ForeignKeyConstraint(
            ["cluster_id"], ["clusters.id"], name=op.f("fk_studies_cluster_id")
        ),
        sa.ForeignKeyConstraint(["model_id"], ["models.id"], name=op.f("fk_studies_model_id")),
        sa.PrimaryKeyConstraint("id", name=op.f("pk_studies")),
        sa.UniqueConstraint("name", name=op.f("uq_studies_name")),
        sa.UniqueConstraint("uuid", name=op.f("uq_studies_uuid")),
    )
    op.create_index(op.f("ix_studies_cluster_id"), "studies", ["cluster_id"], unique=False)
    op.create_index(op.f("ix_studies_model_id"), "studies", ["model_id"], unique=False)
    op.create_table(
        "predictions",
        sa.Column("study_id", INT64, nullable=False),
        sa.Column("config_key", sa.Text(), nullable=False),
        sa.Column("model_name", sa.Text(), nullable=False),
        sa.Column("step_time_s", sa.Double()),
        sa.Column("step_time_low_s", sa.Double()),
        sa.Column("step_time_high_s", sa.Double()),
        sa.Column("peak_memory_bytes", sa.Double()),
        sa.Column("probability_fits", sa.Double()),
        sa.ForeignKeyConstraint(
            ["study_id"], ["studies.id"], name=op.f("fk_predictions_study_id"), ondelete="CASCADE"
        ),
        sa.PrimaryKeyConstraint(
            "study_id", "config_key", "model_name", name=op.f("pk_predictions")
        ),
        sqlite_with_rowid=False,
    )
    op.create_table(
        "provenance",
        sa.Column("study_id", INT64, nullable=False),
        sa.Column("topic", sa.Text(), nullable=False),
        sa.Column("name", sa.Text(), nullable=False),
        sa.Column("value", sa.Text()),
        sa.Column("kind", sa.Text(), nullable=False),
        sa.CheckConstraint("kind IN ('text', 'json')", name=op.f("ck_provenance_kind_known")),
        sa.ForeignKeyConstraint(
            ["study_id"], ["studies.id"], name=op.f("fk_provenance_study_id"), ondelete="CASCADE"
        ),
        sa.PrimaryKeyConstraint("study_id", "topic", "name", name=op.f("pk_provenance")),
        sqlite_with_rowid=False,
    )
    op.create_table(
        "study_configs",
        sa.Column("study_id", INT64, nullable=False),
        sa.Column("config_id", INT64, nullable=False),
        sa.Column("num_completed", INT64, server_default=sa.text("0"), nullable=False),
        sa.Column("tokens_per_s", sa.Double()),
        sa.Column("tokens_per_s_low", sa.Double()),
        sa.Column("tokens_per_s_high", sa.Double()),
        sa.Column("step_time_s", sa.Double()),
        sa.Column("peak_memory_bytes", INT64),
        sa.Column("mfu", sa.Double()),
        sa.ForeignKeyConstraint(
            ["config_id"], ["parallel_configs.id"], name=op.f("fk_study_configs_config_id")
        ),
        sa.ForeignKeyConstraint(
            ["study_id"], ["studies.id"], name=op.f("fk_study_configs_study_id"), ondelete="CASCADE"
        ),
        sa.PrimaryKeyConstraint("study_id", "config_id", name=op.f("pk_study_configs")),
        sqlite_with_rowid=False,
    )
    op.create_index(
        op.f("ix_study_configs_config_id"), "study_configs", ["config_id"], unique=False
    )
    op.create_index(
        op.f("ix_study_configs_study_id_tokens_per_s"),
        "study_configs",
        ["study_id", "tokens_per_s"],
        unique=False,
    )
    op.create_index(
        op.f("ix_study_configs_study_id_tokens_per_s_low"),
        "study_configs",
        ["study_id", "tokens_per_s_low"],
        unique=False,
    )
    op.create_table(
        "trials",
        sa.Column("id", INT64, nullable=False),
        sa.Column("study_id", INT64, nullable=False),
        sa.Column("number", INT64, nullable=False),
        sa.Column("config_id", INT64, nullable=False),
        sa.Column("status", sa.Text(), nullable=False),
        sa.Column("purpose", sa.Text(), nullable=False),
        sa.Column("repeat", INT64, nullable=False),
        sa.Column("attempt", INT64, nullable=False),
        sa.Column("seed", INT64, nullable=False),
        sa.Column("warmup_steps", INT64, nullable=False),
        sa.Column("measured_steps", INT64, nullable=False),
        sa.Column("source", sa.Text(), nullable=False),
        sa.Column("queued_at", UtcDateTime(), nullable=False),
        sa.Column("started_at", UtcDateTime()),
        sa.Column("finished_at", UtcDateTime()),
        sa.Column("wall_s", sa.Double()),
        sa.Column("num_requeues", sa.Integer(), server_default=sa.text("0"), nullable=False),
        sa.Column("folder", sa.Text()),
        sa.Column("lease_host", sa.Text()),
        sa.Column("lease_pid", INT64),
        sa.Column("lease_process_started_at", UtcDateTime()),
        sa.Column("lease_heartbeat_at", UtcDateTime()),
        sa.CheckConstraint(
            "purpose IN ('search', 'baseline', 'confirm', 'drift')",
            name=op.f("ck_trials_purpose_known"),
        ),
        sa.CheckConstraint(
            "status IN ('queued', 'running', 'completed', 'pruned', 'infeasible', 'failed', "
            "'cancelled')",
            name=op.f("ck_trials_status_known"),
        ),
        sa.ForeignKeyConstraint(
            ["config_id"], ["parallel_configs.id"], name=op.f("fk_trials_config_id")
        ),
        sa.ForeignKeyConstraint(
            ["study_id"], ["studies.id"], name=op.f("fk_trials_study_id"), ondelete="CASCADE"
        ),
        sa.PrimaryKeyConstraint("id", name=op.f("pk_trials")),
        sa.UniqueConstraint(
            "study_id",
            "config_id",
            "repeat",
            "attempt",
            name=op.f("uq_trials_study_id_config_id_repeat_attempt"),
        ),
        sa.UniqueConstraint("study_id", "number", name=op.f("uq_trials_study_id_number")),
    )
    op.create_index(op.f("ix_trials_config_id"), "trials", ["config_id"], unique=False)
    op.create_index(
        "ix_trials_open",
        "trials",
        ["study_id", "status"],
        unique=False,
        sqlite_where=sa.text("status IN ('queued', 'running')"),
        postgresql_where=sa.text("status IN ('queued', 'running')"),
    )
    op.create_table(
        "untried_points",
        sa.Column("study_id", INT64, nullable=False),
        sa.Column("config_id", INT64, nullable=False),
        sa.Column("rule", sa.Text(), nullable=False),
        sa.Column("reason", sa.Text(), nullable=False),
        sa.ForeignKeyConstraint(
            ["config_id"], ["parallel_configs.id"], name=op.f("fk_untried_points_config_id")
        ),
        sa.ForeignKeyConstraint(
            ["study_id"],
            ["studies.id"],
            name=op.f("fk_untried_points_study_id"),
            ondelete="CASCADE",
        ),
        sa.PrimaryKeyConstraint("study_id", "config_id", "rule", name=op.f("pk_untried_points")),
        sqlite_with_rowid=False,
    )
    op.create_table(
        "breakdowns",
        sa.Column("trial_id", INT64, nullable=False),
        sa.Column("rank", sa.Integer(), nullable=False),
        sa.Column("part", sa.Text(), nullable=False),
        sa.Column("time_s", sa.Double()),
        sa.ForeignKeyConstraint(
            ["trial_id"], ["trials.id"], name=op.f("fk_breakdowns_trial_id"), ondelete="CASCADE"
        ),
        sa.PrimaryKeyConstraint("trial_id", "rank", "part", name=op.f("pk_breakdowns")),
        sqlite_with_rowid=False,
    )
    op.create_table(
        "collectives",
        sa.Column("trial_id", INT64, nullable=False),
        sa.Column("rank", sa.Integer(), nullable=False),
        sa.Column("collective", sa.Text(), nullable=False),
        sa.Column("calls", sa.Double()),
        sa.Column("bytes", sa.Double()),
        sa.Column("seconds", sa.Double()),
        sa.Column("other", sa.Text()),
        sa.ForeignKeyConstraint(
            ["trial_id"], ["trials.id"], name=op.f("fk_collectives_trial_id"), ondelete="CASCADE"
        ),
        sa.PrimaryKeyConstraint("trial_id", "rank", "collective", name=op.f("pk_collectives")),
        sqlite_with_rowid=False,
    )
    op.create_table(
        "failure_reports",
        sa.Column("trial_id", INT64, nullable=False),
        sa.Column("position", sa.Integer(), nullable=False),
        sa.Column("kind", sa.Text(), nullable=False),
        sa.Column("phase", sa.Text(), nullable=False),
        sa.Column("message", sa.Text(), nullable=False),
        sa.Column("rank", sa.Integer()),
        sa.Column("stage", sa.Integer()),
        sa.Column("step", sa.Integer()),
        sa.Column("traceback", sa.Text(), nullable=False),
        sa.Column("peak_memory_bytes", INT64),
        sa.ForeignKeyConstraint(
            ["trial_id"],
            ["trials.id"],
            name=op.f("fk_failure_reports_trial_id"),
            ondelete="CASCADE",
        ),
        sa.PrimaryKeyConstraint("trial_id", "position", name=op.f("pk_failure_reports")),
        sqlite_with_rowid=False,
    )
    op.create_table(
        "measurements",
        sa.Column("trial_id", INT64, nullable=False),
        sa.Column("step_time_s", sa.Double(), nullable=False),
        sa.Column("step_time_iqr_s", sa.Double(), nullable=False),
        sa.Column("tokens_per_s", sa.Double(), nullable=False),
        sa.Column("tokens_per_s_low", sa.Double(), nullable=False),
        sa.Column("tokens_per_s_high", sa.Double(), nullable=False),
        sa.Column("tokens_per_step", INT64, nullable=False),
        sa.Column("num_measured_steps", INT64, nullable=False),
        sa.Column("num_microbatches", INT64, nullable=False),
        sa.Column("num_parameters", INT64, nullable=False),
        sa.Column("num_layers", INT64, nullable=False),
        sa.Column("model_flops_per_step", sa.Double(), nullable=False),
        sa.Column("hardware_flops_per_step", sa.Double(), nullable=False),
        sa.Column("model_flops_per_s_per_device", sa.Double(), nullable=False),
        sa.Column("hardware_flops_per_s_per_device", sa.Double(), nullable=False),
        sa.Column("mfu", sa.Double()),
        sa.Column("peak_memory_bytes", INT64, nullable=False),
        sa.Column("final_loss", sa.Double()),
        sa.Column("loss_nonfinite", sa.Text()),
        sa.Column("startup_s", sa.Double(), nullable=False),
        sa.Column("overhead_s", sa.Double()),
        sa.Column("software_id", INT64),
        sa.ForeignKeyConstraint(
            ["software_id"], ["software.id"], name=op.f("fk_measurements_software_id")
        ),
        sa.ForeignKeyConstraint(
            ["trial_id"], ["trials.id"], name=op.f("fk_measurements_trial_id"), ondelete="CASCADE"
        ),
        sa.PrimaryKeyConstraint("trial_id", name=op.f("pk_measurements")),
    )
    op.create_table(
        "rank_coordinates",
        sa.Column("trial_id", INT64, nullable=False),
        sa.Column("rank", sa.Integer(), nullable=False),
        sa.Column("axis", sa.Text(), nullable=False),
        sa.Column("coordinate", sa.Integer(), nullable=False),
        sa.ForeignKeyConstraint(
            ["trial_id"],
            ["trials.id"],
            name=op.f("fk_rank_coordinates_trial_id"),
            ondelete="CASCADE",
        ),
        sa.PrimaryKeyConstraint("trial_id", "rank", "axis", name=op.f("pk_rank_coordinates")),
        sqlite_with_rowid=False,
    )
    op.create_table(
        "rank_stages",
        sa.Column("trial_id", INT64, nullable=False),
        sa.Column("rank", sa.Integer(), nullable=False),
        sa.Column("stage", sa.Integer(), nullable=False),
        sa.ForeignKeyConstraint(
            ["trial_id"], ["trials.id"], name=op.f("fk_rank_stages_trial_id"), ondelete="CASCADE"
        ),
        sa.PrimaryKeyConstraint("trial_id", "rank", "stage", name=op.f("pk_rank_stages")),
        sqlite_with_rowid=False,
    )
    op.create_table(
        "ranks",
        sa.Column("trial_id", INT64, nullable=False),
        sa.Column("rank", sa.Integer(), nullable=False),
        sa.Column("hostname", sa.Text(), nullable=False),
        sa.Column("device", sa.Text(), nullable=False),
        sa.Column("layers", sa.Text(), nullable=False),
        sa.Column("num_parameters", INT64, nullable=False),
        sa.Column("peak_memory_bytes", INT64, nullable=False),
        sa.Column("state_memory_bytes", INT64, nullable=False),
        sa.ForeignKeyConstraint(
            ["trial_id"], ["trials.id"], name=op.f("fk_ranks_trial_id"), ondelete="CASCADE"
        ),
        sa.PrimaryKeyConstraint("trial_id", "rank", name=op.f("pk_ranks")),
        sqlite_with_rowid=False,
    )
    op.create_table(
        "steps",
        sa.Column("trial_id", INT64, nullable=False),
        sa.Column("step", sa.Integer(), nullable=False),
        sa.Column("is_warmup", sa.Boolean(), nullable=False),
        sa.Column("step_time_s", sa.Double(), nullable=False),
        sa.Column("loss", sa.Double()),
        sa.Column("loss_nonfinite", sa.Text()),
        sa.Column("tokens", INT64, nullable=False),
        sa.ForeignKeyConstraint(
            ["trial_id"], ["trials.id"], name=op.f("fk_steps_trial_id"), ondelete="CASCADE"
        ),
        sa.PrimaryKeyConstraint("trial_id", "step", name=op.f("pk_steps")),
        sqlite_with_rowid=False,
    )
    op.create_table(
        "timeline",
        sa.Column("trial_id", INT64, nullable=False),
        sa.Column("rank", sa.Integer(), nullable=False),
        sa.Column("position", sa.Integer(), nullable=False),
        sa.Column("op", sa.Text(), nullable=False),
        sa.Column("micro_batch", sa.Integer(), nullable=False),
        sa.Column("stage", sa.Integer(), nullable=False),
        sa.Column("start_s", sa.Double(), nullable=False),
        sa.Column("end_s", sa.Double(), nullable=False),
        sa.ForeignKeyConstraint(
            ["trial_id"], ["trials.id"], name=op.f("fk_timeline_trial_id"), ondelete="CASCADE"
        ),
        sa.PrimaryKeyConstraint("trial_id", "rank", "position", name=op.f("pk_timeline")),
        sqlite_with_rowid=False,
    )
