"""The metadata and what the tables have in common."""

from sqlalchemy import CheckConstraint, Column, ForeignKey, MetaData

from results_db.columns import Int64

metadata = MetaData(
    naming_convention={
        "ix": "ix_%(table_name)s_%(column_0_N_name)s",
        "uq": "uq_%(table_name)s_%(column_0_N_name)s",
        "ck": "ck_%(table_name)s_%(constraint_name)s",
        "fk": "fk_%(table_name)s_%(column_0_name)s",
        "pk": "pk_%(table_name)s",
    }
)


def one_of(column: str, values: list[str]) -> CheckConstraint:
    """A column that takes these words only."""
    words = ", ".join(f"'{value}'" for value in values)
    return CheckConstraint(f"{column} IN ({words})", name=f"{column}_known")


def trial_key(*, is_primary: bool = False) -> "Column[int]":
    """The reference to a trial; its rows go with it."""
    reference = ForeignKey("trials.id", ondelete="CASCADE")
    return Column("trial_id", Int64, reference, primary_key=is_primary, nullable=False)


def study_key() -> "Column[int]":
    """The reference to a study; its rows go with it."""
    return Column("study_id", Int64, ForeignKey("studies.id", ondelete="CASCADE"), nullable=False)
