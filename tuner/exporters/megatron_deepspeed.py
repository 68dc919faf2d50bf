"""Megatron-DeepSpeed: an argument file, DeepSpeed's JSON and a script."""

import json
from collections.abc import Mapping
from typing import ClassVar

from tuner.exporters import deepspeed_values, megatron_model
from tuner.exporters.base import BaseExporter, Knob, goes, never, schedules, tensor_1d
from tuner.exporters.scripts import arguments_file, head, sbatch_script, torchrun_script
from tuner.ports import Export, ExportRequest, Refusal

ARGUMENTS = "megatron_arguments.txt"
CONFIG = "ds_config.json"
_SCHEDULES = ("1f1b", "zero_bubble")


class MegatronDeepSpeedExporter(BaseExporter):
    """Megatron-DeepSpeed's `pretrain_gpt.py`."""

    name = "megatron-deepspeed"
    trainer = "Megatron-DeepSpeed"
    versions = "the main branch of 2024 and 2025, with DeepSpeed 0.16 to 0.19"
    round_trip = "ds_config.json by deepspeed.DeepSpeedConfig; its own parser is not on a registry"
    knobs: ClassVar[Mapping[str, Knob]] = {
        "dp": goes("implied: world size over the other degrees, in --nproc-per-node"),
        "tp": goes("--tensor-model-parallel-size"),
        **tensor_1d(),
        "sequence_parallel": goes("--sequence-parallel"),
        "cp": never("cp", "its sequence parallelism (Ulysses) trades heads, not keys"),
        "ep": never("ep", "its experts drop tokens, so that they are not Mixtral's"),
        "pp": goes("--pipeline-model-parallel-size; 1: --no-pipeline-parallel"),
        "pipeline_schedule": schedules(
            "1f1b; --enable-zbh1-pipeline for zero_bubble",
            _SCHEDULES,
            "its engine runs 1f1b and ZB-H1 (zero_bubble)",
        ),
        "micro_batch_size": goes("--micro-batch-size and train_micro_batch_size_per_gpu"),
        "dtype": goes("--bf16 or --fp16, and bf16.enabled or fp16.enabled"),
        "reduce_dtype": goes("communication_data_type"),
        **deepspeed_values.pipeline_engine(
            zero_stage="--zero-stage and zero_optimization.stage",
            recompute="--deepspeed-activation-checkpointing with --recompute-granularity full",
            optimizer_offload="--cpu-optimizer and zero_optimization.offload_optimizer",
        ),
    }

    def about_model(self, request: ExportRequest) -> Refusal | None:
        """GPT-2 and Llama; neither windows nor Mixtral."""
        model = request.model
        if model.num_experts or model.sliding_window or model.qkv_bias:
            reason = f"model {model.name}: of our models it has GPT-2 and plain Llama"
            return Refusal(knob="model", reason=reason)
        return super().about_model(request)

    def write(self, request: ExportRequest) -> Export:
        """The arguments, the JSON and two scripts."""
        title = head(request, self.trainer, self.versions)
        program = f'pretrain_gpt.py --deepspeed --deepspeed_config "$here/{CONFIG}"'
        document = deepspeed_values.document(request)
        environment = {"CUDA_DEVICE_MAX_CONNECTIONS": "1"}
        return Export(
            files={
                ARGUMENTS: arguments_file(title, _arguments(request)),
                CONFIG: json.dumps(document, indent=2) + "\n",
                "run.sh": torchrun_script(
                    request, title, program, arguments_in=ARGUMENTS, environment=environment
                ),
                "sbatch.sh": sbatch_script(
                    request, title, program, arguments_in=ARGUMENTS, environment=environment
                ),
            },
            notes=("give data, tokenizer and --train-iters to the script",),
        )


def _arguments(request: ExportRequest) -> list[str]:
    config, model = request.config, request.model
    words = [
        *megatron_model.model_arguments(request),
        *megatron_model.batch_arguments(request),
        *megatron_model.precision_arguments(request),
        "--layernorm-epsilon", f"{model.norm_eps:g}",
        "--tensor-model-parallel-size", str(config.tp),
        "--pipeline-model-parallel-size", str(config.pp),
        "--zero-stage", str(config.zero_stage),
    ]  # fmt: skip
    if model.family != "gpt2":
        words += ["--use-rotary-position-embeddings", "--normalization", "rmsnorm"]
        words += ["--rotary-position-embeddings-theta", str(round(model.rope_theta))]
        words += ["--num-key-value-heads", str(model.num_kv_heads)]
    if config.pp == 1:
        words.append("--no-pipeline-parallel")
    if config.pipeline_schedule == "zero_bubble":
        words.append("--enable-zbh1-pipeline")
    if config.sequence_parallel:
        words.append("--sequence-parallel")
    if config.recompute == "full":
        words += ["--recompute-granularity", "full", "--recompute-method", "uniform"]
        words.append("--deepspeed-activation-checkpointing")
    if config.optimizer_offload:
        words.append("--cpu-optimizer")
    return words
