"""Megatron-LM's and Megatron-DeepSpeed's arguments, from an argument file or a script."""

import re
from pathlib import Path
from typing import Any

from search_spaces.model_spec import ModelSpec
from tuner.baselines.base import Baseline, make_config, replicas_of
from tuner.baselines.flags import Flags, read_flags
from tuner.baselines.megatron_model import model_of
from tuner.errors import ConfigError

TRAINER = "Megatron"
_STRATEGIES = {"no_shard": 0, "optim": 1, "optim_grads": 2, "optim_grads_params": 3}
# Flags that change the speed and that the trials here have nothing for.
_WITHOUT_COUNTERPART = (
    "fp8-format", "fp4-format", "tp-comm-overlap", "cpu-offloading-num-layers",
    "fine-grained-activation-offloading", "mtp-num-layers", "multi-latent-attention",
    "ds-sequence-parallel-size", "moe-grouped-gemm",
)  # fmt: skip


def read(path: Path, text: str, *, devices: int | None, model: ModelSpec | None) -> Baseline:
    """The baseline of a file of Megatron's flags.

    Raises:
        ConfigError: a flag that is needed is missing or wrong.
    """
    flags = read_flags(text)
    described = model_of(flags, path.stem) if model is None else None
    shape = model or described
    num_layers = shape.num_layers if shape else None
    tp = flags.count("tensor-model-parallel-size", "model-parallel-size") or 1
    pp = flags.count("pipeline-model-parallel-size") or 1
    cp = flags.count("context-parallel-size") or 1
    dp = replicas_of(devices or _devices(flags), tp * pp * cp, TRAINER)
    micro = flags.count("micro-batch-size")
    if micro is None:
        raise ConfigError("the Megatron file has no --micro-batch-size")
    virtual, split = _stages(flags, pp, num_layers)
    knobs: dict[str, Any] = {
        "dp": dp,
        "tp": tp,
        "cp": cp,
        "pp": pp,
        "ep": flags.count("expert-model-parallel-size", "moe-expert-parallel-size") or 1,
        "sequence_parallel": flags.has("sequence-parallel"),
        "virtual_stages": virtual,
        "pipeline_schedule": _schedule(flags, virtual),
        "stage_layers": split,
        "micro_batch_size": micro,
        "optimizer_offload": flags.has("optimizer-cpu-offload", "cpu-optimizer"),
        **_sharding(flags, dp * cp),
        **_recomputation(flags),
        **_precision(flags),
    }
    return Baseline(
        trainer=TRAINER,
        config=make_config(knobs, num_layers),
        model=described,
        sequence_length=flags.count("seq-length"),
        global_batch_size=flags.count("global-batch-size") or micro * dp,
        optimizer="sgd" if flags.text("optimizer") == "sgd" else "adamw",
        learning_rate=flags.number("lr", default=1e-4),
        notes=tuple(
            f"--{name} has no counterpart here and was left out"
            for name in _WITHOUT_COUNTERPART
            if flags.has(name)
        ),
    )


def _devices(flags: Flags) -> int | None:
    """What the flags of torchrun or Slurm in the same file come to, if they are there."""
    per_node = flags.text("nproc-per-node", "nproc-per-node", "gpus-per-node", "ntasks-per-node")
    if per_node is None or not per_node.isdecimal():
        return None
    nodes = flags.text("nnodes", "nodes")
    if nodes is not None and not nodes.isdecimal():
        return None
    return int(per_node) * int(nodes or 1)


def _schedule(flags: Flags, virtual_stages: int) -> str:
    if flags.has("enable-zbh1-pipeline"):
        return "zero_bubble"
    return "interleaved" if virtual_stages > 1 else "1f1b"


def _stages(flags: Flags, pp: int, num_layers: int | None) -> tuple[int, tuple[int, ...] | None]:
    """Virtual stages, and the layers of each stage where they are uneven."""
    layout = flags.text("pipeline-model-parallel-layout")
    if layout is not None:
        split = layers_of_layout(layout)
        if len(split) % pp:
            raise ConfigError(f"the layout {layout!r} has {len(split)} stages for {pp} ranks")
        return len(split) // pp, split
    virtual = flags.count("num-virtual-stages-per-pipeline-rank") or 1
    per_stage = flags.count("num-layers-per-virtual-pipeline-stage")
    if per_stage is not None and num_layers is not None:
        virtual = max(1, num_layers // pp // per_stage)
    first = flags.count("decoder-first-pipeline-num-layers")
    last = flags.count("decoder-last-pipeline-num-layers")
    if (first is None and last is None) or num_layers is None or pp == 1:
        return virtual, None
    if virtual > 1:
        raise ConfigError("uneven first or last stages with virtual stages cannot be taken over")
    middle = pp - (first is not None) - (last is not None)
    rest = num_layers - (first or 0) - (last or 0)
    if (middle == 0 and rest) or (middle and (rest % middle or rest < middle)):
        raise ConfigError(f"{rest} layers are left for {middle} stages in the middle")
    ends = ([first] if first else [], [last] if last else [])
    return 1, (*ends[0], *([rest // middle] * middle if middle else []), *ends[1])


_REPEATED = re.compile(r"\(([^()]*)\)\*(\d+)|([a-zA-Z])\*(\d+)")


def layers_of_layout(layout: str) -> tuple[int, ...]:
    """Decoder layers of each stage of a `--pipeline-model-parallel-layout`.

    Raises:
        ConfigError: it holds other things than embedding, decoder layers and loss.
    """
    text = layout.replace(",", "").replace(" ", "")
    while (match := _REPEATED.search(text)) is not None:
        part = match[1] if match[1] is not None else match[3]
        text = text[: match.start()] + part * int(match[2] or match[4]) + text[match.end() :]
    if set(text) - set("EtL|"):
        raise ConfigError(
            f"the layout {layout!r} holds more than embedding, layers and loss",
            hint="it may have E, t, L and |",
        )
    return tuple(stage.count("t") for stage in text.split("|"))


def _sharding(flags: Flags, group: int) -> dict[str, Any]:
    stage = 1 if flags.has("use-distributed-optimizer") else 0
    if flags.has("zero-stage"):
        stage = int(flags.number("zero-stage", default=0))
    if flags.has("use-megatron-fsdp", "use-custom-fsdp"):
        strategy = flags.text("data-parallel-sharding-strategy") or "optim_grads_params"
        if strategy not in _STRATEGIES:
            raise ConfigError(
                f"--data-parallel-sharding-strategy is {strategy!r}",
                hint=f"known: {', '.join(_STRATEGIES)}",
            )
        stage = _STRATEGIES[strategy]
    if flags.has("use-torch-fsdp2"):
        stage = 2 if flags.has("torch-fsdp2-no-reshard-after-forward") else 3
    instances = flags.count("num-distributed-optimizer-instances") or 1
    return {"zero_stage": stage, "zero_shard_degree": group // instances if instances > 1 else 0}


def _recomputation(flags: Flags) -> dict[str, Any]:
    granularity = flags.text("recompute-granularity") or "none"
    if flags.has("recompute-activations"):
        granularity = "selective"
    if flags.has("checkpoint-activations", "deepspeed-activation-checkpointing"):
        granularity = "full"
    if granularity not in ("none", "selective", "full"):
        raise ConfigError(f"--recompute-granularity is {granularity!r}", "full or selective")
    in_part = granularity == "full" and flags.text("recompute-method") == "block"
    return {
        "recompute": granularity,
        "recompute_layers": flags.count("recompute-num-layers") if in_part else None,
    }


def _precision(flags: Flags) -> dict[str, Any]:
    dtype = "bf16" if flags.has("bf16") else "fp16" if flags.has("fp16") else "fp32"
    in_bf16 = dtype == "bf16" and flags.has("grad-reduce-in-bf16")
    return {"dtype": dtype, "reduce_dtype": "bf16" if in_bf16 else "fp32"}
