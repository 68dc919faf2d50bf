"""Column types that behave the same on SQLite and PostgreSQL."""

from datetime import UTC, datetime
from typing import Any

from sqlalchemy import BigInteger, DateTime, Dialect, Double, Integer
from sqlalchemy.types import TypeDecorator

from results_db.errors import InvalidRecord

Int64 = BigInteger().with_variant(Integer(), "sqlite")
"""64-bit integer; SQLite's INTEGER holds 64 bits and is the only type that can be its row id."""

Float64: Double[float] = Double()
"""IEEE double; columns hold finite values only (SQLite would turn NaN into NULL in silence)."""


class UtcDateTime(TypeDecorator[datetime]):
    """A moment in UTC: `timestamptz` on PostgreSQL, ISO text on SQLite, always zoned in Python."""

    impl = DateTime
    cache_ok = True

    def load_dialect_impl(self, dialect: Dialect) -> Any:
        """`timestamptz` where the database knows zones."""
        return dialect.type_descriptor(DateTime(timezone=dialect.name == "postgresql"))

    def process_bind_param(self, value: datetime | None, dialect: Dialect) -> datetime | None:
        """To UTC; a time without a zone is refused because nobody knows when it was."""
        if value is None:
            return None
        if value.tzinfo is None:
            raise InvalidRecord(
                f"The time {value.isoformat()} has no time zone",
                "pass datetime.now(UTC) or another zoned time",
            )
        utc = value.astimezone(UTC)
        return utc if dialect.name == "postgresql" else utc.replace(tzinfo=None)

    def process_result_value(self, value: datetime | None, dialect: Dialect) -> datetime | None:
        """Back with the UTC zone, whatever zone the session has."""
        if value is None:
            return None
        return value.replace(tzinfo=UTC) if value.tzinfo is None else value.astimezone(UTC)
