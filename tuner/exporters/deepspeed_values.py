"""DeepSpeed's JSON config, which several trainers read, and the reasons against some values."""

from typing import Any

from tuner.exporters.base import Check, Knob, goes, never, unless, whole_layers
from tuner.ports import ExportRequest


def offload_needs_shards() -> Check:
    """A check of `optimizer_offload`: DeepSpeed offloads the optimizer of its ZeRO stages."""
    return unless(
        "optimizer_offload",
        lambda r: not r.config.optimizer_offload or r.config.zero_stage > 0,
        "it offloads the optimizer of a ZeRO stage alone",
        optimizer_offload=lambda r: r.config.dp * r.config.cp > 1,
        zero_stage=lambda r: 1 if r.config.dp * r.config.cp > 1 else 0,
    )


def pipeline_engine(zero_stage: str, recompute: str, optimizer_offload: str) -> dict[str, Knob]:
    """Knobs that trainers on DeepSpeed's pipeline engine share, with the places of three."""
    return {
        "virtual_stages": never(
            "virtual_stages",
            "DeepSpeed's engine runs one stage on a rank",
            virtual_stages=1,
            pipeline_schedule="1f1b",
            stage_layers=None,
        ),
        "stage_layers": never("stage_layers", "its stages get equal numbers of layers"),
        "zero_stage": goes(
            zero_stage,
            unless(
                "zero_stage",
                lambda r: r.config.zero_stage < 2 or r.config.pp == 1,
                "its pipeline engine takes stages 0 and 1",
                zero_stage=1,
                zero_shard_degree=0,
            ),
        ),
        "zero_shard_degree": never("zero_shard_degree", "DeepSpeed shards over all replicas"),
        **whole_layers(recompute),
        "compile": never("compile", "it does not torch.compile its layers"),
        "optimizer_offload": goes(optimizer_offload, offload_needs_shards()),
    }


def document(request: ExportRequest) -> dict[str, Any]:
    """The config; its three batch sizes are all given, and DeepSpeed checks their product."""
    config, training = request.config, request.training
    zero: dict[str, Any] = {"stage": config.zero_stage}
    if config.optimizer_offload:
        zero["offload_optimizer"] = {"device": "cpu", "pin_memory": True}
    values: dict[str, Any] = {
        "train_batch_size": training.global_batch_size,
        "train_micro_batch_size_per_gpu": config.micro_batch_size,
        "gradient_accumulation_steps": request.num_microbatches,
        "zero_optimization": zero,
        "bf16": {"enabled": config.dtype == "bf16"},
        "fp16": {"enabled": config.dtype == "fp16"},
    }
    if config.dtype != "fp32":
        values["communication_data_type"] = config.reduce_dtype
    if config.dtype == "bf16":
        # Our gradients add up in fp32, whatever the type that they travel in.
        values["data_types"] = {"grad_accum_dtype": "fp32"}
    return values
