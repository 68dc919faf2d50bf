"""nanotron: the CSV of `general.benchmark_csv_path`.

Columns (`src/nanotron/helpers.py`, `log_throughput`): `name`, `nodes` (of eight devices),
`seq_len`, `mbs`, `batch_accum`, `gbs`, `mTFLOPs`, `hTFLOPs`, `tok/s/gpu`, `Mem Alloc (GB)`,
`Mem Res (GB)` (GiB both). The layout stands only in the run's name: `..._dp4_tp2_pp2_zero1...`.
"""

import re
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from results_db.importers.base import ForeignTrial, Recipe, number, oom, read_csv, whole

_LAYOUT = re.compile(r"(?<![a-z])(dp|tp|pp|cp|ep|zero)[_=-]?(\d+)(?!\d)", re.IGNORECASE)
_SHORT = {"dp": "dp", "tp": "tp", "pp": "pp", "cp": "cp", "ep": "ep", "zero": "zero_stage"}


def read(path: Path, recipe: Recipe) -> Iterator[ForeignTrial | str]:
    """Trials of a benchmark file; raises `DatabaseUnreadable` when it is not one."""
    metric = recipe.metric or "tok/s/gpu"
    for row in read_csv(path, ["name", "seq_len", "mbs", "gbs", metric]):
        knobs = _knobs(row)
        yield knobs if isinstance(knobs, str) else _trial(row, knobs, metric, recipe)


def _trial(
    row: Mapping[str, Any], knobs: dict[str, Any], metric: str, recipe: Recipe
) -> ForeignTrial:
    value = number(row.get(metric))
    memory = number(row.get("Mem Res (GB)")) or number(row.get("Mem Alloc (GB)"))
    words = f"{row.get(metric, '')} {row.get('status', '')}".lower()
    return ForeignTrial(
        knobs=knobs,
        value=value,
        unit=recipe.unit or "tokens_per_s_per_device",
        global_batch_size=whole(row, "gbs"),
        sequence_length=whole(row, "seq_len"),
        peak_memory_bytes=int(memory * 2**30) if memory else None,
        failure=oom() if "oom" in words else None,
        model_flops_per_s_per_device=1e12 * (number(row.get("mTFLOPs")) or 0.0),
        hardware_flops_per_s_per_device=1e12 * (number(row.get("hTFLOPs")) or 0.0),
    )


def _knobs(row: Mapping[str, Any]) -> dict[str, Any] | str:
    named = {_SHORT[key.lower()]: int(value) for key, value in _LAYOUT.findall(row["name"])}
    replicas = whole(row, "gbs") // (whole(row, "mbs") * whole(row, "batch_accum"))
    if "tp" not in named and "pp" not in named:
        return f"run {row['name']!r}: its name does not tell tp and pp"
    if named.get("dp", replicas) != replicas:
        return f"run {row['name']!r}: dp{named['dp']} in its name, but the batch needs dp{replicas}"
    return {**named, "dp": replicas, "micro_batch_size": whole(row, "mbs"), "dtype": "bf16"}
