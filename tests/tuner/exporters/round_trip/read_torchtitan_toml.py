"""Parse the TOML by torchtitan 0.2.2's own manager."""

from typing import Any

import torch._inductor.codecache  # noqa: F401 -- torch looks for triton: before the stand-in
from harness import main, precision
from stand_ins import stand_in_for, stand_in_instead_of

stand_in_for(
    "triton", "torchdata", "tokenizers", "datasets", "torchao", "spmd_types", "torch_checkpointing",
    "PIL", "wandb",
)  # fmt: skip
stand_in_instead_of("torch.utils.tensorboard")
from torchtitan.config import ConfigManager  # noqa: E402

_SCHEDULES = {
    "1F1B": "1f1b",
    "GPipe": "gpipe",
    "Interleaved1F1B": "interleaved",
    "ZBVZeroBubble": "zbv",
}


def knobs(config, world: int, num_layers: int) -> dict[str, Any]:
    """Our knobs from the sections that both kinds of config share."""
    training, parallel = config.training, config.parallelism
    shards, replicas = parallel.data_parallel_shard_degree, parallel.data_parallel_replicate_degree
    dp, tp, cp = (
        shards * replicas,
        parallel.tensor_parallel_degree,
        parallel.context_parallel_degree,
    )
    pp = parallel.pipeline_parallel_degree
    assert dp * tp * cp * pp == world
    stages, split = 1, None
    if parallel.module_fqns_per_model_part:
        split = [
            sum(name.startswith("layers.") for name in part)
            for part in parallel.module_fqns_per_model_part
        ]
        stages = len(split) // pp
    elif pp > 1:
        stages = num_layers // parallel.pipeline_parallel_layers_per_stage // pp
    micro = parallel.pipeline_parallel_microbatch_size if pp > 1 else training.local_batch_size
    assert training.global_batch_size % (training.local_batch_size * dp) == 0
    steps = training.global_batch_size // (training.local_batch_size * dp)
    sharded = shards * cp > 1
    stage = {"never": 2, "always": 3}.get(parallel.fsdp_reshard_after_forward, 0)
    return {
        "dp": dp,
        "tp": tp,
        "cp": cp,
        "pp": pp,
        "virtual_stages": stages,
        "stage_layers": split,
        "pipeline_schedule": _SCHEDULES[parallel.pipeline_parallel_schedule] if pp > 1 else "1f1b",
        "micro_batch_size": micro,
        "num_microbatches": steps * training.local_batch_size // micro,
        "global_batch_size": training.global_batch_size,
        "sequence_length": training.seq_len,
        "zero_stage": stage if sharded else 0,
        "zero_shard_degree": shards * cp if sharded and replicas > 1 else 0,
        "dtype": precision(training.mixed_precision_param),
        "reduce_dtype": precision(training.mixed_precision_reduce),
        "compile": config.compile.enable,
    }


def read(folder, world: int) -> dict[str, Any]:
    config = ConfigManager().parse_args(["--job.config_file", str(folder / "torchtitan.toml")])
    tensor = config.parallelism.tensor_parallel_degree
    return knobs(config, world, int((folder / "num_layers").read_text())) | {
        "recompute": config.activation_checkpoint.mode,
        "sequence_parallel": tensor > 1,
    }


if __name__ == "__main__":
    main(read)
