"""Axolotl: its YAML file."""

from collections.abc import Mapping
from typing import Any, ClassVar

from tuner.exporters import fsdp2_values
from tuner.exporters.base import BaseExporter, Knob, goes
from tuner.exporters.scripts import head
from tuner.exporters.yaml_text import yaml_file
from tuner.ports import Export, ExportRequest

CONFIG = "axolotl.yaml"


class AxolotlExporter(BaseExporter):
    """Axolotl with FSDP2, or DDP."""

    name = "axolotl"
    trainer = "Axolotl"
    versions = "0.12 to 0.21"
    round_trip = "axolotl.utils.schemas of axolotl 0.21"
    knobs: ClassVar[Mapping[str, Knob]] = fsdp2_values.knobs(
        dp="dp_replicate_size x dp_shard_size",
        tp="tensor_parallel_size",
        cp="context_parallel_size",
        micro_batch_size="micro_batch_size, with gradient_accumulation_steps",
        reshard="fsdp_config.reshard_after_forward",
        zero_shard_degree="dp_shard_size, which is the degree over cp",
        recompute="fsdp_config.activation_checkpointing; without FSDP gradient_checkpointing",
        dtype="bf16, fp16",
        compile=goes("torch_compile with torch_compile_regional"),
    )

    def write(self, request: ExportRequest) -> Export:
        """The YAML and a script that trains with it."""
        title = head(request, self.trainer, self.versions)
        world = request.config.world_size
        script = (
            f"#!/usr/bin/env bash\n{title}set -euo pipefail\n"
            f'exec axolotl train "$(dirname "$0")/{CONFIG}" --launcher torchrun -- '
            f'--nproc-per-node {request.ranks_per_node} --nnodes {request.num_nodes} "$@"\n'
        )
        return Export(
            files={CONFIG: yaml_file(title, _document(request)), "run.sh": script},
            notes=(f"name base_model and datasets; it takes {world} devices",),
        )


def _document(request: ExportRequest) -> dict[str, Any]:
    config, training = request.config, request.training
    sharded = fsdp2_values.is_fsdp(request)
    document: dict[str, Any] = {
        "base_model": request.model.name,
        "sequence_len": training.sequence_length,
        "micro_batch_size": config.micro_batch_size,
        "gradient_accumulation_steps": request.num_microbatches,
        "learning_rate": training.learning_rate,
        "optimizer": "adamw_torch" if training.optimizer == "adamw" else "sgd",
        "bf16": config.dtype == "bf16",
        "fp16": config.dtype == "fp16",
        "torch_compile": config.compile,
        "gradient_checkpointing": config.recompute == "full" and not sharded,
    }
    if config.compile:
        document["torch_compile_regional"] = True
    if not sharded:
        return document
    shards = fsdp2_values.shard_degree(request)
    return document | {
        "tensor_parallel_size": config.tp,
        "context_parallel_size": config.cp,
        "dp_replicate_size": config.dp // shards,
        "dp_shard_size": shards,
        "fsdp_version": 2,
        "fsdp_config": fsdp2_values.fsdp_config(request),
    }
