"""DeepSpeed's JSON config."""

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from search_spaces.model_spec import ModelSpec
from tuner.baselines.base import Baseline, make_config, replicas_of, whole
from tuner.errors import ConfigError

TRAINER = "DeepSpeed"
_SIZES = ("train_batch_size", "train_micro_batch_size_per_gpu", "gradient_accumulation_steps")


def read(path: Path, text: str, *, devices: int | None, model: ModelSpec | None) -> Baseline:
    """The baseline of a DeepSpeed JSON file.

    Raises:
        ConfigError: it is not JSON, or a value is missing or wrong.
    """
    try:
        document = json.loads(text)
    except ValueError as error:
        raise ConfigError(f"{path} is not JSON: {error}") from None
    if not isinstance(document, dict):
        raise ConfigError(f"{path} must hold one JSON object")
    return baseline_of(document, devices=devices)


def baseline_of(
    document: Mapping[str, Any], *, devices: int | None, knobs: Mapping[str, Any] | None = None
) -> Baseline:
    """The same of a document that is read already; `knobs` come from a file around it."""
    tp = max(1, int(_section(document, "tensor_parallel").get("autotp_size", 1) or 1))
    micro, batch, dp = _batch(document, devices, tp)
    zero = _section(document, "zero_optimization")
    bf16 = bool(_section(document, "bf16").get("enabled") is True)
    fp16 = bool(_section(document, "fp16").get("enabled") is True)
    dtype = "bf16" if bf16 else "fp16" if fp16 else "fp32"
    offload = zero.get("offload_optimizer") or {}
    checkpointing = "activation_checkpointing" in document
    values: dict[str, Any] = {
        "dp": dp,
        "tp": tp,
        "ep": int(_section(document, "expert_parallel").get("autoep_size", 1) or 1),
        "micro_batch_size": micro,
        "zero_stage": int(zero.get("stage", 0) or 0),
        "dtype": dtype,
        "reduce_dtype": "bf16" if _travels_in_bf16(document, dtype) else "fp32",
        "recompute": "full" if checkpointing else "none",
        "optimizer_offload": isinstance(offload, dict) and offload.get("device") == "cpu",
        **(knobs or {}),
    }
    notes = []
    if checkpointing:
        notes.append("activation_checkpointing was taken to mean recomputation of whole layers")
    if isinstance(zero.get("offload_param"), dict):
        notes.append("offload_param has no counterpart here and was left out")
    optimizer = str(_section(document, "optimizer").get("type", "AdamW")).lower()
    rate = _section(_section(document, "optimizer"), "params").get("lr")
    return Baseline(
        trainer=TRAINER,
        config=make_config(values, None),
        global_batch_size=batch,
        optimizer="sgd" if optimizer == "sgd" else "adamw",
        learning_rate=float(rate) if isinstance(rate, int | float) and rate > 0 else None,
        notes=tuple(notes),
    )


def _section(document: Mapping[str, Any], name: str) -> Mapping[str, Any]:
    found = document.get(name, {})
    return found if isinstance(found, Mapping) else {}


def _travels_in_bf16(document: Mapping[str, Any], dtype: str) -> bool:
    named = document.get("communication_data_type")
    return named in ("bf16", "bfp16", "bfloat16") or (named is None and dtype == "bf16")


def _batch(document: Mapping[str, Any], devices: int | None, tp: int) -> tuple[int, int, int]:
    """Micro-batch, global batch and replicas: two of three sizes, and the devices or the third."""
    given = {
        name: whole(document[name], name, TRAINER)
        for name in _SIZES
        if document.get(name) not in (None, "auto")
    }
    batch, micro, steps = (given.get(name) for name in _SIZES)
    if devices is None and len(given) == len(_SIZES):
        per_replica = (micro or 1) * (steps or 1)
        if (batch or 0) % per_replica:
            raise ConfigError(f"train_batch_size {batch} is no multiple of {micro} x {steps}")
        return micro or 1, batch or 1, (batch or 1) // per_replica
    dp = replicas_of(devices, tp, TRAINER)
    if micro is None:
        micro = (batch or 0) // (dp * (steps or 1))
    if micro < 1:
        raise ConfigError(
            "the DeepSpeed file does not fix the micro-batch",
            hint=f"put numbers in place of auto: {', '.join(_SIZES)}",
        )
    batch = batch or micro * (steps or 1) * dp
    if batch % (micro * dp):
        raise ConfigError(
            f"train_batch_size {batch} is no multiple of micro-batch {micro} x {dp} replicas"
        )
    return micro, batch, dp
