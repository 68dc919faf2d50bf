"""`Points`: models, recipes and configurations as columns, the form in which the model computes.

A column is a float or an array of N floats; a table of one model keeps the model's columns scalar,
a table of measurements of many models has arrays everywhere. Codes stand for names.
"""

from collections.abc import Sequence
from dataclasses import dataclass, fields, replace
from functools import cached_property
from typing import Any

import numpy as np
from numpy.typing import NDArray

from search_spaces.model_spec import ModelSpec
from search_spaces.parallel_config import ParallelConfig
from search_spaces.training_spec import TrainingSpec

Array = NDArray[np.float64]
Column = Array | float

LAYOUT_1D, LAYOUT_2D, LAYOUT_25D = 0.0, 1.0, 2.0
LAYOUTS = {"1d": LAYOUT_1D, "2d": LAYOUT_2D, "2.5d": LAYOUT_25D}
GPIPE, ONE_F_ONE_B, INTERLEAVED, ZERO_BUBBLE, ZBV = 0.0, 1.0, 2.0, 3.0, 4.0
SCHEDULES = {
    "gpipe": GPIPE, "1f1b": ONE_F_ONE_B, "interleaved": INTERLEAVED, "zero_bubble": ZERO_BUBBLE,
    "zbv": ZBV,
}  # fmt: skip
RECOMPUTE_NONE, RECOMPUTE_SELECTIVE, RECOMPUTE_FULL = 0.0, 1.0, 2.0
RECOMPUTES = {"none": RECOMPUTE_NONE, "selective": RECOMPUTE_SELECTIVE, "full": RECOMPUTE_FULL}
DTYPE_BYTES = {"fp32": 4.0, "bf16": 2.0, "fp16": 2.0}
ATTENTION_EAGER, ATTENTION_FUSED, ATTENTION_FLASH1, ATTENTION_FLASH2 = 0.0, 1.0, 2.0, 3.0
ATTENTIONS = {
    "torch": ATTENTION_EAGER, "fused": ATTENTION_FUSED, "flash1": ATTENTION_FLASH1,
    "flash2": ATTENTION_FLASH2,
}  # fmt: skip


@dataclass(frozen=True, kw_only=True)
class Points:
    """N points of the space with what they train, named as in `ModelSpec` and `ParallelConfig`."""

    num_layers: Column
    hidden_size: Column
    ffn_size: Column
    num_heads: Column
    num_kv_heads: Column
    head_dim: Column
    vocab_size: Column
    gated: Column
    tied: Column
    biased: Column = 0.0
    learned_positions: Column = 0.0
    num_experts: Column = 0.0
    experts_per_token: Column = 0.0
    sequence_length: Column
    global_batch_size: Column
    is_training: Column = 1.0
    optimizer_states: Column = 2.0
    dp: Column = 1.0
    tp: Column = 1.0
    tp_layout: Column = LAYOUT_1D
    tp_depth: Column = 1.0
    sequence_parallel: Column = 0.0
    cp: Column = 1.0
    ep: Column = 1.0
    pp: Column = 1.0
    virtual_stages: Column = 1.0
    schedule: Column = ONE_F_ONE_B
    micro_batch_size: Column = 1.0
    zero_stage: Column = 0.0
    shard_degree: Column = 0.0
    recompute: Column = RECOMPUTE_NONE
    recompute_layers: Column = -1.0
    dtype_bytes: Column = 2.0
    reduce_bytes: Column = 2.0
    """Of a gradient's element on the wire."""
    gradient_bytes: Column = 4.0
    """Of a gradient's element in memory; the kernel sums micro-batches in fp32."""
    compiled: Column = 0.0
    offload: Column = 0.0
    attention: Column = ATTENTION_FLASH2
    fused_norm: Column = 1.0
    first_layers: Column = -1.0
    middle_layers: Column = -1.0
    last_layers: Column = -1.0
    is_kernel: bool = False
    """Whether the tuner's own kernel runs them all, whose buffers are known."""

    @property
    def size(self) -> int:
        """Number of points (1 when every column is scalar)."""
        return max(np.size(getattr(self, field.name)) for field in fields(self))

    @cached_property
    def num_microbatches(self) -> Column:
        """Micro-batches per replica and step."""
        return np.maximum(self.global_batch_size / (self.dp * self.micro_batch_size), 1.0)

    @cached_property
    def tokens(self) -> Column:
        """Tokens of one micro-batch on one context-parallel rank."""
        return self.micro_batch_size * self.sequence_length / self.cp

    @cached_property
    def shards(self) -> Column:
        """Ranks that share one shard set of the ZeRO states (HSDP: fewer than `dp`)."""
        degree = np.asarray(self.shard_degree)
        return np.where(degree > 0, np.minimum(degree, self.dp), self.dp)

    @property
    def num_devices(self) -> Column:
        """World size."""
        return self.tp * self.cp * self.dp * self.pp

    def take(self, index: NDArray[np.intp] | slice) -> "Points":
        """The points of `index`; scalar columns stay as they are."""
        changed: dict[str, Any] = {}
        for field in fields(self):
            column = getattr(self, field.name)
            if np.ndim(column):
                changed[field.name] = column[index]
        return replace(self, **changed)


def model_columns(model: ModelSpec) -> dict[str, float]:
    """Columns of `Points` that come from the model."""
    is_gpt2 = model.family == "gpt2"
    return {
        "num_layers": float(model.num_layers),
        "hidden_size": float(model.hidden_size),
        "ffn_size": float(model.ffn_size),
        "num_heads": float(model.num_heads),
        "num_kv_heads": float(model.num_kv_heads),
        "head_dim": float(model.head_dim),
        "vocab_size": float(model.vocab_size),
        "gated": 0.0 if is_gpt2 else 1.0,
        "tied": float(model.tied_embeddings),
        "biased": float(is_gpt2),
        "learned_positions": float(model.max_positions) if is_gpt2 else 0.0,
        "num_experts": float(model.num_experts),
        "experts_per_token": float(model.experts_per_token),
    }


def recipe_columns(training: TrainingSpec) -> dict[str, float]:
    """Columns of `Points` that come from the recipe."""
    return {
        "sequence_length": float(training.sequence_length),
        "global_batch_size": float(training.global_batch_size),
        "is_training": float(training.workload == "training"),
        "optimizer_states": 2.0 if training.optimizer == "adamw" else 0.0,
    }


def config_columns(configs: Sequence[ParallelConfig]) -> dict[str, Array]:
    """Columns of `Points` that come from the configurations."""

    def column(values: list[Any]) -> Array:
        return np.array(values, dtype=np.float64)

    explicit = [_explicit_stages(config) for config in configs]
    return {
        "dp": column([c.dp for c in configs]),
        "tp": column([c.tp for c in configs]),
        "tp_layout": column([LAYOUTS[c.tp_layout] for c in configs]),
        "tp_depth": column([c.tp_depth for c in configs]),
        "sequence_parallel": column([c.sequence_parallel for c in configs]),
        "cp": column([c.cp for c in configs]),
        "ep": column([c.ep for c in configs]),
        "pp": column([c.pp for c in configs]),
        "virtual_stages": column([c.virtual_stages for c in configs]),
        "schedule": column([SCHEDULES[c.pipeline_schedule] for c in configs]),
        "micro_batch_size": column([c.micro_batch_size for c in configs]),
        "zero_stage": column([c.zero_stage for c in configs]),
        "shard_degree": column([c.zero_shard_degree for c in configs]),
        "recompute": column([RECOMPUTES[c.recompute] for c in configs]),
        "recompute_layers": column(
            [-1 if c.recompute_layers is None else c.recompute_layers for c in configs]
        ),
        "dtype_bytes": column([DTYPE_BYTES[c.dtype] for c in configs]),
        "reduce_bytes": column([DTYPE_BYTES[c.reduce_dtype] for c in configs]),
        "compiled": column([c.compile for c in configs]),
        "offload": column([c.optimizer_offload for c in configs]),
        "first_layers": column([stages[0] for stages in explicit]),
        "middle_layers": column([stages[1] for stages in explicit]),
        "last_layers": column([stages[2] for stages in explicit]),
    }


def _explicit_stages(config: ParallelConfig) -> tuple[float, float, float]:
    """Layers of the first, the fullest middle and the last rank; -1 where the split is even."""
    if config.stage_layers is None:
        return (-1.0, -1.0, -1.0)
    stages = config.stage_layers
    ranks = [sum(stages[rank :: config.pp]) for rank in range(config.pp)]
    return (float(ranks[0]), float(max(ranks[1:-1], default=0)), float(ranks[-1]))


def points_of(
    model: ModelSpec,
    training: TrainingSpec,
    configs: Sequence[ParallelConfig],
    **columns: Column | bool,
) -> Points:
    """The configurations of one model and recipe as columns; `columns` override any of them."""
    merged: dict[str, Any] = {**model_columns(model), **recipe_columns(training)}
    merged.update(config_columns(configs))
    merged.update(columns)
    return Points(**merged)
