"""Peak memory of a rank: states by ZeRO stage, activations in flight, logits, buffers."""

from dataclasses import dataclass

import numpy as np

from search_spaces.cost_models.constants import Constants
from search_spaces.cost_models.hardware import Hardware
from search_spaces.cost_models.parameters import (
    dense_layer_parameters,
    embedding_parameters,
    expert_layer_parameters,
    head_parameters,
)
from search_spaces.cost_models.points import (
    ATTENTION_EAGER,
    ATTENTION_FLASH1,
    GPIPE,
    INTERLEAVED,
    LAYOUT_1D,
    RECOMPUTE_FULL,
    RECOMPUTE_SELECTIVE,
    ZBV,
    Column,
    Points,
)
from search_spaces.cost_models.stages import StageLayers

CPU_BASE_BYTES = 0.25e9
"""Memory of the Python process and its libraries on a CPU rank."""


@dataclass(frozen=True, kw_only=True)
class MemoryParts:
    """Bytes of one rank by what they hold."""

    weights: Column
    gradients: Column
    optimizer: Column
    activations: Column
    logits: Column
    buffers: Column
    runtime: Column

    @property
    def total(self) -> Column:
        """All of them."""
        return (
            self.weights + self.gradients + self.optimizer + self.activations + self.logits
            + self.buffers + self.runtime
        )  # fmt: skip


def rank_parameters(
    points: Points, layers: Column, has_embedding: Column, has_head: Column
) -> Column:
    """Parameters of a rank that holds `layers` layers and the ends it is said to."""
    spread = points.tp * np.where(
        np.asarray(points.tp_layout) == LAYOUT_1D, 1.0, 1.0 / np.asarray(points.tp_depth)
    )
    per_layer = dense_layer_parameters(points) + expert_layer_parameters(points) / points.ep
    copied_head = has_head * (1.0 - has_embedding) * points.tied * points.vocab_size
    ends = has_embedding * embedding_parameters(points) + has_head * head_parameters(points)
    return (layers * per_layer + ends + copied_head * points.hidden_size) / spread


def in_flight(points: Points, rank: Column) -> Column:
    """Micro-batches whose activations a rank keeps at its peak, in units of its model part."""
    waiting = points.pp - rank
    micro_batches = points.num_microbatches
    chunks = np.maximum(points.virtual_stages, 1.0)
    interleaved = (points.pp * (chunks - 1.0) + 2.0 * (waiting - 1.0) + 1.0) / chunks
    schedule = np.asarray(points.schedule)
    kept = np.where(schedule == INTERLEAVED, interleaved, waiting)
    kept = np.where(schedule == ZBV, points.pp, kept)
    kept = np.where(schedule == GPIPE, micro_batches, kept)
    return np.where(np.asarray(points.is_training) > 0, np.minimum(micro_batches, kept), 1.0)


def layer_activation_bytes(points: Points, constants: Constants) -> tuple[Column, Column]:
    """Bytes that one layer keeps per micro-batch without recomputation, and its input alone.

    Follows 2205.05198, section 4, per kernel and family.
    """
    is_2d = np.asarray(points.tp_layout) != LAYOUT_1D
    spread = np.where(np.asarray(points.sequence_parallel) > 0, points.tp, 1.0)
    spread = np.where(is_2d, points.tp, spread)
    scale = points.dtype_bytes / 2.0
    width = points.num_heads * points.head_dim
    key_value = points.num_kv_heads * points.head_dim
    norms = np.where(np.asarray(points.fused_norm) > 0, 10.0, 18.0) * points.hidden_size
    rotary = (1.0 - np.minimum(points.learned_positions, 1.0)) * points.gated
    attention = (4.0 + 2.0 * rotary) * width + (4.0 + 2.0 * rotary) * key_value
    is_sharded = np.asarray(points.sequence_parallel) > 0
    share = np.where(
        np.asarray(points.pp) > 1, constants.gathered_stage_memory, constants.gathered_memory
    )
    gathered = np.where(is_sharded & (np.asarray(points.tp) > 1), share, 0.0)
    visits = np.maximum(points.experts_per_token, 1.0)
    mlp = visits * np.where(np.asarray(points.gated) > 0, 8.0, 4.0) * points.ffn_size
    is_eager = np.asarray(points.attention) < ATTENTION_FLASH1
    keeps_scores = is_eager & (np.asarray(points.recompute) != RECOMPUTE_SELECTIVE)
    per_score = np.where(np.asarray(points.attention) == ATTENTION_EAGER, 8.0, 5.0)
    scores = np.where(keeps_scores, per_score * points.num_heads * points.sequence_length, 0.0)
    replicated = norms / spread + 4.0 * points.hidden_size * gathered
    kept = points.tokens * scale * (replicated + (attention + mlp + scores) / points.tp)
    return kept, points.tokens * scale * 2.0 * points.hidden_size / spread


def stage_memory(
    points: Points,
    layers: Column,
    rank: Column,
    has_embedding: Column,
    has_head: Column,
    hardware: Hardware,
    constants: Constants,
) -> MemoryParts:
    """Memory of the pipeline rank `rank` that holds `layers` layers."""
    parameters = rank_parameters(points, layers, has_embedding, has_head)
    stage, shards = np.asarray(points.zero_stage), points.shards
    training = np.asarray(points.is_training)
    is_half = np.asarray(points.dtype_bytes) < 4
    frag = constants.fragmentation
    state = constants.weights_memory * frag * parameters
    weights = state * points.dtype_bytes / np.where(stage >= 3, shards, 1.0)
    gradients = training * state * np.where(is_half, points.reduce_bytes, 4.0)
    gradients = gradients / np.where(stage >= 2, shards, 1.0)
    master = np.where(is_half, 4.0, 0.0)
    states = training * state * (4.0 * points.optimizer_states + master)
    states = states / np.where(stage >= 1, shards, 1.0)
    states = np.where(
        np.asarray(points.offload) > 0, 0.0 if not hardware.is_cpu else states, states
    )
    held, entry = layer_activation_bytes(points, constants)
    full = np.asarray(points.recompute) == RECOMPUTE_FULL
    wanted = np.asarray(points.recompute_layers)
    redone = np.where(wanted < 0, layers, np.minimum(wanted, layers)) * full
    flight = in_flight(points, rank)
    kept = training * (flight * ((layers - redone) * held + redone * entry))
    live = np.where((redone > 0) | (training < 1), held, 0.0)
    activations = constants.activations_memory * frag * (kept + live)
    per_logit = points.dtype_bytes + 8.0 + np.where(points.num_microbatches > 1, 4.0, 0.0)
    logits = has_head * points.tokens * points.vocab_size / points.tp * per_logit
    gathered = dense_layer_parameters(points) + expert_layer_parameters(points) / points.ep
    table = points.vocab_size * points.hidden_size
    buffers = np.where(stage >= 3, (2.0 * gathered + table) / points.tp * points.dtype_bytes, 0.0)
    transient = training * parameters * points.dtype_bytes * constants.transient_memory
    transient = np.where(is_half & (points.reduce_bytes > points.dtype_bytes), transient, 0.0)
    scale = CPU_BASE_BYTES / Constants().base_memory_bytes if hardware.is_cpu else 1.0
    base = scale * constants.base_memory_bytes
    return MemoryParts(
        weights=weights,
        gradients=gradients,
        optimizer=states,
        activations=activations,
        logits=constants.logits_memory * frag * logits,
        buffers=frag * (buffers + transient),
        runtime=base,
    )


def peak_memory(
    points: Points, stages: StageLayers, hardware: Hardware, constants: Constants
) -> tuple[Column, MemoryParts]:
    """Peak over the pipeline's ranks, and the parts of the rank where it is reached."""
    single = (np.asarray(points.pp) <= 1).astype(np.float64)
    both = np.maximum(single, np.asarray(points.schedule) == ZBV)
    first = stage_memory(points, stages.first, 0.0, 1.0, both, hardware, constants)
    last_rank = np.asarray(points.pp) - 1.0
    last = stage_memory(
        points, stages.last, last_rank, single, 1.0 - both + single, hardware, constants
    )
    middle = stage_memory(points, stages.middle, 1.0, 0.0, 0.0, hardware, constants)
    totals = np.stack(np.broadcast_arrays(first.total, middle.total, last.total))
    choice = totals.argmax(axis=0)
    parts = MemoryParts(
        **{
            name: np.choose(
                choice, [np.asarray(getattr(part, name)) for part in (first, middle, last)]
            )
            for name in MemoryParts.__dataclass_fields__
        }
    )
    return totals.max(axis=0), parts
