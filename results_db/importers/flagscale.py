"""FlagScale's auto tuner: its `history.csv`.

Columns (`flagscale/runner/auto_tuner/record/recorder.py`): `idx`, Megatron's argument names,
`performance` (milliseconds an iteration unless the user greps for another word), `max_mem` (MB, or
`OOM`) and `error`.
"""

from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from results_db.importers.base import (
    ForeignTrial,
    Recipe,
    crash,
    number,
    oom,
    read_csv,
    truth,
    whole,
)


def read(path: Path, recipe: Recipe) -> Iterator[ForeignTrial | str]:
    """Trials of a history file; raises `DatabaseUnreadable` when it is not one."""
    metric = recipe.metric or "performance"
    rows = read_csv(path, ["idx", "tensor_model_parallel_size", metric])
    for row in rows:
        knobs = _knobs(row, recipe.num_layers)
        yield knobs if isinstance(knobs, str) else _trial(row, knobs, metric, recipe)


def _trial(
    row: Mapping[str, Any], knobs: dict[str, Any], metric: str, recipe: Recipe
) -> ForeignTrial:
    memory, value = number(row.get("max_mem")), number(row.get(metric))
    failure = None
    error = str(row.get("error") or "").strip()
    if "OOM" in str(row.get("max_mem", "")) or "OOM" in error:
        failure = oom(error or "out of memory")
    elif value is None:
        failure = crash(error or "no performance was read")
    return ForeignTrial(
        knobs=knobs,
        value=value,
        unit=recipe.unit or "step_time_ms",
        global_batch_size=whole(row, "global_batch_size", 0) or None,
        peak_memory_bytes=int(memory * 1e6) if memory else None,
        failure=failure,
    )


def _knobs(row: Mapping[str, Any], num_layers: int | None) -> dict[str, Any] | str:
    pp = whole(row, "pipeline_model_parallel_size")
    chunk = whole(row, "num_layers_per_virtual_pipeline_stage", 0)
    virtual = 1
    if chunk:
        if num_layers is None:
            return f"row {row.get('idx')}: virtual stages need the model's layers (--num-layers)"
        virtual = max(num_layers // (pp * chunk), 1)
    recompute = str(row.get("recompute_granularity") or "none").lower()
    layers = whole(row, "recompute_num_layers", 0)
    return {
        "dp": whole(row, "data_parallel_size"),
        "tp": whole(row, "tensor_model_parallel_size"),
        "pp": pp,
        "cp": whole(row, "context_parallel_size"),
        "ep": whole(row, "expert_model_parallel_size"),
        "virtual_stages": virtual,
        "pipeline_schedule": "interleaved" if virtual > 1 else "1f1b",
        "micro_batch_size": whole(row, "micro_batch_size"),
        "sequence_parallel": truth(row.get("sequence_parallel")),
        "zero_stage": 1 if truth(row.get("use_distributed_optimizer")) else 0,
        "recompute": recompute if recompute in ("full", "selective") else "none",
        "recompute_layers": layers if layers and recompute == "full" else None,
    }
