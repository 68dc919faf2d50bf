"""pandas frames with tidy columns: one row a record or a row of a view, one column a quantity."""

from collections.abc import Iterable, Mapping
from dataclasses import fields, is_dataclass
from enum import Enum
from typing import TYPE_CHECKING, Any

from sqlalchemy import select

from results_db import view_columns
from results_db.errors import NotFound
from results_db.schema import metadata
from results_db.store import Store
from results_db.views import view_statements

if TYPE_CHECKING:
    import pandas as pd

_DTYPES = {"int": "Int64", "float": "float64", "bool": "boolean", "text": "str"}
_MERGED = ("trial", "measurement", "knobs")
"""Parts whose fields become columns of their own name; other parts keep theirs as a prefix."""


def to_frame(records: Iterable[Any]) -> "pd.DataFrame":
    """A frame of typed records of one kind (`TrialSummary`, `LeaderboardRow`, `StepRow`, ...).

    Knobs, measurement and trial of a summary become plain columns; its failure's are prefixed with
    `failure_`. Records without a part have missing values there.
    """
    import pandas as pd

    return pd.DataFrame([_flat(record) for record in records])


def _flat(record: Any, prefix: str = "") -> dict[str, Any]:
    flat: dict[str, Any] = {}
    for item in fields(record):
        value = getattr(record, item.name)
        head = "" if item.name in _MERGED else f"{item.name}_"
        if is_dataclass(value):
            flat |= _flat(value, prefix + head)
        elif isinstance(value, Mapping):
            flat |= {prefix + head + str(key): part for key, part in value.items()}
        else:
            flat[prefix + item.name] = value.value if isinstance(value, Enum) else value
    return flat


def view_frame(store: Store, name: str, study: str | None = None) -> "pd.DataFrame":
    """A table or view as a frame with the right types; of one study when it has such a column.

    Integers that may be absent are pandas `Int64`, times are zoned, absent texts are missing.

    Raises:
        NotFound: there is no such table or view, or no such study.
    """
    import pandas as pd

    with store.database.read() as connection:
        try:
            source = view_columns.relation(connection, name)
        except KeyError:
            known = ", ".join([*view_statements(), *metadata.tables])
            raise NotFound(f"There is no table or view {name!r}", f"there are {known}") from None
        query = select(source)
        if study is not None:
            if "study" not in source.columns:
                raise NotFound(f"{name} has no column study", "leave the study out and filter")
            store.get_study(study)
            query = query.where(source.c.study == study)
        rows = connection.execute(query).all()
    series = {
        column.name: _series([row[place] for row in rows], view_columns.kind_of(column.type))
        for place, column in enumerate(source.columns)
    }
    return pd.DataFrame(series)


def _series(values: list[Any], kind: str) -> "pd.Series[Any]":
    import pandas as pd

    if kind == "time":
        return pd.to_datetime(pd.Series(values, dtype="object"), utc=True)
    return pd.Series(values, dtype=_DTYPES[kind])
