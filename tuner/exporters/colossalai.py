"""Colossal-AI: a Python module that makes the booster's plugin."""

from collections.abc import Mapping
from typing import Any, ClassVar

from tuner.exporters.base import (
    BaseExporter,
    Knob,
    goes,
    never,
    only,
    schedules,
    tensor_1d,
    unless,
    whole_rounds,
)
from tuner.exporters.scripts import head
from tuner.ports import Export, ExportRequest

MODULE = "tuned_plugin.py"
_PACKAGE = "colossalai.booster.plugin"
_STYLES = {"1f1b": "1f1b", "interleaved": "interleaved", "zbv": "zbv"}
_TORCH = {"fp32": "torch.float32", "bf16": "torch.bfloat16"}


def _is_gemini(request: ExportRequest) -> bool:
    return request.config.zero_stage == 3


def _reduces_in_own_precision(request: ExportRequest) -> bool:
    """Outside of its ZeRO 1 and 2, gradients travel as they are computed."""
    config = request.config
    return config.dp * config.cp > 1 and config.zero_stage in (0, 3) and config.dtype != "fp32"


_SHARDS_WHERE_POSSIBLE: Mapping[str, Any] = {
    "zero_stage": lambda r: 1 if r.config.dp * r.config.cp > 1 else 0,
    "zero_shard_degree": 0,
}


class ColossalAiExporter(BaseExporter):
    """The booster's plugins: Hybrid, its form for experts, and Gemini for stage 3."""

    name = "colossalai"
    trainer = "Colossal-AI"
    versions = "0.4 and 0.5"
    round_trip = "the plugins of colossalai 0.5.0, made on a fake process group"
    knobs: ClassVar[Mapping[str, Knob]] = {
        "dp": goes("implied: world size over the other sizes; extra_dp_size beside zero_stage 3"),
        "tp": goes("tp_size"),
        **tensor_1d(),
        "sequence_parallel": goes(
            "enable_sequence_parallelism with sequence_parallelism_mode split_gather",
            unless(
                "sequence_parallel",
                lambda r: not r.config.sequence_parallel or r.config.cp == 1,
                "a plugin has one mode, which cp takes",
                sequence_parallel=False,
            ),
        ),
        "cp": goes("sp_size with sequence_parallelism_mode ring_attn"),
        "ep": goes("ep_size of MoeHybridParallelPlugin"),
        "pp": goes("pp_size"),
        "virtual_stages": goes("num_model_chunks"),
        "pipeline_schedule": schedules(
            "pp_style",
            _STYLES,
            "its styles are 1f1b, interleaved and zbv",
            whole_rounds("interleaved", "zbv"),
        ),
        "stage_layers": goes(
            "num_layers_per_stage",
            unless(
                "stage_layers",
                lambda r: r.config.stage_layers is None or r.config.virtual_stages == 1,
                "it takes an uneven split without virtual stages alone",
                stage_layers=None,
            ),
        ),
        "micro_batch_size": goes("microbatch_size; MICRO_BATCH_SIZE for the data loader"),
        "zero_stage": goes(
            "zero_stage; 3: GeminiPlugin",
            unless(
                "zero_stage",
                lambda r: r.config.zero_stage < 2
                or (r.config.pp == 1 and not r.model.num_experts),
                "with pp or experts it takes stages 0 and 1",
                zero_stage=1,
                zero_shard_degree=0,
            ),
            unless(
                "zero_stage",
                lambda r: not _is_gemini(r) or r.config.cp == 1,
                "GeminiPlugin has no cp",
                zero_stage=2,
                zero_shard_degree=0,
            ),
        ),
        "zero_shard_degree": goes(
            "extra_dp_size of GeminiPlugin",
            unless(
                "zero_shard_degree",
                lambda r: r.config.zero_shard_degree == 0 or _is_gemini(r),
                "smaller shard sets exist for zero_stage 3 alone",
                zero_shard_degree=0,
            ),
        ),
        "recompute": goes(
            "GRADIENT_CHECKPOINTING, for model.gradient_checkpointing_enable",
            only("recompute", ("none", "full"), "it recomputes whole layers", recompute="full"),
        ),
        "recompute_layers": goes(
            "gradient_checkpoint_config",
            unless(
                "recompute_layers",
                lambda r: r.config.recompute_layers is None or not _is_gemini(r),
                "GeminiPlugin recomputes all layers or none",
                recompute_layers=None,
            ),
        ),
        "dtype": goes(
            "precision",
            unless(
                "dtype",
                lambda r: r.config.zero_stage == 0 or r.config.dtype != "fp32",
                "its ZeRO trains in bf16 or fp16",
                dtype="bf16",
            ),
        ),
        "reduce_dtype": goes(
            "communication_dtype under ZeRO 1 and 2, else that of precision",
            unless(
                "reduce_dtype",
                lambda r: not _reduces_in_own_precision(r) or r.config.dtype == "bf16",
                "without ZeRO 1 or 2 gradients travel in fp16",
                **_SHARDS_WHERE_POSSIBLE,
            ),
            unless(
                "reduce_dtype",
                lambda r: not _reduces_in_own_precision(r) or r.config.reduce_dtype == "bf16",
                "without ZeRO 1 or 2 gradients travel in bf16",
                reduce_dtype="bf16",
            ),
        ),
        "compile": never("compile", "it does not torch.compile its layers"),
        "optimizer_offload": goes(
            "cpu_offload; offload_optim_frac of GeminiPlugin",
            unless(
                "optimizer_offload",
                lambda r: not r.config.optimizer_offload or r.config.zero_stage > 0,
                "it offloads the optimizer of a ZeRO stage alone",
                optimizer_offload=lambda r: r.config.dp * r.config.cp > 1,
                **_SHARDS_WHERE_POSSIBLE,
            ),
        ),
    }  # fmt: skip

    def write(self, request: ExportRequest) -> Export:
        """The module, to import in a training script."""
        text = head(request, self.trainer, self.versions) + _module(request)
        launch = (
            f"colossalai run --nproc_per_node {request.ranks_per_node} --num_nodes "
            f"{request.num_nodes}"
        )
        return Export(
            files={MODULE: text},
            notes=(f"call make_plugin() in your script and start it by `{launch}`",),
        )


def _module(request: ExportRequest) -> str:
    config = request.config
    name, arguments = _gemini(request) if _is_gemini(request) else _hybrid(request)
    partial = config.recompute_layers is not None
    checkpoint = _checkpoint_config(request) if partial else ("", "")
    zbv = config.pipeline_schedule == "zbv" and config.pp > 1
    imports = "".join(
        sorted(
            line
            for line, needed in (
                (f"from {_PACKAGE} import {name}\n", True),
                ("from colossalai.pipeline.schedule.v_schedule import PipelineGraph\n", zbv),
                (f"from colossalai.shardformer import {checkpoint[0]}\n", partial),
                ("import torch\n", any("torch." in value for value in arguments.values())),
            )
            if needed
        )
    )
    if partial:
        arguments["gradient_checkpoint_config"] = checkpoint[1]
    if zbv:
        arguments["scheduler_nodes"] = _V_SCHEDULE.format(
            stages=config.pp,
            batches=request.num_microbatches,
            forward=34 * request.model.hidden_size
            + 5 * request.model.num_heads * request.training.sequence_length,
            weight=32 * request.model.hidden_size,
        )
    body = "".join(f"        {key}={value},\n" for key, value in arguments.items())
    return (
        f"{imports}\n"
        f"WORLD_SIZE = {config.world_size}\n"
        f"MICRO_BATCH_SIZE = {config.micro_batch_size}\n"
        f"GRADIENT_ACCUMULATION_STEPS = {request.num_microbatches}\n"
        f"GLOBAL_BATCH_SIZE = {request.training.global_batch_size}\n"
        f"GRADIENT_CHECKPOINTING = {config.recompute == 'full'}\n\n\n"
        "def make_plugin():\n"
        '    """The plugin for `colossalai.booster.Booster`; a pipeline takes a whole batch."""\n'
        f"    return {name}(\n{body}    )\n"
    )


# Costs that its own benchmark of the schedule uses: equal times, memory in units of a token.
_V_SCHEDULE = """PipelineGraph(
            n_stage={stages}, n_micro={batches}, f_cost=1000, b_cost=1000, w_cost=1000, c_cost=1,
            f_mem={forward}, b_mem={weight} - {forward}, w_mem=-{weight},
        ).get_v_schedule()"""


def _hybrid(request: ExportRequest) -> tuple[str, dict[str, str]]:
    config = request.config
    values: dict[str, Any] = {"tp_size": config.tp, "pp_size": config.pp}
    if request.model.num_experts:
        values["ep_size"] = config.ep
    values |= {"precision": f'"{config.dtype}"', "zero_stage": config.zero_stage}
    if config.sequence_parallel:
        values["enable_sequence_parallelism"] = True
        values["sequence_parallelism_mode"] = '"split_gather"'
    if config.cp > 1:
        values["enable_sequence_parallelism"] = True
        values["sequence_parallelism_mode"] = '"ring_attn"'
        values["sp_size"] = config.cp
    if config.pp > 1:
        # MoeHybridParallelPlugin forgets the size under zbv, and reads the number alone.
        if request.model.num_experts and config.pipeline_schedule == "zbv":
            values["num_microbatches"] = request.num_microbatches
        else:
            values["microbatch_size"] = config.micro_batch_size
        values["pp_style"] = f'"{_STYLES[config.pipeline_schedule]}"'
        values["num_model_chunks"] = config.virtual_stages
    if config.stage_layers is not None:
        values["num_layers_per_stage"] = list(config.stage_layers)
    if config.zero_stage in (1, 2) and config.dtype != "fp32":
        values["communication_dtype"] = _TORCH[config.reduce_dtype]
    if config.optimizer_offload:
        values["cpu_offload"] = True
    name = "MoeHybridParallelPlugin" if request.model.num_experts else "HybridParallelPlugin"
    return name, {key: str(value) for key, value in values.items()}


def _gemini(request: ExportRequest) -> tuple[str, dict[str, str]]:
    config = request.config
    values: dict[str, Any] = {
        "placement_policy": '"static"',
        "shard_param_frac": 1.0,
        "offload_optim_frac": 1.0 if config.optimizer_offload else 0.0,
        "precision": f'"{config.dtype}"',
        "enable_gradient_accumulation": request.num_microbatches > 1,
        "tp_size": config.tp,
        "enable_sequence_parallelism": config.sequence_parallel,
    }
    if config.zero_shard_degree:
        values["extra_dp_size"] = config.dp // config.zero_shard_degree
    return "GeminiPlugin", {key: str(value) for key, value in values.items()}


def _checkpoint_config(request: ExportRequest) -> tuple[str, str]:
    """Class and call for the recomputation of a part of the layers."""
    config = request.config
    part = config.recompute_layers or 0
    if config.pp > 1:
        layers = [part] * config.num_stages
        name = "PipelineGradientCheckpointConfig"
        return name, f"{name}(num_ckpt_layers_per_stage={layers})"
    # It cuts the product of ratio and layers down to a whole number.
    ratio = (part + 0.5) / request.model.num_layers
    name = "GradientCheckpointConfig"
    return name, f"{name}(gradient_checkpointing_ratio={ratio:.6f})"
