"""Paddle's `auto_tuner`: its `history.csv`.

Columns (`python/paddle/distributed/auto_tuner/recorder.py`): `job_id`, the degrees, `max_mem_usage`
(MiB, or `OOM`), `error_info` and the metric under the name that the user's `metric_cfg` gave it.
"""

from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from results_db.errors import DatabaseUnreadable
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

_METRICS = {
    "interval_tokens_per_second_per_device": "tokens_per_s_per_device",
    "tokens_per_second_per_device": "tokens_per_s_per_device",
    "throughput": "tokens_per_s",
    "interval_samples_per_second": "samples_per_s",
    "ips": "samples_per_s",
    "interval_runtime": "step_time_s",
}
_RECOMPUTE = {"full": "full", "full_attn": "selective", "core_attn": "selective"}


def read(path: Path, recipe: Recipe) -> Iterator[ForeignTrial | str]:
    """Trials of a history file.

    Raises:
        DatabaseUnreadable: the file is not such a history, or its metric has an unknown name.
    """
    rows = read_csv(path, ["job_id", "mp_degree", "pp_degree", "micro_batch_size"])
    if not rows:
        return
    metric = recipe.metric or next((name for name in _METRICS if name in rows[0]), None)
    if metric is None or metric not in rows[0]:
        raise DatabaseUnreadable(
            f"{path} has no metric {metric or 'that is known'}",
            f"name one of its columns with --metric: {', '.join(rows[0])}",
        )
    unit = recipe.unit or _METRICS.get(metric, "tokens_per_s")
    for row in rows:
        yield _trial(row, metric, unit)


def _trial(row: Mapping[str, Any], metric: str, unit: str) -> ForeignTrial:
    memory = number(row.get("max_mem_usage"))
    value = number(row.get(metric))
    failure = None
    if "OOM" in str(row.get("max_mem_usage", "")):
        failure = oom()
    elif value is None or value <= 0:
        failure = crash(str(row.get("error_info") or "no metric was read"))
    return ForeignTrial(
        knobs=_knobs(row),
        value=value,
        unit=unit,
        global_batch_size=whole(row, "global_batch_size", 0) or None,
        peak_memory_bytes=int(memory * 2**20) if memory else None,
        failure=failure,
    )


def _knobs(row: Mapping[str, Any]) -> dict[str, Any]:
    # Paddle counts sharding ranks apart from data-parallel ones; here both are data parallel
    replicas, sharding = whole(row, "dp_degree"), whole(row, "sharding_degree")
    recompute = "none"
    if truth(row.get("use_recompute")):
        recompute = _RECOMPUTE.get(str(row.get("recompute_granularity", "full")), "full")
    return {
        "dp": replicas * sharding,
        "tp": whole(row, "mp_degree"),
        "pp": whole(row, "pp_degree"),
        "virtual_stages": whole(row, "vpp_degree"),
        "pipeline_schedule": "interleaved" if whole(row, "vpp_degree") > 1 else "1f1b",
        "micro_batch_size": whole(row, "micro_batch_size"),
        "zero_stage": whole(row, "sharding_stage") if sharding > 1 else 0,
        "zero_shard_degree": sharding if sharding > 1 and replicas > 1 else 0,
        "recompute": recompute,
    }
