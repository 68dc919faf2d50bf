"""Types of the views' columns: a view has none of its own on SQLite, so they go by name.

A column that a view takes from a table has the type it has there; the computed ones are listed.
"""

from functools import lru_cache
from typing import Any

from sqlalchemy import Boolean, Column, Connection, Integer, MetaData, Table, Text, inspect
from sqlalchemy.types import TypeEngine

from results_db.columns import Float64, Int64, UtcDateTime
from results_db.schema import metadata

_FLOATS = (
    "share_of_best", "best_tokens_per_s", "median_tokens_per_s", "best_share_of_best",
    "predicted_step_time_s", "predicted_low_s", "predicted_high_s", "measured_step_time_s",
    "predicted_over_measured", "predicted_memory_bytes", "memory_predicted_over_measured",
    "forward_s", "backward_s", "bubble_s",
)  # fmt: skip
_INTEGERS = (
    "position", "num_trials", "trial", "failure_rank", "failure_stage", "device_memory_bytes",
    "num_configs", "least_peak_memory_bytes", "measured_memory_bytes", "num_ranks", "first_rank",
)  # fmt: skip
_BOOLEANS = ("is_cause", "is_inside_interval", "ran_out_of_memory", "is_new_best")
_TEXTS = (
    "study", "config", "model", "cluster", "failure", "failure_phase", "failure_message", "knob",
    "value", "cost_model", "outcome", "cause", "reason",
)  # fmt: skip


@lru_cache(maxsize=1)
def types_by_name() -> dict[str, TypeEngine[Any]]:
    """The type of every column name that a table or a view uses."""
    found: dict[str, TypeEngine[Any]] = {}
    for table in metadata.sorted_tables:
        for column in table.columns:
            found[column.name] = column.type
    for names, kind in (
        (_FLOATS, Float64),
        (_INTEGERS, Int64),
        (_BOOLEANS, Boolean()),
        (_TEXTS, Text()),
    ):
        found |= dict.fromkeys(names, kind)
    return found


def relation(connection: Connection, name: str) -> Table:
    """A table or view as something to select from, with typed columns.

    Raises:
        KeyError: there is none of this name.
    """
    if name in metadata.tables:
        return metadata.tables[name]
    inspector = inspect(connection)
    if name not in inspector.get_view_names():
        raise KeyError(name)
    types = types_by_name()
    columns = [Column(item["name"], types[item["name"]]) for item in inspector.get_columns(name)]
    return Table(name, MetaData(), *columns)


def kind_of(column_type: TypeEngine[Any]) -> str:
    """`bool`, `int`, `float`, `time` or `text`."""
    if isinstance(column_type, UtcDateTime):
        return "time"
    if isinstance(column_type, Boolean):
        return "bool"
    if isinstance(column_type, Integer):
        return "int"
    return "float" if column_type is Float64 else "text"
