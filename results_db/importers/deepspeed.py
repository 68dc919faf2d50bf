"""DeepSpeed's autotuner: its `autotuning_results` folder.

One folder an experiment (`deepspeed/autotuning/scheduler.py`): `exp.json` with `ds_config`,
`num_gpus` a node and `num_nodes`; `metrics.json` with `throughput` (samples a second) when it ran;
`stderr.log` with the error when it did not.
"""

import json
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from results_db.errors import DatabaseUnreadable
from results_db.importers.base import ForeignTrial, Recipe, crash, number, oom
from results_db.records import FailureRow

_OOM_WORDS = ("out of memory", "OutOfMemory", "CUDA OOM")


def read(path: Path, recipe: Recipe) -> Iterator[ForeignTrial | str]:
    """Trials of a results folder, in the order of their names.

    Raises:
        DatabaseUnreadable: the folder holds no experiment.
    """
    found = sorted(path.glob("**/exp.json"))
    if not found:
        raise DatabaseUnreadable(
            f"{path} holds no exp.json", "name DeepSpeed's folder autotuning_results"
        )
    for file in found:
        experiment = _load(file)
        if not isinstance(experiment.get("ds_config"), Mapping):
            yield f"{file.parent.name}: exp.json has no ds_config"
        else:
            yield _trial(file.parent, experiment, recipe)


def _load(file: Path) -> dict[str, Any]:
    try:
        loaded = json.loads(file.read_text(encoding="utf-8"))
    except (OSError, UnicodeDecodeError, json.JSONDecodeError):
        return {}
    return loaded if isinstance(loaded, dict) else {}


def _trial(folder: Path, experiment: Mapping[str, Any], recipe: Recipe) -> ForeignTrial:
    config: Mapping[str, Any] = experiment["ds_config"]
    devices = int(experiment.get("num_gpus") or 1) * int(experiment.get("num_nodes") or 1)
    knobs = _knobs(config, devices, int(experiment.get("mp_size") or 1))
    metrics = _load(folder / "metrics.json")
    value = number(metrics.get(recipe.metric or "throughput"))
    accumulation = number(config.get("gradient_accumulation_steps")) or 1
    batch = number(config.get("train_batch_size"))
    sequences = batch or knobs["dp"] * knobs["micro_batch_size"] * accumulation
    return ForeignTrial(
        knobs=knobs,
        value=value,
        unit=recipe.unit or "samples_per_s",
        global_batch_size=int(sequences),
        failure=None if value else _failure(folder / "stderr.log"),
        model_flops_per_s_per_device=number(metrics.get("FLOPS_per_gpu")) or 0.0,
    )


def _failure(log: Path) -> FailureRow:
    try:
        lines = log.read_text(encoding="utf-8", errors="replace").splitlines()
    except OSError:
        lines = []
    telling = [line.strip() for line in lines if "Error" in line or "error" in line]
    message = telling[-1] if telling else "no metrics.json was written"
    is_oom = any(word in line for line in lines for word in _OOM_WORDS)
    return oom(message) if is_oom else crash(message)


def _knobs(config: Mapping[str, Any], devices: int, tp: int) -> dict[str, Any]:
    zero = config.get("zero_optimization") or {}
    offload = zero.get("offload_optimizer") or {}
    dtype = "fp32"
    for name in ("fp16", "bf16"):
        if (config.get(name) or {}).get("enabled"):
            dtype = name
    return {
        "dp": max(devices // tp, 1),
        "tp": tp,
        "micro_batch_size": int(number(config.get("train_micro_batch_size_per_gpu")) or 1),
        "zero_stage": int(zero.get("stage") or 0),
        "optimizer_offload": offload.get("device", "none") not in ("none", None),
        "dtype": dtype,
    }
