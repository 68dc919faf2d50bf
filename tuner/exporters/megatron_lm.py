"""Megatron-LM: an argument file, and scripts for torchrun and Slurm."""

from collections.abc import Mapping
from typing import ClassVar

from tuner.exporters import megatron_model
from tuner.exporters.base import (
    BaseExporter,
    Knob,
    goes,
    never,
    schedules,
    tensor_1d,
    unless,
    whole_rounds,
)
from tuner.exporters.scripts import arguments_file, head, sbatch_script, torchrun_script
from tuner.ports import Export, ExportRequest

ARGUMENTS = "megatron_arguments.txt"
_SCHEDULES = ("1f1b", "interleaved")
_STRATEGIES = {2: "optim_grads", 3: "optim_grads_params"}


def layout_text(stage_layers: tuple[int, ...]) -> str:
    """Layers of each stage in the words of `--pipeline-model-parallel-layout`."""
    stages = [f"t*{layers}" for layers in stage_layers]
    return f"E{'|'.join(stages)}L"


class MegatronLmExporter(BaseExporter):
    """Megatron-LM's `pretrain_gpt.py`."""

    name = "megatron-lm"
    trainer = "Megatron-LM"
    versions = "megatron-core 0.14 to 0.20"
    round_trip = "megatron.training.arguments of megatron-core 0.19.2, parsed and validated"
    knobs: ClassVar[Mapping[str, Knob]] = {
        "dp": goes("implied: world size over the other degrees, in --nproc-per-node"),
        "tp": goes("--tensor-model-parallel-size"),
        **tensor_1d(),
        "sequence_parallel": goes(
            "--sequence-parallel",
            unless(
                "sequence_parallel",
                lambda r: r.config.sequence_parallel or r.config.tp == 1 or not r.model.num_experts,
                "it trains experts with tp only under sequence parallelism",
                sequence_parallel=True,
            ),
        ),
        "cp": goes("--context-parallel-size"),
        "ep": goes("--expert-model-parallel-size"),
        "pp": goes("--pipeline-model-parallel-size"),
        "virtual_stages": goes(
            "--num-virtual-stages-per-pipeline-rank, or --pipeline-model-parallel-layout"
        ),
        "pipeline_schedule": schedules(
            "1f1b, or interleaved where there are virtual stages; no flag of its own",
            _SCHEDULES,
            "it runs 1f1b, or interleaved with virtual stages",
            whole_rounds("interleaved"),
        ),
        "stage_layers": goes("--pipeline-model-parallel-layout"),
        "micro_batch_size": goes("--micro-batch-size"),
        "zero_stage": goes(
            "1: --use-distributed-optimizer; 2, 3: --use-megatron-fsdp and "
            "--data-parallel-sharding-strategy"
        ),
        "zero_shard_degree": goes(
            "--num-distributed-optimizer-instances, which is dp x cp over the degree"
        ),
        "recompute": goes("--recompute-granularity, with --recompute-method uniform or block"),
        "recompute_layers": goes(
            "--recompute-num-layers under --recompute-method block",
            unless(
                "recompute_layers",
                lambda r: r.config.recompute_layers is None or r.config.recompute == "full",
                "selective recomputation covers all layers of a stage",
                recompute_layers=None,
            ),
        ),
        "dtype": goes("--bf16 or --fp16; none for fp32"),
        "reduce_dtype": goes(
            "--grad-reduce-in-bf16, or --accumulate-allreduce-grads-in-fp32",
            unless(
                "reduce_dtype",
                lambda r: r.config.reduce_dtype == "fp32" or r.config.dtype == "bf16",
                "it reduces in bf16 under --bf16 alone",
                reduce_dtype="fp32",
            ),
        ),
        "compile": never("compile", "it does not torch.compile its layers"),
        "optimizer_offload": goes(
            "--optimizer-cpu-offload with --use-precision-aware-optimizer",
            unless(
                "optimizer_offload",
                lambda r: not r.config.optimizer_offload or r.config.zero_stage == 1,
                "it offloads the distributed optimizer alone, which is zero_stage 1",
                zero_stage=lambda r: 1 if r.config.dp * r.config.cp > 1 else 0,
                optimizer_offload=lambda r: r.config.dp * r.config.cp > 1,
            ),
        ),
    }  # fmt: skip

    def arguments(self, request: ExportRequest) -> list[str]:
        """All flags, in the order of the parser's sections."""
        config = request.config
        words = [
            *megatron_model.model_arguments(request),
            *megatron_model.modern_model_arguments(request),
            *megatron_model.batch_arguments(request),
            *megatron_model.precision_arguments(request),
            "--tensor-model-parallel-size", str(config.tp),
            "--pipeline-model-parallel-size", str(config.pp),
            "--context-parallel-size", str(config.cp),
        ]  # fmt: skip
        if config.cp > 1:
            words += ["--cp-comm-type", "p2p"]
        if config.ep > 1:
            words += ["--expert-model-parallel-size", str(config.ep)]
        if config.sequence_parallel:
            words.append("--sequence-parallel")
        return words + _pipeline(request) + _sharding(request) + _memory(request)

    def write(self, request: ExportRequest) -> Export:
        """The argument file and two scripts that start it."""
        title = head(request, self.trainer, self.versions)
        environment = _environment(request)
        return Export(
            files={
                ARGUMENTS: arguments_file(title, self.arguments(request)),
                "run.sh": torchrun_script(
                    request, title, "pretrain_gpt.py",
                    arguments_in=ARGUMENTS, environment=environment,
                ),
                "sbatch.sh": sbatch_script(
                    request, title, "pretrain_gpt.py",
                    arguments_in=ARGUMENTS, environment=environment,
                ),
            },
            notes=(
                "give data, tokenizer and length of the run to the script, e.g. run.sh --mock-data "
                "--tokenizer-type NullTokenizer --train-iters 20",
            ),
        )  # fmt: skip


def _pipeline(request: ExportRequest) -> list[str]:
    config = request.config
    if config.stage_layers is not None:
        return ["--pipeline-model-parallel-layout", layout_text(config.stage_layers)]
    if config.virtual_stages > 1:
        return ["--num-virtual-stages-per-pipeline-rank", str(config.virtual_stages)]
    return []


def _sharding(request: ExportRequest) -> list[str]:
    config = request.config
    words = [] if config.zero_stage == 0 else ["--use-distributed-optimizer"]
    if config.zero_stage >= 2:
        strategy = _STRATEGIES[config.zero_stage]
        words += ["--use-megatron-fsdp", "--data-parallel-sharding-strategy", strategy]
        words += ["--ckpt-format", "fsdp_dtensor"]
    if config.zero_shard_degree:
        instances = config.dp * config.cp // config.zero_shard_degree
        words += ["--num-distributed-optimizer-instances", str(instances)]
    if config.dtype != "fp32":
        in_bf16 = config.reduce_dtype == "bf16"
        words.append("--grad-reduce-in-bf16" if in_bf16 else "--accumulate-allreduce-grads-in-fp32")
    return words


def _memory(request: ExportRequest) -> list[str]:
    config = request.config
    words = [] if config.recompute == "none" else ["--recompute-granularity", config.recompute]
    if config.recompute == "full":
        method = "uniform" if config.recompute_layers is None else "block"
        words += ["--recompute-method", method]
        words += ["--recompute-num-layers", str(config.recompute_layers or 1)]
    if config.optimizer_offload:
        words += ["--optimizer-cpu-offload", "--use-precision-aware-optimizer"]
    return words


def _environment(request: ExportRequest) -> dict[str, str]:
    """One queue where the order of kernels hides communication; FSDP asks for more than one."""
    one_queue = request.config.zero_stage < 2 and request.config.tp * request.config.cp > 1
    return {"CUDA_DEVICE_MAX_CONNECTIONS": "1"} if one_queue else {}
