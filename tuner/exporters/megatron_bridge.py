"""Megatron-Bridge: overrides of a recipe in Hydra's notation."""

from collections.abc import Mapping
from typing import Any, ClassVar

from tuner.exporters.base import BaseExporter, Knob, goes, only
from tuner.exporters.megatron_lm import MegatronLmExporter, layout_text
from tuner.exporters.scripts import head, torchrun_script
from tuner.ports import Export, ExportRequest

OVERRIDES = "overrides.txt"
_RECIPES = {"fp32": None, "bf16": "bf16_mixed"}
_STRATEGIES = {2: "optim_grads", 3: "optim_grads_params"}


class MegatronBridgeExporter(BaseExporter):
    """Megatron-Bridge, which takes what Megatron's core takes, by the names of its fields."""

    name = "megatron-bridge"
    trainer = "Megatron-Bridge"
    versions = "0.2 to 0.7"
    round_trip = "process_config_with_overrides of megatron-bridge 0.3.1 over its config classes"
    knobs: ClassVar[Mapping[str, Knob]] = {
        **MegatronLmExporter.knobs,
        "dp": goes("implied: world size over the other degrees, in --nproc-per-node"),
        "tp": goes("model.tensor_model_parallel_size"),
        "sequence_parallel": goes(
            "model.sequence_parallel", *MegatronLmExporter.knobs["sequence_parallel"].checks
        ),
        "cp": goes("model.context_parallel_size"),
        "ep": goes("model.expert_model_parallel_size"),
        "pp": goes("model.pipeline_model_parallel_size"),
        "virtual_stages": goes("model.virtual_pipeline_model_parallel_size"),
        "pipeline_schedule": goes(
            "1f1b, or interleaved where there are virtual stages",
            *MegatronLmExporter.knobs["pipeline_schedule"].checks,
        ),
        "stage_layers": goes("model.pipeline_model_parallel_layout"),
        "micro_batch_size": goes("train.micro_batch_size, with train.global_batch_size"),
        "zero_stage": goes(
            "1: ddp.use_distributed_optimizer; 2, 3: ddp.use_megatron_fsdp, dist.use_megatron_fsdp "
            "and ddp.data_parallel_sharding_strategy"
        ),
        "zero_shard_degree": goes("ddp.num_distributed_optimizer_instances: dp x cp over it"),
        "recompute": goes("model.recompute_granularity, model.recompute_method"),
        "recompute_layers": goes(
            "model.recompute_num_layers", *MegatronLmExporter.knobs["recompute_layers"].checks
        ),
        "dtype": goes(
            "mixed_precision",
            only("dtype", ("fp32", "bf16"), "fp16_mixed reduces gradients in fp16", dtype="bf16"),
        ),
        "reduce_dtype": goes(
            "the recipe named in mixed_precision",
            only("reduce_dtype", ("fp32",), "bf16_mixed reduces in fp32", reduce_dtype="fp32"),
        ),
        "optimizer_offload": goes(
            "optimizer.optimizer_cpu_offload with optimizer.use_precision_aware_optimizer",
            *MegatronLmExporter.knobs["optimizer_offload"].checks,
        ),
    }

    def write(self, request: ExportRequest) -> Export:
        """The overrides and a script that runs a recipe with them."""
        title = head(request, self.trainer, self.versions)
        lines = [f"{name}={_hydra(value)}\n" for name, value in _overrides(request).items()]
        program = 'run_recipe.py --recipe "${RECIPE:?the recipe of your model}"'
        return Export(
            files={
                OVERRIDES: title + "".join(lines),
                "run.sh": torchrun_script(request, title, program, arguments_in=OVERRIDES),
            },
            notes=("name the recipe of your model in RECIPE, e.g. llama3_8b_pretrain_config",),
        )


def _hydra(value: Any) -> str:
    if isinstance(value, bool) or value is None:
        return {True: "true", False: "false", None: "null"}[value]
    return str(value)


def _overrides(request: ExportRequest) -> dict[str, Any]:
    config, training = request.config, request.training
    virtual = config.virtual_stages if config.virtual_stages > 1 else None
    values: dict[str, Any] = {
        "train.micro_batch_size": config.micro_batch_size,
        "train.global_batch_size": training.global_batch_size,
        "model.seq_length": training.sequence_length,
        "dataset.sequence_length": training.sequence_length,
        "model.tensor_model_parallel_size": config.tp,
        "model.pipeline_model_parallel_size": config.pp,
        "model.virtual_pipeline_model_parallel_size": virtual,
        "model.context_parallel_size": config.cp,
        "model.expert_model_parallel_size": config.ep,
        "model.sequence_parallel": config.sequence_parallel,
        "mixed_precision": _RECIPES[config.dtype],
        "optimizer.lr": training.learning_rate,
    }
    if config.stage_layers is not None:
        values["model.pipeline_model_parallel_layout"] = f'"{layout_text(config.stage_layers)}"'
    return values | _sharding(request) | _recomputation(request)


def _sharding(request: ExportRequest) -> dict[str, Any]:
    config = request.config
    is_fsdp = config.zero_stage >= 2
    values: dict[str, Any] = {
        "ddp.use_distributed_optimizer": config.zero_stage > 0,
        "optimizer.use_distributed_optimizer": config.zero_stage > 0,
        "ddp.use_megatron_fsdp": is_fsdp,
        "dist.use_megatron_fsdp": is_fsdp,
        "ddp.grad_reduce_in_fp32": True,
    }
    if is_fsdp:
        values["ddp.data_parallel_sharding_strategy"] = _STRATEGIES[config.zero_stage]
        values["checkpoint.ckpt_format"] = "fsdp_dtensor"
    if config.zero_shard_degree:
        instances = config.dp * config.cp // config.zero_shard_degree
        values["ddp.num_distributed_optimizer_instances"] = instances
    if config.optimizer_offload:
        values["optimizer.optimizer_cpu_offload"] = True
        values["optimizer.use_precision_aware_optimizer"] = True
    return values


def _recomputation(request: ExportRequest) -> dict[str, Any]:
    config = request.config
    full, part = config.recompute == "full", config.recompute_layers
    return {
        "model.recompute_granularity": None if config.recompute == "none" else config.recompute,
        "model.recompute_method": ("uniform" if part is None else "block") if full else None,
        "model.recompute_num_layers": (part or 1) if full else None,
    }
