"""What accelerate and what stands on it have in common: FSDP2 with a mesh of four axes, or DDP."""

from collections.abc import Mapping
from typing import Any

from tuner.exporters.base import (
    Knob,
    goes,
    never,
    no_pipeline,
    only,
    tensor_1d,
    unless,
    whole_layers,
)
from tuner.ports import ExportRequest


def shard_degree(request: ExportRequest) -> int:
    """Replicas that share the shards; the ranks of cp come on top."""
    config = request.config
    if config.zero_stage == 0:
        return 1
    return config.zero_shard_degree // config.cp if config.zero_shard_degree else config.dp


def is_fsdp(request: ExportRequest) -> bool:
    """Whether FSDP2 is needed: for shards, and for any axis but that of the replicas."""
    config = request.config
    return config.zero_stage > 0 or config.tp * config.cp > 1


def fsdp_config(request: ExportRequest, prefix: str = "") -> dict[str, Any]:
    """FSDP2's own keys, each behind the prefix."""
    config = request.config
    values = {
        "auto_wrap_policy": "TRANSFORMER_BASED_WRAP",
        "reshard_after_forward": config.zero_stage == 3,
        "activation_checkpointing": config.recompute == "full",
        "offload_params": False,
        "state_dict_type": "SHARDED_STATE_DICT",
    }
    return {prefix + name: value for name, value in values.items()}


def _no_lonely_replicas(request: ExportRequest) -> bool:
    """Replicas without shards are DDP, which goes with no other axis."""
    config = request.config
    beside_others = config.tp * config.cp > 1
    replicas = config.dp // shard_degree(request)
    return not (beside_others and replicas > 1 and shard_degree(request) == 1)


def _nearest_reduction(request: ExportRequest) -> str:
    sharded = is_fsdp(request) and request.config.dp * request.config.cp > 1
    return "bf16" if sharded and request.config.dtype == "bf16" else "fp32"


def knobs(
    *,
    dp: str,
    tp: str,
    cp: str,
    micro_batch_size: str,
    reshard: str,
    zero_shard_degree: str,
    recompute: str,
    dtype: str,
    compile: Knob,  # noqa: A002 -- the knob's name
) -> Mapping[str, Knob]:
    """The knobs, with the places where a trainer puts them."""
    return {
        "dp": goes(dp),
        "tp": goes(tp),
        **tensor_1d(),
        "sequence_parallel": never(
            "sequence_parallel", "the model's own plan says what tp shards, not the config"
        ),
        "cp": goes(cp),
        "ep": never("ep", "its mesh has no axis for experts"),
        **no_pipeline("its mesh has no axis for pipelines"),
        "micro_batch_size": goes(micro_batch_size),
        "zero_stage": goes(
            f"0: DDP; 2, 3: FSDP2 with {reshard}",
            only("zero_stage", (0, 2, 3), "FSDP2 shards gradients too", zero_stage=2),
            unless(
                "zero_stage",
                lambda r: r.config.zero_stage > 0 or r.config.cp == 1,
                "under cp it always shards",
                zero_stage=2,
            ),
            unless(
                "zero_stage",
                _no_lonely_replicas,
                "it has no replicas without shards beside tp or cp",
                zero_stage=2,
                zero_shard_degree=0,
            ),
        ),
        "zero_shard_degree": goes(
            zero_shard_degree,
            unless(
                "zero_shard_degree",
                lambda r: r.config.zero_shard_degree % r.config.cp == 0,
                "its shard sets hold whole cp groups",
                zero_shard_degree=0,
            ),
        ),
        **whole_layers(recompute),
        "dtype": goes(
            dtype,
            unless(
                "dtype",
                lambda r: r.config.dtype != "fp16" or not is_fsdp(r),
                "FSDP2 would reduce gradients in fp16",
                dtype="bf16",
            ),
        ),
        "reduce_dtype": goes(
            "the precision of FSDP2; fp32 under DDP",
            unless(
                "reduce_dtype",
                lambda r: r.config.reduce_dtype == _nearest_reduction(r),
                "under FSDP2 gradients travel in the precision of the recipe, under DDP in fp32",
                reduce_dtype=_nearest_reduction,
            ),
        ),
        "compile": compile,
        "optimizer_offload": never(
            "optimizer_offload", "its offload moves parameters and gradients as well"
        ),
    }
