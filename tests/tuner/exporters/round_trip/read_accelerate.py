"""Let accelerate's launcher read the config, and its ParallelismConfig the environment."""

import os
from typing import Any

from accelerate.commands.launch import _validate_launch_command, launch_command_parser
from accelerate.parallelism_config import ParallelismConfig
from accelerate.utils.launch import prepare_multi_gpu_env
from harness import main, precision, words
from transformers import HfArgumentParser, TrainingArguments


def read(folder, world: int) -> dict[str, Any]:
    config = str(folder / "accelerate.yaml")
    parser = launch_command_parser()
    args, _, _ = _validate_launch_command(parser.parse_args(["--config_file", config, "train.py"]))
    assert args.num_processes == world
    given = [*words(folder / "trainer_arguments.txt"), "--output_dir", "out", "--use_cpu", "true"]
    (trainer,) = HfArgumentParser(TrainingArguments).parse_args_into_dataclasses(given)
    dtype = precision(args.mixed_precision)
    values = {
        "micro_batch_size": trainer.per_device_train_batch_size,
        "num_microbatches": trainer.gradient_accumulation_steps,
        "dtype": dtype,
        "compile": args.dynamo_backend.lower() == "inductor",
    }
    if not args.use_fsdp:
        assert args.multi_gpu == (world > 1)
        checkpointing = trainer.gradient_checkpointing
        return values | {
            "dp": world,
            "zero_stage": 0,
            "recompute": "full" if checkpointing else "none",
        }
    environment = prepare_multi_gpu_env(args)
    os.environ.update({k: v for k, v in environment.items() if k.startswith("PARALLELISM_CONFIG")})
    mesh = ParallelismConfig()
    assert mesh.total_size == world
    assert not trainer.gradient_checkpointing
    sharded = mesh.dp_shard_size * mesh.cp_size > 1
    stage = 3 if environment["FSDP_RESHARD_AFTER_FORWARD"] == "true" else 2
    degree = mesh.dp_shard_size * mesh.cp_size
    return values | {
        "dp": mesh.dp_replicate_size * mesh.dp_shard_size,
        "tp": mesh.tp_size,
        "cp": mesh.cp_size,
        "zero_stage": stage if sharded else 0,
        "zero_shard_degree": degree if sharded and mesh.dp_replicate_size > 1 else 0,
        "recompute": "full" if environment["FSDP_ACTIVATION_CHECKPOINTING"] == "true" else "none",
        "optimizer_offload": environment["FSDP_OFFLOAD_PARAMS"] == "true",
    }


main(read)
