"""Hugging Face accelerate: its config file, and the arguments of a `transformers` trainer."""

from collections.abc import Mapping
from typing import Any, ClassVar

from tuner.exporters import fsdp2_values
from tuner.exporters.base import BaseExporter, Knob, goes
from tuner.exporters.hf_arguments import ARGUMENTS, hf_arguments
from tuner.exporters.scripts import head
from tuner.exporters.yaml_text import yaml_file
from tuner.ports import Export, ExportRequest

CONFIG = "accelerate.yaml"


class AccelerateExporter(BaseExporter):
    """FSDP2 with a ParallelismConfig, or DDP."""

    name = "accelerate"
    trainer = "accelerate"
    versions = "1.12 to 1.15"
    round_trip = "accelerate.commands of accelerate 1.15 and transformers.HfArgumentParser"
    knobs: ClassVar[Mapping[str, Knob]] = fsdp2_values.knobs(
        dp="parallelism_config_dp_replicate_size x parallelism_config_dp_shard_size",
        tp="parallelism_config_tp_size",
        cp="parallelism_config_cp_size",
        micro_batch_size="--per_device_train_batch_size",
        reshard="fsdp_reshard_after_forward",
        zero_shard_degree="parallelism_config_dp_shard_size, which is the degree over cp",
        recompute="fsdp_activation_checkpointing; without FSDP --gradient_checkpointing",
        dtype="mixed_precision",
        compile=goes("dynamo_config with regional compilation"),
    )

    def write(self, request: ExportRequest) -> Export:
        """The config, the trainer's arguments and a script that launches them."""
        config = request.config
        title = head(request, self.trainer, self.versions)
        sharded = fsdp2_values.is_fsdp(request)
        checkpointing = config.recompute == "full" and not sharded
        arguments = hf_arguments(
            request, title, f"--gradient_checkpointing {str(checkpointing).lower()}"
        )
        return Export(
            files={
                CONFIG: yaml_file(title, _document(request)),
                ARGUMENTS: arguments,
                "run.sh": _script(title),
            },
            notes=("name your training script in TRAIN, e.g. TRAIN=train.py run.sh",),
        )


def _document(request: ExportRequest) -> dict[str, Any]:
    config = request.config
    sharded = fsdp2_values.is_fsdp(request)
    kind = "FSDP" if sharded else "MULTI_GPU" if config.world_size > 1 else "NO"
    document: dict[str, Any] = {
        "compute_environment": "LOCAL_MACHINE",
        "distributed_type": kind,
        "mixed_precision": "no" if config.dtype == "fp32" else config.dtype,
        "num_machines": request.num_nodes,
        "num_processes": config.world_size,
        "machine_rank": 0,
        "main_training_function": "main",
    }
    if sharded:
        shards = fsdp2_values.shard_degree(request)
        document["fsdp_config"] = {"fsdp_version": 2, **fsdp2_values.fsdp_config(request, "fsdp_")}
        document["parallelism_config"] = {
            "parallelism_config_dp_replicate_size": config.dp // shards,
            "parallelism_config_dp_shard_size": shards,
            "parallelism_config_tp_size": config.tp,
            "parallelism_config_cp_size": config.cp,
        }
    if config.compile:
        document["dynamo_config"] = {
            "dynamo_backend": "INDUCTOR",
            "dynamo_use_regional_compilation": True,
        }
    return document


def _script(title: str) -> str:
    return (
        f"#!/usr/bin/env bash\n{title}set -euo pipefail\n"
        'here=$(cd "$(dirname "$0")" && pwd)\n'
        f'read -r -a arguments <<< "$(grep -v "^#" "$here/{ARGUMENTS}" | tr "\\n" " ")"\n'
        f'exec accelerate launch --config_file "$here/{CONFIG}" --machine_rank "${{NODE_RANK:-0}}"'
        ' \\\n  "${TRAIN:-train.py}" "${arguments[@]}" "$@"\n'
    )
