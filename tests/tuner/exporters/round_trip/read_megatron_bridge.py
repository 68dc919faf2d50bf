"""Apply the overrides to Megatron-Bridge's config classes by its own function."""

import dataclasses
import importlib.util
import sys
import types
from typing import Any

import torch._inductor.codecache  # noqa: F401 -- torch looks for triton: before the stand-in
from harness import main
from stand_ins import stand_in_for, stand_in_instead_of

stand_in_for("triton", "nvidia_resiliency_ext", "modelopt")
# The package imports all models and their kernels; its configs need none of them.
package = types.ModuleType("megatron.bridge")
package.__path__ = list(importlib.util.find_spec("megatron.bridge").submodule_search_locations)
sys.modules["megatron.bridge"] = package
stand_in_instead_of(
    *(
        f"megatron.bridge.{name}"
        for name in (
            "data", "models", "peft", "training.comm_overlap", "training.tokenizers",
            "training.flex_dispatcher_backend",
        )
    )
)  # fmt: skip
from megatron.core.transformer.transformer_config import TransformerConfig  # noqa: E402, I001
from megatron.bridge.training.config import (  # noqa: E402
    CheckpointConfig,
    DistributedDataParallelConfig,
    DistributedInitConfig,
    OptimizerConfig,
    TrainingConfig,
)
from megatron.bridge.training.mixed_precision import get_mixed_precision_config  # noqa: E402
from megatron.bridge.training.utils.omegaconf_utils import (  # noqa: E402
    process_config_with_overrides,
)


@dataclasses.dataclass
class Dataset:
    """Of the classes that `dataset` may hold, the field that we set."""

    sequence_length: int = 1


@dataclasses.dataclass
class Model(TransformerConfig):
    """A model provider is a TransformerConfig with this field."""

    seq_length: int = 1


@dataclasses.dataclass
class Container:
    """The sections of ConfigContainer that we set, by the same names."""

    model: Model
    train: TrainingConfig
    dataset: Dataset
    optimizer: OptimizerConfig
    ddp: DistributedDataParallelConfig
    dist: DistributedInitConfig
    checkpoint: CheckpointConfig
    mixed_precision: Any = None


_STRATEGIES = {"optim_grads": 2, "optim_grads_params": 3}


def read(folder, world: int) -> dict[str, Any]:
    lines = (folder / "overrides.txt").read_text().splitlines()
    container = Container(
        model=Model(num_layers=4, hidden_size=64, num_attention_heads=4),
        train=TrainingConfig(),
        dataset=Dataset(),
        optimizer=OptimizerConfig(),
        ddp=DistributedDataParallelConfig(),
        dist=DistributedInitConfig(),
        checkpoint=CheckpointConfig(),
    )
    given = [line for line in lines if not line.startswith("#")]
    config = process_config_with_overrides(container, cli_overrides=given)
    model, ddp = config.model, config.ddp
    replicas = world // (
        model.tensor_model_parallel_size
        * model.pipeline_model_parallel_size
        * model.context_parallel_size
    )
    stage = int(ddp.use_distributed_optimizer)
    assert config.optimizer.use_distributed_optimizer == ddp.use_distributed_optimizer
    assert config.dist.use_megatron_fsdp == ddp.use_megatron_fsdp
    if ddp.use_megatron_fsdp:
        assert config.checkpoint.ckpt_format == "fsdp_dtensor"
        stage = _STRATEGIES[ddp.data_parallel_sharding_strategy]
    instances = ddp.num_distributed_optimizer_instances
    recipe = config.mixed_precision and get_mixed_precision_config(config.mixed_precision)
    layout = model.pipeline_model_parallel_layout
    virtual = model.virtual_pipeline_model_parallel_size or 1
    assert config.dataset.sequence_length == model.seq_length
    partial = model.recompute_method == "block"
    return {
        "dp": replicas,
        "tp": model.tensor_model_parallel_size,
        "pp": model.pipeline_model_parallel_size,
        "cp": model.context_parallel_size,
        "ep": model.expert_model_parallel_size,
        "sequence_parallel": model.sequence_parallel,
        "virtual_stages": virtual,
        "pipeline_schedule": "interleaved" if virtual > 1 else "1f1b",
        "stage_layers": _split(layout) if layout else None,
        "micro_batch_size": config.train.micro_batch_size,
        "global_batch_size": config.train.global_batch_size,
        "sequence_length": model.seq_length,
        "zero_stage": stage,
        "zero_shard_degree": replicas * model.context_parallel_size // instances
        if instances > 1
        else 0,
        "recompute": model.recompute_granularity or "none",
        "recompute_layers": model.recompute_num_layers if partial else None,
        "dtype": "bf16" if recipe and recipe.bf16 else "fp32",
        "reduce_dtype": "fp32" if not recipe or recipe.grad_reduce_in_fp32 else "bf16",
        "optimizer_offload": config.optimizer.optimizer_cpu_offload,
    }


def _split(layout: str) -> list[int]:
    from megatron.core.transformer.pipeline_parallel_layer_layout import PipelineParallelLayerLayout

    stages = PipelineParallelLayerLayout.parse_str_to_list(layout)
    return [
        sum(layer == "decoder" or str(layer).endswith("decoder") for layer in stage)
        for stage in stages
    ]


main(read)
