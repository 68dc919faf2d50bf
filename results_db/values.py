"""Python values that a database cannot hold as they are: NaN, infinities, mappings."""

import hashlib
import json
import math
from collections.abc import Mapping
from typing import Any

from results_db.errors import InvalidRecord


def split_nonfinite(value: float | None) -> tuple[float | None, str | None]:
    """A float for its column and, when it is not finite, its kind: `nan`, `inf` or `-inf`.

    A NaN in a column would be NULL on SQLite and would poison every average on PostgreSQL.
    """
    if value is None or math.isfinite(value):
        return value, None
    return None, str(float(value))


def join_nonfinite(value: float | None, kind: str | None) -> float | None:
    """The inverse of `split_nonfinite`."""
    return value if kind is None else float(kind)


def finite_or_none(value: float | None) -> float | None:
    """A model's estimate; one that is not finite says nothing and becomes none."""
    return value if value is not None and math.isfinite(value) else None


def require_finite(record: Any, names: tuple[str, ...]) -> None:
    """Refuse a record whose named fields hold NaN or an infinity: such a number is an error."""
    for name in names:
        value = getattr(record, name)
        if value is not None and not math.isfinite(value):
            raise InvalidRecord(
                f"{type(record).__name__}.{name} is {value}, not a finite number",
                "store the trial as failed",
            )


def to_json(value: Any) -> str:
    """Standard JSON with sorted keys; NaN and infinities become words, other objects their text."""
    return json.dumps(_plain(value), sort_keys=True, default=str, allow_nan=False)


def _plain(value: Any) -> Any:
    if isinstance(value, Mapping):
        return {str(key): _plain(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [_plain(item) for item in value]
    if isinstance(value, float) and not math.isfinite(value):
        return str(value)
    return value


def from_json(text: str) -> Any:
    """The inverse of `to_json` for everything that JSON knows."""
    return json.loads(text)


def content_hash(text: str) -> str:
    """64 hex digits that identify a text."""
    return hashlib.sha256(text.encode()).hexdigest()


def whole_number(value: Any) -> int | None:
    """A mapping's value as an integer column, or none when it is no number."""
    return int(value) if isinstance(value, int | float) and math.isfinite(value) else None


def real_number(value: Any) -> float | None:
    """A mapping's value as a float column, or none when it is no finite number."""
    return float(value) if isinstance(value, int | float) and math.isfinite(value) else None
