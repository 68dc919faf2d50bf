"""Hugging Face accelerate's config files."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import yaml

from search_spaces.model_spec import ModelSpec
from tuner.baselines import deepspeed
from tuner.baselines.base import Baseline, make_config, replicas_of, whole
from tuner.errors import ConfigError

TRAINER = "accelerate"
_KINDS = ("NO", "MULTI_GPU", "MULTI_CPU", "FSDP", "DEEPSPEED", "MEGATRON_LM")
_MICRO_BATCH = "the file holds no micro-batch: set search.baseline.micro_batch_size"


def read(path: Path, text: str, *, devices: int | None, model: ModelSpec | None) -> Baseline:
    """The baseline of an accelerate YAML file.

    Raises:
        ConfigError: it is not YAML, or a value is missing or wrong.
    """
    try:
        document = yaml.safe_load(text)
    except yaml.YAMLError as error:
        raise ConfigError(f"{path} is not YAML: {' '.join(str(error).split())}") from None
    if not isinstance(document, dict):
        raise ConfigError(f"{path} must hold a mapping")
    kind = str(document.get("distributed_type", "NO")).upper()
    if kind not in _KINDS:
        raise ConfigError(f"distributed_type {kind} is not read", f"known: {', '.join(_KINDS)}")
    found = document.get("num_processes")
    world = devices or (whole(found, "num_processes", TRAINER) if found else None)
    common: dict[str, Any] = {
        "dtype": _dtype(document),
        "compile": "dynamo_backend" in (document.get("dynamo_config") or {}),
    }
    if kind == "DEEPSPEED":
        return _deepspeed(path, document, world, common)
    readers = {"FSDP": _fsdp, "MEGATRON_LM": _megatron}
    reader = readers.get(kind)
    knobs = reader(document, world) if reader else {"dp": replicas_of(world, 1, TRAINER)}
    # Under FSDP gradients travel in the precision of the recipe.
    if kind == "FSDP" and common["dtype"] == "bf16":
        common["reduce_dtype"] = "bf16"
    config = make_config(common | knobs, None)
    return Baseline(
        trainer=TRAINER, config=config, global_batch_size=config.dp, notes=(_MICRO_BATCH,)
    )


def _dtype(document: Mapping[str, Any]) -> str:
    name = str(document.get("mixed_precision", "no")).lower()
    if name in ("no", "false"):  # a bare `no` is false in YAML
        return "fp32"
    if name not in ("bf16", "fp16"):
        raise ConfigError(f"mixed_precision {name} is not read", "known: no, bf16, fp16")
    return name


def _section(document: Mapping[str, Any], name: str) -> dict[str, Any]:
    """A table, its keys without the prefix that accelerate gives them."""
    prefix = name.removesuffix("config")
    table = document.get(name) or {}
    if not isinstance(table, Mapping):
        raise ConfigError(f"{name} must hold a mapping")
    prefixes = (f"{name}_", prefix)
    return {_without(str(key), prefixes): value for key, value in table.items()}


def _without(key: str, prefixes: tuple[str, ...]) -> str:
    return next((key.removeprefix(p) for p in prefixes if p and key.startswith(p)), key)


def _fsdp(document: Mapping[str, Any], world: int | None) -> dict[str, Any]:
    fsdp, mesh = _section(document, "fsdp_config"), _section(document, "parallelism_config")
    tp, cp = int(mesh.get("tp_size", 1)), int(mesh.get("cp_size", 1))
    dp = replicas_of(world, tp * cp, TRAINER)
    replicate = int(mesh.get("dp_replicate_size", 1))
    shard = int(mesh.get("dp_shard_size", dp // replicate)) * cp
    strategy = str(fsdp.get("sharding_strategy", "")).upper()
    keeps = str(fsdp.get("reshard_after_forward", "true")).lower() in ("false", "shard_grad_op")
    stage = 2 if keeps or strategy in ("SHARD_GRAD_OP", "2") else 3
    if strategy in ("NO_SHARD", "3") or shard == 1:
        stage = 0
    return {
        "dp": dp,
        "tp": tp,
        "cp": cp,
        "zero_stage": stage,
        "zero_shard_degree": shard if stage and replicate > 1 else 0,
        "recompute": "full" if _is_true(fsdp.get("activation_checkpointing")) else "none",
        "optimizer_offload": _is_true(fsdp.get("offload_params")),
    }


def _megatron(document: Mapping[str, Any], world: int | None) -> dict[str, Any]:
    values = _section(document, "megatron_lm_config")
    tp, pp = int(values.get("tp_degree", 1)), int(values.get("pp_degree", 1))
    return {
        "dp": replicas_of(world, tp * pp, TRAINER),
        "tp": tp,
        "pp": pp,
        "sequence_parallel": _is_true(values.get("sequence_parallelism")),
        "zero_stage": int(_is_true(values.get("use_distributed_optimizer"))),
        "recompute": "selective" if _is_true(values.get("recompute_activations")) else "none",
    }


def _deepspeed(
    path: Path, document: Mapping[str, Any], world: int | None, common: Mapping[str, Any]
) -> Baseline:
    values = _section(document, "deepspeed_config")
    beside = values.get("file")  # deepspeed_config_file
    if beside:
        place = path.parent / str(beside)
        if not place.is_file():
            raise ConfigError(f"the DeepSpeed file {str(beside)!r} is not beside {path}")
        text = place.read_text(encoding="utf-8")
        return deepspeed.read(place, text, devices=world, model=None)
    steps = values.get("gradient_accumulation_steps", 1)
    inner: dict[str, Any] = {
        "train_micro_batch_size_per_gpu": 1,
        "gradient_accumulation_steps": 1 if steps == "auto" else steps,
        "zero_optimization": {
            "stage": values.get("zero_stage", 2),
            "offload_optimizer": {"device": values.get("offload_optimizer_device", "none")},
        },
        str(common["dtype"]): {"enabled": common["dtype"] != "fp32"},
    }
    found = deepspeed.baseline_of(inner, devices=world, knobs={"compile": common["compile"]})
    return Baseline(
        trainer=TRAINER,
        config=found.config,
        global_batch_size=found.global_batch_size,
        notes=(*found.notes, _MICRO_BATCH),
    )


def _is_true(value: Any) -> bool:
    return str(value).lower() == "true"
