"""The knobs of a parallel configuration as typed columns.

This package imports nothing of the search space; a test holds this list against its knobs.
"""

import hashlib
import json
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from sqlalchemy import Boolean, Column, Integer, Text
from sqlalchemy.types import TypeEngine

from results_db.errors import InvalidRecord

Value = int | str | bool | tuple[int, ...] | None


@dataclass(frozen=True)
class Knob:
    """One knob: its column, the value it takes when it is absent, and its tag in labels.

    `tag` is a format string of the value; `is_optional` marks a column that may be NULL.
    """

    name: str
    kind: type
    default: Value
    tag: str
    doc: str
    is_optional: bool = False

    def column(self) -> Column[Any]:
        """The typed column of this knob; layer lists are text such as `4,4,5,3`."""
        types: dict[type, type[TypeEngine[Any]]] = {
            int: Integer,
            bool: Boolean,
            str: Text,
            tuple: Text,
        }
        return Column(self.name, types[self.kind], nullable=self.is_optional, comment=self.doc)

    def to_column(self, value: Any) -> Any:
        """Check a value and give it the column's form; raises `InvalidRecord`."""
        if value is None and self.is_optional:
            return None
        if self.kind is tuple and isinstance(value, list | tuple):
            return ",".join(str(int(item)) for item in value)
        # bool is an int to Python, but `tp = true` is a mistake
        is_mixed_up = isinstance(value, bool) and self.kind is not bool
        if not isinstance(value, self.kind) or is_mixed_up:
            raise InvalidRecord(
                f"Knob {self.name}={value!r} is not of type {self.kind.__name__}",
                f"its default is {self.default!r}",
            )
        return value

    def from_column(self, stored: Any) -> Value:
        """The knob's value from its column."""
        if stored is None:
            return None
        if self.kind is tuple:
            return tuple(int(item) for item in str(stored).split(",") if item)
        return self.kind(stored)  # type: ignore[no-any-return]


KNOBS: tuple[Knob, ...] = (
    Knob("dp", int, 1, "dp{}", "data-parallel replicas"),
    Knob("tp", int, 1, "tp{}", "tensor-parallel ranks"),
    Knob("tp_layout", str, "1d", "{}", "1d, 2d or 2.5d tensor parallelism"),
    Knob("tp_depth", int, 1, "depth{}", "depth of the 2.5d mesh"),
    Knob("sequence_parallel", bool, False, "sp", "norms sharded over the sequence"),
    Knob("cp", int, 1, "cp{}", "context-parallel ranks"),
    Knob("ep", int, 1, "ep{}", "expert-parallel ranks"),
    Knob("pp", int, 1, "pp{}", "pipeline ranks"),
    Knob("virtual_stages", int, 1, "vs{}", "model chunks per pipeline rank"),
    Knob("pipeline_schedule", str, "1f1b", "{}", "order of the pipeline's actions"),
    Knob("stage_layers", tuple, None, "stages{}", "layers of every stage, when uneven", True),
    Knob("micro_batch_size", int, 1, "mbs{}", "sequences per micro-batch"),
    Knob("zero_stage", int, 0, "zero{}", "ZeRO stage"),
    Knob("zero_shard_degree", int, 0, "shard{}", "ranks that share one shard set, 0 = all of dp"),
    Knob("recompute", str, "none", "recompute-{}", "activation recomputation"),
    Knob("recompute_layers", int, None, "recompute_layers{}", "layers that recompute", True),
    Knob("dtype", str, "fp32", "{}", "compute precision"),
    Knob("reduce_dtype", str, "fp32", "reduce-{}", "precision of gradient reduction"),
    Knob("compile", bool, False, "compile", "layers compiled"),
    Knob("optimizer_offload", bool, False, "offload", "optimizer states in host memory"),
)
KNOB_NAMES: tuple[str, ...] = tuple(knob.name for knob in KNOBS)
_ALWAYS_SHOWN = ("tp", "pp", "dp", "micro_batch_size")


def to_columns(knobs: Mapping[str, Any]) -> dict[str, Any]:
    """Column values of a configuration, defaults filled in, with `world_size` and `label`.

    Raises:
        InvalidRecord: a knob is unknown or of the wrong type.
    """
    unknown = sorted(set(knobs) - set(KNOB_NAMES))
    if unknown:
        raise InvalidRecord(
            f"Unknown knob {', '.join(unknown)}", f"the knobs are {', '.join(KNOB_NAMES)}"
        )
    columns = {knob.name: knob.to_column(knobs.get(knob.name, knob.default)) for knob in KNOBS}
    world_size = 1
    for name in ("dp", "tp", "cp", "pp"):
        world_size *= int(columns[name] or 1)
    return {**columns, "world_size": world_size, "label": label(columns)}


def from_columns(row: Mapping[Any, Any]) -> dict[str, Value]:
    """The knobs of a row of `parallel_configs`."""
    return {knob.name: knob.from_column(row[knob.name]) for knob in KNOBS}


def label(columns: Mapping[str, Any]) -> str:
    """One line for people, e.g. `tp2 pp1 dp2 mbs4 zero1`; other knobs only off their default."""
    by_name = {knob.name: knob for knob in KNOBS}
    parts = [by_name[name].tag.format(columns[name]) for name in _ALWAYS_SHOWN]
    order = ("cp", "ep", "tp_layout", "tp_depth", "sequence_parallel", "virtual_stages",
             "pipeline_schedule", "zero_stage", "zero_shard_degree", "recompute",
             "recompute_layers", "dtype", "reduce_dtype", "compile", "optimizer_offload",
             "stage_layers")  # fmt: skip
    for name in order:
        value = columns[name]
        if value != by_name[name].default:
            parts.append(by_name[name].tag.format(str(value).replace(",", "/")))
    return " ".join(parts)


def config_key(knobs: Mapping[str, Any]) -> str:
    """16 hex digits that identify a configuration: the same as the search space gives it.

    SHA-256 of the JSON of the knobs that differ from their defaults, sorted by name.
    """
    columns = to_columns(knobs)
    changed = {
        knob.name: columns[knob.name]
        for knob in sorted(KNOBS, key=lambda knob: knob.name)
        if columns[knob.name] != knob.default
    }
    if "stage_layers" in changed:
        changed["stage_layers"] = [int(item) for item in changed["stage_layers"].split(",")]
    text = json.dumps(changed, sort_keys=True, separators=(",", ":"))
    return hashlib.sha256(text.encode()).hexdigest()[:16]
