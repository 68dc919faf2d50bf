"""Parse and validate an argument file with Megatron-LM's own parser; print our knobs."""

import argparse
import os
import typing
from pathlib import Path
from typing import Any

import torch._inductor.codecache
import torch.utils.flop_counter
import typing_extensions
from harness import main, words
from stand_ins import stand_in_for

if not hasattr(typing, "override"):  # Python 3.11
    typing.override = typing_extensions.override
stand_in_for("triton", "transformer_engine_torch")
from megatron.core.transformer.pipeline_parallel_layer_layout import (  # noqa: E402
    PipelineParallelLayerLayout,
)
from megatron.training import arguments  # noqa: E402

_STRATEGIES = {"optim_grads": 2, "optim_grads_params": 3}
_PRECISIONS = {torch.float32: "fp32", torch.bfloat16: "bf16", torch.float16: "fp16"}


def _parsed(folder: Path, world: int) -> argparse.Namespace:
    os.environ.pop("CUDA_DEVICE_MAX_CONNECTIONS", None)
    if "CUDA_DEVICE_MAX_CONNECTIONS=1" in (folder / "run.sh").read_text():
        os.environ["CUDA_DEVICE_MAX_CONNECTIONS"] = "1"
    parser = argparse.ArgumentParser(allow_abbrev=False)
    arguments.add_megatron_arguments(parser)
    given = words(folder / "megatron_arguments.txt")
    args = parser.parse_args([*given, "--train-iters", "10"])
    args.world_size, args.rank = world, 1
    arguments.get_device_arch_version = lambda: 9  # a Hopper: no device is asked
    arguments.validate_args(args)
    return args


def _split(args: argparse.Namespace, virtual: int) -> list[int] | None:
    layout = args.pipeline_model_parallel_layout
    if layout is None:
        return None
    if isinstance(layout, str):
        layout = PipelineParallelLayerLayout(layout, args.pipeline_model_parallel_size)
    layout.validate_layer_layout(args.num_layers, 0)
    return [
        sum(layer.name == "decoder" for layer in layout.layout[rank][chunk])
        for chunk in range(virtual)
        for rank in range(args.pipeline_model_parallel_size)
    ]


def read(folder: Path, world: int) -> dict[str, Any]:
    args = _parsed(folder, world)
    virtual = args.virtual_pipeline_model_parallel_size or 1
    stage = int(args.use_distributed_optimizer)
    if args.use_megatron_fsdp:
        stage = _STRATEGIES[args.data_parallel_sharding_strategy]
    group = args.data_parallel_size * args.context_parallel_size
    instances = args.num_distributed_optimizer_instances
    dtype = _PRECISIONS[args.params_dtype]
    if dtype != "fp32":
        assert args.accumulate_allreduce_grads_in_fp32 != args.grad_reduce_in_bf16
    return {
        "dp": args.data_parallel_size,
        "tp": args.tensor_model_parallel_size,
        "sequence_parallel": args.sequence_parallel,
        "cp": args.context_parallel_size,
        "ep": args.expert_model_parallel_size,
        "pp": args.pipeline_model_parallel_size,
        "virtual_stages": virtual,
        "pipeline_schedule": "interleaved" if virtual > 1 else "1f1b",
        "stage_layers": _split(args, virtual),
        "micro_batch_size": args.micro_batch_size,
        "zero_stage": stage,
        "zero_shard_degree": group // instances if instances > 1 else 0,
        "recompute": args.recompute_granularity or "none",
        "recompute_layers": args.recompute_num_layers if args.recompute_method == "block" else None,
        "dtype": dtype,
        "reduce_dtype": "bf16" if args.grad_reduce_in_bf16 else "fp32",
        "optimizer_offload": args.optimizer_cpu_offload,
        "global_batch_size": args.global_batch_size,
        "sequence_length": args.seq_length,
    }


main(read)
