"""Rows of a table of measured runs, checked: whatever is wrong is named with its line."""

import csv
import math
from collections.abc import Mapping, Sequence
from pathlib import Path

from tuner.errors import ConfigError

Row = Mapping[str, str]

REQUIRED = (
    "model", "device", "devices", "sequence_length", "global_batch_size", "layers", "hidden_size",
    "attention_heads", "ffn_size", "vocab_size", "tp", "pp", "dp", "micro_batch_size", "status",
    "step_time_s",
)  # fmt: skip
_COUNTS = (
    "devices", "sequence_length", "global_batch_size", "layers", "hidden_size", "attention_heads",
    "kv_heads", "ffn_size", "vocab_size", "tp", "pp", "dp", "virtual_stages", "micro_batch_size",
)  # fmt: skip
"""Columns of whole numbers from 1 on; an empty cell stands for the default."""


def read_rows(path: Path) -> list[dict[str, str]]:
    """Rows with their cells trimmed, in whatever order the columns are.

    Raises:
        ConfigError: the file is no table, lacks a column, or has a cell that is no number.
    """
    try:
        with path.open(newline="", encoding="utf-8-sig") as file:
            reader = csv.DictReader(file)
            rows = [(reader.line_num, _trimmed(row)) for row in reader]
            names = [name.strip() for name in reader.fieldnames or ()]
    except (UnicodeDecodeError, csv.Error) as error:
        raise ConfigError(f"{path.name} is no CSV table: {error}") from None
    if missing := [name for name in REQUIRED if name not in names]:
        raise ConfigError(f"{path.name} lacks the columns {', '.join(missing)}")
    for line, row in rows:
        _check(row, f"{path.name}, line {line}")
    return [row for _, row in rows]


def _trimmed(row: Mapping[str, str | None]) -> dict[str, str]:
    # a row that is too long has its surplus under no name, one that is too short has none there
    return {name.strip(): (cell or "").strip() for name, cell in row.items() if name}


def _check(row: Row, where: str) -> None:
    for name in _COUNTS:
        if (cell := row.get(name)) and not _is_count(cell):
            raise ConfigError(f"{where}: {name} is {cell!r}, which is no whole number from 1 on")
    stage = row.get("zero_stage")
    if stage and _number(stage) not in (0, 1, 2, 3):
        raise ConfigError(f"{where}: zero_stage is {stage!r}, which is none of 0, 1, 2, 3")
    for name in ("step_time_s", "peak_memory_gb"):
        if has_run(row) and (cell := row.get(name)) and _number(cell) is None:
            raise ConfigError(f"{where}: {name} is {cell!r}, which is no number")


def _number(cell: str) -> float | None:
    try:
        return float(cell)
    except ValueError:
        return None


def _is_count(cell: str) -> bool:
    value = _number(cell)
    return value is not None and math.isfinite(value) and value >= 1 and value == int(value)


def has_run(row: Row) -> bool:
    """Whether the row's run came to its end; any other status is a failed trial."""
    return row["status"].lower() == "ok"


def count(row: Row, name: str, default: int) -> int:
    """A whole number; the default where the cell or the column is missing."""
    return int(float(row.get(name) or default))


def flag(row: Row, name: str) -> bool:
    """Whether a cell says yes."""
    return row.get(name, "").lower() in ("1", "1.0", "true", "yes")


def positive(rows: Sequence[Row], name: str) -> list[float]:
    """The finite positive numbers in a column of the rows that ran."""
    cells = [row[name] for row in rows if has_run(row) and row.get(name)]
    return [value for cell in cells if 0 < (value := float(cell)) < math.inf]
