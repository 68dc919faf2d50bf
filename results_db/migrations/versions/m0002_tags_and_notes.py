"""Tags and notes on studies and trials; where imported studies come from."""

import sqlalchemy as sa
from alembic import op

from results_db.columns import UtcDateTime

revision = "0002"
down_revision = "0001"

INT64 = sa.BigInteger().with_variant(sa.Integer(), "sqlite")


def upgrade() -> None:
    """Add three tables and one column."""
    op.add_column("studies", sa.Column("imported_from", sa.Text()))
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
