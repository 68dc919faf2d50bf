"""Read the JSON by DeepSpeed's config class, and the arguments by that of transformers."""

import json
import sys
import types
from typing import Any

import deepspeed.runtime.config as ds
from harness import main, words


def engine_values(document: dict[str, Any], replicas: int) -> dict[str, Any]:
    """What DeepSpeed makes of its part of the document on that many replicas."""
    ds.dist = types.SimpleNamespace(get_rank=lambda: 0, get_world_size=lambda: replicas)
    config = ds.DeepSpeedConfig(document)
    dtype = "bf16" if config.bfloat16_config.enabled else "fp32"
    dtype = "fp16" if config.float16_config.enabled else dtype
    offload = config.zero_config.offload_optimizer
    travels = {"torch.float32": "fp32", "torch.bfloat16": "bf16", "None": "fp32"}
    return {
        "dp": replicas,
        "micro_batch_size": config.train_micro_batch_size_per_gpu,
        "num_microbatches": config.gradient_accumulation_steps,
        "global_batch_size": config.train_batch_size,
        "zero_stage": int(config.zero_optimization_stage),
        "dtype": dtype,
        "reduce_dtype": travels[str(config.communication_data_type)],
        "optimizer_offload": offload is not None and str(offload.device) == "cpu",
        "tp": max(1, config.tensor_parallel_config.autotp_size),
        "ep": config.expert_parallel_config.autoep_size,
    }


def read(folder, world: int) -> dict[str, Any]:
    from transformers import HfArgumentParser, TrainingArguments

    document = json.loads((folder / "ds_config.json").read_text())
    tensor = document.get("tensor_parallel", {}).get("autotp_size", 1)
    values = engine_values(document, world // tensor)
    given = [*words(folder / "trainer_arguments.txt"), "--output_dir", "out", "--use_cpu", "true"]
    (arguments,) = HfArgumentParser(TrainingArguments).parse_args_into_dataclasses(given)
    assert arguments.per_device_train_batch_size == values["micro_batch_size"]
    assert arguments.gradient_accumulation_steps == values["num_microbatches"]
    assert arguments.bf16 == (values["dtype"] == "bf16")
    return values | {
        "recompute": "full" if arguments.gradient_checkpointing else "none",
        "compile": arguments.torch_compile,
    }


if __name__ == "__main__":
    sys.exit(main(read))
