"""Tags and notes; where imported studies come from; an index for the first positions."""

import sqlalchemy as sa
from alembic import op

from results_db.columns import UtcDateTime

revision = "0002"
down_revision = "0001"

INT64 = sa.BigInteger().with_variant(sa.Integer(), "sqlite")


def upgrade() -> None:
    """Add three tables, and what a leaderboard of all studies walks over."""
    op.add_column("studies", sa.Column("imported_from", sa.Text()))
    _leaderboard()
    op.create_table(
        "study_tags",
        sa.Column("study_id", INT64, nullable=False),
        sa.Column("tag", sa.Text(), nullable=False),
        sa.ForeignKeyConstraint(
            ["study_id"], ["studies.id"], name=op.f("fk_study_tags_study_id"), ondelete="CASCADE"
        ),
        sa.PrimaryKeyConstraint("study_id", "tag", name=op.f("pk_study_tags")),
        sqlite_with_rowid=False,
    )
    op.create_table(
        "trial_tags",
        sa.Column("trial_id", INT64, nullable=False),
        sa.Column("tag", sa.Text(), nullable=False),
        sa.ForeignKeyConstraint(
            ["trial_id"], ["trials.id"], name=op.f("fk_trial_tags_trial_id"), ondelete="CASCADE"
        ),
        sa.PrimaryKeyConstraint("trial_id", "tag", name=op.f("pk_trial_tags")),
        sqlite_with_rowid=False,
    )
    op.create_table(
        "notes",
        sa.Column("id", INT64, nullable=False),
        sa.Column("study_id", INT64, nullable=False),
        sa.Column("trial_id", INT64),
        sa.Column("author", sa.Text(), nullable=False),
        sa.Column("body", sa.Text(), nullable=False),
        sa.Column("created_at", UtcDateTime(), nullable=False),
        sa.ForeignKeyConstraint(
            ["study_id"], ["studies.id"], name=op.f("fk_notes_study_id"), ondelete="CASCADE"
        ),
        sa.ForeignKeyConstraint(
            ["trial_id"], ["trials.id"], name=op.f("fk_notes_trial_id"), ondelete="CASCADE"
        ),
        sa.PrimaryKeyConstraint("id", name=op.f("pk_notes")),
    )
    op.create_index(op.f("ix_notes_study_id"), "notes", ["study_id"])
    op.create_index(op.f("ix_notes_trial_id"), "notes", ["trial_id"])


def _leaderboard() -> None:
    """Keep rows of measured configurations only, with their first trial and whether they lead."""
    table = sa.table(
        "study_configs",
        *(sa.column(name) for name in ("study_id", "config_id", "num_completed", "first_trial")),
        *(sa.column(name) for name in ("tokens_per_s_low", "tokens_per_s_high")),
        sa.column("is_first", sa.Boolean),
    )
    trials = sa.table("trials", *map(sa.column, ("study_id", "config_id", "number", "status")))
    op.execute(sa.delete(table).where(table.c.num_completed == 0))
    op.add_column("study_configs", sa.Column("first_trial", INT64))
    op.add_column(
        "study_configs",
        sa.Column("is_first", sa.Boolean(), nullable=False, server_default=sa.false()),
    )
    first = sa.select(sa.func.min(trials.c.number)).where(
        trials.c.study_id == table.c.study_id,
        trials.c.config_id == table.c.config_id,
        trials.c.status == "completed",
    )
    other = table.alias("other")
    best = sa.select(sa.func.max(other.c.tokens_per_s_low)).where(
        other.c.study_id == table.c.study_id
    )
    op.execute(
        sa.update(table).values(
            first_trial=first.scalar_subquery(),
            is_first=table.c.tokens_per_s_high >= best.scalar_subquery(),
        )
    )
    op.create_index(
        op.f("ix_study_configs_study_id_tokens_per_s_high"),
        "study_configs",
        ["study_id", "tokens_per_s_high"],
    )
    op.create_index(op.f("ix_study_configs_tokens_per_s"), "study_configs", ["tokens_per_s"])
    op.create_index(
        "ix_study_configs_first",
        "study_configs",
        ["study_id"],
        sqlite_where=sa.text("is_first"),
        postgresql_where=sa.text("is_first"),
    )
