"""torchtitan's TOML files."""

import math
import tomllib
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from search_spaces.model_io import load_model_spec
from search_spaces.model_spec import ModelSpec
from tuner.baselines.base import Baseline, make_config, replicas_of, whole
from tuner.errors import ConfigError

TRAINER = "torchtitan"
_SCHEDULES = {
    "1f1b": "1f1b",
    "gpipe": "gpipe",
    "interleaved1f1b": "interleaved",
    "zbvzerobubble": "zbv",
}
_ENDS = ("first", "last")
_PRESETS = {"8B": "llama3-8b", "70B": "llama3-70b"}


def read(path: Path, text: str, *, devices: int | None, model: ModelSpec | None) -> Baseline:
    """The baseline of a torchtitan TOML file.

    Raises:
        ConfigError: it is not TOML, or a value is missing or wrong.
    """
    try:
        document = tomllib.loads(text)
    except tomllib.TOMLDecodeError as error:
        raise ConfigError(f"{path} is not TOML: {error}") from None
    preset = _PRESETS.get(str(_Section(document, "model").get("flavor", "")))
    shape = model or (load_model_spec(preset) if preset else None)
    num_layers = shape.num_layers if shape else None
    parallel = _Section(document, "parallelism")
    training = _Section(document, "training")
    tp, cp = parallel.count("tensor_parallel_degree"), parallel.count("context_parallel_degree")
    pp = parallel.count("pipeline_parallel_degree")
    replicate = parallel.count("data_parallel_replicate_degree")
    shard = parallel.get("data_parallel_shard_degree", -1)
    if shard == -1:
        shard = replicas_of(devices, tp * cp * pp * replicate, TRAINER)
    dp = replicate * whole(shard, "data_parallel_shard_degree", TRAINER)
    local = training.count("local_batch_size", 8)
    micro = parallel.count("pipeline_parallel_microbatch_size") if pp > 1 else local
    batch = training.get("global_batch_size", -1)
    sharded = shard * cp > 1
    knobs: dict[str, Any] = {
        "dp": dp,
        "tp": tp,
        "cp": cp,
        "pp": pp,
        "sequence_parallel": tp > 1,
        "micro_batch_size": micro,
        "zero_stage": _stage(parallel, pp) if sharded else 0,
        "zero_shard_degree": shard * cp if sharded and replicate > 1 else 0,
        "dtype": _dtype(training),
        "compile": bool(_Section(document, "compile").get("enable", False)),
        **_pipeline(parallel, pp, num_layers),
    }
    recompute, notes = _recomputation(_Section(document, "activation_checkpoint"))
    if training.get("enable_cpu_offload", False):
        notes.append("enable_cpu_offload was taken to mean the optimizer's states")
        knobs["optimizer_offload"] = True
    rate = _Section(document, "optimizer").get("lr", None)
    return Baseline(
        trainer=TRAINER,
        config=make_config(knobs | {"recompute": recompute}, num_layers),
        model_source=preset,
        sequence_length=training.count("seq_len", 2048),
        global_batch_size=local * dp if batch == -1 else whole(batch, "global_batch_size", TRAINER),
        optimizer="adamw",
        learning_rate=float(rate) if isinstance(rate, int | float) and rate > 0 else None,
        notes=tuple(notes),
    )


class _Section:
    """A table of the file; absent is empty."""

    def __init__(self, document: Mapping[str, Any], name: str) -> None:
        found = document.get(name, {})
        self._values = found if isinstance(found, Mapping) else {}

    def get(self, key: str, default: Any) -> Any:
        return self._values.get(key, default)

    def count(self, key: str, default: int = 1) -> int:
        return whole(self.get(key, default), key, TRAINER)


def _stage(parallel: _Section, pp: int) -> int:
    """By default it reshards after the forward pass, except under a pipeline."""
    usual = "never" if pp > 1 else "always"
    policy = parallel.get("fsdp_reshard_after_forward", "default")
    return 2 if (usual if policy == "default" else policy) == "never" else 3


def _dtype(training: _Section) -> str:
    whole_run = training.get("dtype", "float32")
    name = str(training.get("mixed_precision_param", "bfloat16"))
    return "bf16" if "bfloat16" in (name, whole_run) else "fp32"


def _pipeline(parallel: _Section, pp: int, num_layers: int | None) -> dict[str, Any]:
    if pp == 1:
        return {}
    named = str(parallel.get("pipeline_parallel_schedule", "1F1B"))
    schedule = _SCHEDULES.get(named.lower())
    if schedule is None:
        raise ConfigError(
            f"the schedule {named!r} has no counterpart here", f"known: {', '.join(_SCHEDULES)}"
        )
    parts = parallel.get("module_fqns_per_model_part", None)
    if parts:
        split = tuple(sum(name.startswith("layers.") for name in part) for part in parts)
        return {
            "pipeline_schedule": schedule,
            "virtual_stages": math.ceil(len(split) / pp),
            "stage_layers": split,
        }
    virtual = 2 if schedule in ("interleaved", "zbv") else 1
    per_stage = parallel.get("pipeline_parallel_layers_per_stage", None)
    if per_stage is not None and num_layers is not None:
        less = sum(parallel.get(f"pipeline_parallel_{end}_stage_less_layers", 1) for end in _ENDS)
        layers = whole(per_stage, "pipeline_parallel_layers_per_stage", TRAINER)
        virtual = max(1, math.ceil((num_layers + less) / layers) // pp)
    return {"pipeline_schedule": schedule, "virtual_stages": virtual}


def _recomputation(section: _Section) -> tuple[str, list[str]]:
    mode = section.get("mode", "selective")
    if mode in ("none", "full"):
        return str(mode), []
    return "none", [
        f"activation_checkpoint.mode {mode!r} has no counterpart here and was taken as none"
    ]
