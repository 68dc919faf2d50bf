"""The kernel as a subject of the speed benchmarks: one training step per call.

In a rank of `benchmarks.ranks` the default process group is up; a single rank needs none.
"""

from collections.abc import Callable, Mapping
from itertools import count
from typing import Any

import torch
import torch.distributed as dist

from benchmarks.peers import Shape
from search_spaces.model_spec import ModelSpec
from search_spaces.parallel_config import ParallelConfig
from search_spaces.training_spec import TrainingSpec
from trainer.engine import Engine
from trainer.mesh import ParallelMesh


def model_of(shape: Shape) -> ModelSpec:
    """The GPT-2 model of a benchmark shape."""
    return ModelSpec(
        name="gpt2-benchmark",
        family="gpt2",
        num_layers=shape.num_layers,
        hidden_size=shape.hidden_size,
        num_heads=shape.num_heads,
        num_kv_heads=shape.num_heads,
        head_dim=shape.hidden_size // shape.num_heads,
        ffn_size=4 * shape.hidden_size,
        vocab_size=shape.vocab_size,
        max_positions=shape.sequence_length,
        tied_embeddings=True,
    )


def training_of(shape: Shape) -> TrainingSpec:
    """The recipe of a benchmark shape."""
    return TrainingSpec(sequence_length=shape.sequence_length, global_batch_size=shape.batch_size)


def kernel(shape: Shape, knobs: Mapping[str, Any], device: str = "cpu") -> Callable[[], float]:
    """Build this rank's engine; `knobs` are those of `ParallelConfig` that differ from default."""
    config = ParallelConfig(**{"micro_batch_size": shape.batch_size, **knobs})
    is_alone = not dist.is_initialized()
    rank, world_size = (0, 1) if is_alone else (dist.get_rank(), dist.get_world_size())
    mesh = ParallelMesh(config, world_size)
    engine = Engine(model_of(shape), training_of(shape), config, mesh, rank, torch.device(device))
    steps = count()
    return lambda: engine.step(next(steps)).loss
