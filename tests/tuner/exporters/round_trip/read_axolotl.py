"""Validate the YAML with Axolotl's own models."""

from typing import Any

import yaml
from harness import main
from stand_ins import stand_in_for
from transformers import PreTrainedModel, TrainingArguments  # noqa: F401 -- before the stand-ins

stand_in_for("triton", "trl", "peft", "bitsandbytes", "addict", "art", "evaluate", "datasets")
from axolotl.utils.schemas.config import AxolotlInputConfig  # noqa: E402


def read(folder, world: int) -> dict[str, Any]:
    document = yaml.safe_load((folder / "axolotl.yaml").read_text())
    document["datasets"] = [{"path": "data.jsonl", "type": "completion"}]
    config = AxolotlInputConfig(**document)
    tensor, context = config.tensor_parallel_size or 1, config.context_parallel_size or 1
    shards, replicas = config.dp_shard_size or 1, config.dp_replicate_size or 1
    values = {
        "micro_batch_size": config.micro_batch_size,
        "num_microbatches": config.gradient_accumulation_steps,
        "sequence_length": config.sequence_len,
        "dtype": "bf16" if config.bf16 is True else "fp16" if config.fp16 else "fp32",
        "compile": bool(config.torch_compile),
    }
    if config.fsdp_config is None:
        return values | {
            "dp": world,
            "zero_stage": 0,
            "recompute": "full" if config.gradient_checkpointing else "none",
        }
    assert config.fsdp_version == 2
    assert shards * replicas * tensor * context == world
    sharded = shards * context > 1
    stage = 3 if config.fsdp_config.reshard_after_forward else 2
    return values | {
        "dp": shards * replicas,
        "tp": tensor,
        "cp": context,
        "zero_stage": stage if sharded else 0,
        "zero_shard_degree": shards * context if sharded and replicas > 1 else 0,
        "recompute": "full" if config.fsdp_config.activation_checkpointing else "none",
        "optimizer_offload": bool(config.fsdp_config.offload_params),
    }


main(read)
