"""What torchtitan's two kinds of config have in common: the values and the reasons against some."""

from collections.abc import Mapping
from typing import Any, Final

from search_spaces.model_spec import ModelSpec
from tuner.exporters.base import Check, Knob, goes, never, only, schedules, tensor_1d, unless
from tuner.exporters.fsdp2_values import shard_degree
from tuner.ports import ExportRequest, Refusal

SCHEDULES: Final[Mapping[str, str]] = {
    "gpipe": "GPipe",
    "1f1b": "1F1B",
    "interleaved": "Interleaved1F1B",
    "zbv": "ZBVZeroBubble",
}
_DTYPES: Final[Mapping[str, str]] = {"fp32": "float32", "bf16": "bfloat16"}
# hidden size, layers, heads: the flavors of llama3 that torchtitan registers
_FLAVORS: Final[Mapping[tuple[int, int, int], str]] = {
    (4096, 32, 32): "8B",
    (8192, 80, 64): "70B",
    (16384, 126, 128): "405B",
}


def flavor(model: ModelSpec) -> str | None:
    """The registered flavor of the model's shape, if there is one."""
    return _FLAVORS.get((model.hidden_size, model.num_layers, model.num_heads))


def about_model(request: ExportRequest) -> Refusal | None:
    """It has no GPT-2 and no Mixtral."""
    model = request.model
    if model.family != "llama" or model.qkv_bias or model.sliding_window:
        return Refusal(knob="model", reason=f"model {model.name}: of our models it has Llama alone")
    return None


def _rounds() -> Check:
    """A check of Interleaved1F1B, which takes as many equal rounds as pp goes into the batches."""
    return unless(
        "pipeline_schedule",
        lambda r: (
            r.config.pipeline_schedule != "interleaved"
            or r.num_microbatches % max(1, r.num_microbatches // r.config.pp) == 0
        ),
        "its interleaved schedule cannot deal these micro-batches into equal rounds",
        pipeline_schedule="1f1b",
        virtual_stages=1,
        stage_layers=None,
    )


def knobs(**changed: Knob) -> Mapping[str, Knob]:
    """Where the knobs go in both kinds of config; `changed` replaces what differs."""
    common = {
        "dp": goes("parallelism.data_parallel_replicate_degree x data_parallel_shard_degree"),
        "tp": goes("parallelism.tensor_parallel_degree"),
        **tensor_1d(),
        "cp": goes("parallelism.context_parallel_degree"),
        "ep": never("ep", "its Llama has no experts"),
        "pp": goes("parallelism.pipeline_parallel_degree"),
        "virtual_stages": goes("parallelism.pipeline_parallel_layers_per_stage"),
        "pipeline_schedule": schedules(
            "parallelism.pipeline_parallel_schedule",
            SCHEDULES,
            "its zero bubble schedules need two stages on a rank",
            _rounds(),
        ),
        "stage_layers": goes("parallelism.module_fqns_per_model_part"),
        "micro_batch_size": goes(
            "training.local_batch_size; under pp parallelism.pipeline_parallel_microbatch_size"
        ),
        "zero_stage": goes(
            "0: replicas; 2, 3: shards with parallelism.fsdp_reshard_after_forward",
            only("zero_stage", (0, 2, 3), "its shards hold gradients too", zero_stage=2),
            unless(
                "zero_stage",
                lambda r: r.config.zero_stage > 0 or r.config.cp == 1,
                "under cp it always shards",
                zero_stage=2,
            ),
        ),
        "zero_shard_degree": goes(
            "parallelism.data_parallel_shard_degree, which is the degree over cp",
            unless(
                "zero_shard_degree",
                lambda r: r.config.zero_shard_degree % r.config.cp == 0,
                "its shard sets hold whole cp groups",
                zero_shard_degree=0,
            ),
        ),
        "recompute": goes(
            "activation_checkpoint",
            only(
                "recompute",
                ("none", "full"),
                "its selective mode keeps attention and computes the rest again, the reverse of "
                "what was measured",
                recompute="none",
                recompute_layers=None,
            ),
        ),
        "recompute_layers": never("recompute_layers", "it recomputes all layers or none"),
        "dtype": goes(
            "training.mixed_precision_param",
            only("dtype", _DTYPES, "it trains in float32 or bfloat16", dtype="bf16"),
        ),
        "reduce_dtype": never("reduce_dtype", "it reduces gradients in float32 alone"),
        "compile": goes("compile.enable"),
        "optimizer_offload": never(
            "optimizer_offload", "its enable_cpu_offload moves parameters and gradients as well"
        ),
    }
    return {**common, **changed}


def training_values(request: ExportRequest) -> dict[str, Any]:
    """The training section; under pp one local batch is split into all micro-batches."""
    config, training = request.config, request.training
    under_pp = config.micro_batch_size * request.num_microbatches
    return {
        "local_batch_size": under_pp if config.pp > 1 else config.micro_batch_size,
        "global_batch_size": training.global_batch_size,
        "seq_len": training.sequence_length,
        "dtype": "float32",
        "mixed_precision_param": _DTYPES[config.dtype],
        "mixed_precision_reduce": "float32",
    }


def parallelism_values(request: ExportRequest, last_modules: tuple[str, ...]) -> dict[str, Any]:
    """The parallelism section; `last_modules` are those after the layers."""
    config, sharded = request.config, shard_degree(request)
    values: dict[str, Any] = {
        "data_parallel_replicate_degree": config.dp // sharded,
        "data_parallel_shard_degree": sharded,
        "fsdp_reshard_after_forward": {2: "never", 3: "always"}.get(config.zero_stage, "default"),
        "tensor_parallel_degree": config.tp,
        "context_parallel_degree": config.cp,
        "pipeline_parallel_degree": config.pp,
    }
    if config.pp > 1:
        values["pipeline_parallel_schedule"] = SCHEDULES[config.pipeline_schedule]
        values["pipeline_parallel_microbatch_size"] = config.micro_batch_size
        values |= _split(request, last_modules)
    return values


def _split(request: ExportRequest, last_modules: tuple[str, ...]) -> dict[str, Any]:
    """Even stages by their layers, since by default the first and the last get fewer."""
    config = request.config
    if config.stage_layers is None:
        return {
            "pipeline_parallel_layers_per_stage": request.model.num_layers // config.num_stages,
            "pipeline_parallel_first_stage_less_layers": 0,
            "pipeline_parallel_last_stage_less_layers": 0,
        }
    parts: list[list[str]] = []
    first = 0
    for count in config.stage_layers:
        parts.append([f"layers.{index}" for index in range(first, first + count)])
        first += count
    parts[0].insert(0, "tok_embeddings")
    parts[-1] += last_modules
    return {"module_fqns_per_model_part": parts}
