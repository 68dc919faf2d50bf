"""Peak memory of a rank: states by ZeRO stage, activations in flight, logits, buffers."""

from collections.abc import Mapping
from dataclasses import dataclass, replace
from functools import cached_property
from typing import NamedTuple

import numpy as np

from search_spaces.cost_models.constants import Constants
from search_spaces.cost_models.hardware import Hardware
from search_spaces.cost_models.kernel_memory import (
    KernelBuffers,
    kernel_buffers,
    kernel_layer_values,
    kernel_transients,
    library_bytes,
)
from search_spaces.cost_models.parameters import (
    RankShares,
    dense_layer_parameters,
    expert_layer_parameters,
    rank_shares,
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
    Array,
    Column,
    Points,
)
from search_spaces.cost_models.run_ahead import RunAhead, run_ahead
from search_spaces.cost_models.stages import StageLayers

CPU_BASE_BYTES = 6e6
"""What libraries allocate in the first steps of a CPU rank; its interpreter is not counted."""
ACCELERATOR_BASE_BYTES = Constants().base_memory_bytes


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

    @cached_property
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
    return rank_shares(points).held(layers, has_embedding, has_head)


class InFlight(NamedTuple):
    """Micro-batches whose activations rank r keeps at its peak: at most `most`, `base + slope r`.

    In units of the rank's part of the model.
    """

    base: Column
    slope: Column
    most: Column

    def at(self, rank: Column) -> Column:
        """Of one pipeline rank."""
        return np.minimum(self.most, self.base + self.slope * rank)


_SLOPES = np.array([0.0, -1.0, -1.0, 0.0, 0.5])
"""Of GPipe, 1F1B, interleaved (over its chunks: times two), zero-bubble and ZB-V."""


def kept_in_flight(points: Points) -> InFlight:
    """By schedule; follows from the order of its actions."""
    schedule = np.asarray(points.schedule)
    micro_batches = points.num_microbatches
    chunks = np.maximum(points.virtual_stages, 1.0)
    looped = schedule == INTERLEAVED
    base = np.where(looped, points.pp + (points.pp - 1.0) / chunks, points.pp)
    slope = _SLOPES[schedule.astype(np.intp)] * np.where(looped, 2.0 / chunks, 1.0)
    base = np.where(schedule == GPIPE, micro_batches, base)
    if np.any(schedule == ZBV):
        base = np.where(schedule == ZBV, (points.pp + 1.0) / 2.0, base)
    training = np.asarray(points.is_training) > 0
    if not np.all(training):
        base, slope = np.where(training, base, 1.0), np.where(training, slope, 0.0)
    return InFlight(base, slope, micro_batches)


def in_flight(points: Points, rank: Column) -> Column:
    """Micro-batches whose activations a rank keeps at its peak, in units of its model part."""
    return kept_in_flight(points).at(rank)


def layer_activation_bytes(
    points: Points, constants: Constants, *, is_cpu: bool = False
) -> tuple[Column, Column]:
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
    split = attention + mlp + scores
    if points.is_kernel:
        values = kernel_layer_values(points, is_cpu=is_cpu)
        whole, split = (2.0 * column for column in values)
        replicated = whole / spread
    kept = points.tokens * scale * (replicated + split / points.tp)
    return kept, points.tokens * scale * 2.0 * points.hidden_size / spread


@dataclass(frozen=True, kw_only=True)
class Densities:
    """What the memory of every pipeline rank is made of."""

    weights: Column
    """Bytes per parameter that the rank holds."""
    gradients: Column
    optimizer: Column
    transient: Column
    layer: Column
    """Bytes that a layer keeps per micro-batch when it does not recompute."""
    layer_input: Column
    logits: Column
    gathered: Column
    """Bytes of whole layers and tables that ZeRO-3 gathers."""
    runtime: Column
    shares: RankShares
    waiting: InFlight
    kernel: KernelBuffers | None = None
    """What comes and goes within a step of the tuner's own kernel, in place of other buffers."""
    ahead: RunAhead | None = None
    """What a host that runs ahead of its device reserves."""


def densities(
    points: Points, hardware: Hardware, constants: Constants, shares: RankShares | None = None
) -> Densities:
    """Everything that does not differ from rank to rank."""
    stage, shards = np.asarray(points.zero_stage), points.shards
    training = np.asarray(points.is_training)
    is_half = np.asarray(points.dtype_bytes) < 4
    state = constants.weights_memory * constants.fragmentation
    gradient = np.where(is_half, points.gradient_bytes, 4.0) * training
    owned = 4.0 * points.optimizer_states + np.where(is_half, 4.0, 0.0)
    owned = owned * training / np.where(stage >= 1, shards, 1.0)
    if not hardware.is_cpu:
        owned = owned * (1.0 - np.asarray(points.offload))
    # buckets of gradients in compute precision, beside their fp32 sums
    copies = is_half & (points.gradient_bytes > points.dtype_bytes)
    copies = copies & (np.asarray(points.dp * points.cp) > 1)
    layer, layer_input = layer_activation_bytes(points, constants, is_cpu=hardware.is_cpu)
    kept = constants.activations_memory * constants.fragmentation
    per_logit = points.dtype_bytes + 8.0 + np.where(points.num_microbatches > 1, 4.0, 0.0)
    vocabulary = points.tokens * points.vocab_size / points.tp
    whole = dense_layer_parameters(points) + expert_layer_parameters(points) / points.ep
    gathered = (2.0 * whole + points.vocab_size * points.hidden_size) / points.tp
    scale = CPU_BASE_BYTES / ACCELERATOR_BASE_BYTES if hardware.is_cpu else 1.0
    libraries = library_bytes(points, hardware) if points.is_kernel else 0.0
    return Densities(
        weights=state * points.dtype_bytes / np.where(stage >= 3, shards, 1.0),
        gradients=state * gradient / np.where(stage >= 2, shards, 1.0),
        optimizer=state * owned,
        transient=training * copies * points.dtype_bytes * constants.transient_memory,
        layer=kept * layer,
        layer_input=kept * layer_input,
        logits=constants.logits_memory * constants.fragmentation * vocabulary * per_logit,
        gathered=np.where(stage >= 3, gathered * points.dtype_bytes, 0.0),
        runtime=scale * constants.base_memory_bytes + libraries,
        shares=shares or rank_shares(points),
        waiting=kept_in_flight(points),
        kernel=kernel_buffers(points, hardware, constants) if points.is_kernel else None,
        ahead=run_ahead(points, hardware, constants),
    )


def stage_memory(
    points: Points,
    density: Densities,
    layers: Column,
    rank: Column,
    has_embedding: Column,
    has_head: Column,
) -> MemoryParts:
    """Memory of the pipeline rank `rank` that holds `layers` layers and the ends it is said to."""
    parameters = density.shares.held(layers, has_embedding, has_head)
    training = np.asarray(points.is_training)
    wanted = np.asarray(points.recompute_layers)
    redone = np.where(wanted < 0, layers, np.minimum(wanted, layers)) * (
        np.asarray(points.recompute) == RECOMPUTE_FULL
    )
    kept = (layers - redone) * density.layer + redone * density.layer_input
    waiting = training * density.waiting.at(rank) * kept
    if density.kernel is None:
        activations = waiting + np.where((redone > 0) | (training < 1), density.layer, 0.0)
        logits = has_head * density.logits
        buffers = density.gathered + parameters * density.transient
    else:
        made = kernel_transients(
            density.kernel, density.layer, density.layer_input, redone, layers, has_head
        )
        activations = waiting + made.activations + np.where(training < 1, density.layer, 0.0)
        logits, buffers = made.logits, made.buffers
        if np.any(density.kernel.summed):  # once the activations are gone
            summed = parameters * density.kernel.summed
            buffers = np.maximum(buffers, summed - activations - logits)
        buffers = buffers + density.kernel.held
    if density.ahead is not None:
        states = parameters * (density.weights + density.gradients + density.optimizer)
        needed = states + activations + logits + buffers + density.runtime
        buffers = buffers + density.ahead.held(needed, density.waiting.at(rank))
    return MemoryParts(
        weights=parameters * density.weights,
        gradients=parameters * density.gradients,
        optimizer=parameters * density.optimizer,
        activations=activations,
        logits=logits,
        buffers=buffers,
        runtime=density.runtime,
    )


def stage_memories(
    points: Points,
    stages: StageLayers,
    hardware: Hardware,
    constants: Constants,
    shares: RankShares | None = None,
) -> tuple[MemoryParts, MemoryParts, MemoryParts]:
    """Memory of the first, the fullest middle and the last pipeline rank."""
    density = densities(points, hardware, constants, shares)
    single = np.asarray(np.asarray(points.pp) <= 1, dtype=np.float64)
    both = np.maximum(single, np.asarray(points.schedule) == ZBV)
    first = stage_memory(points, density, stages.first, 0.0, 1.0, both)
    last_rank = np.asarray(points.pp) - 1.0
    last = stage_memory(points, density, stages.last, last_rank, single, 1.0 - both + single)
    return first, stage_memory(points, density, stages.middle, 1.0, 0.0, 0.0), last


def wanted_bytes(
    points: Points,
    stages: StageLayers,
    hardware: Hardware,
    constants: Constants,
    shares: RankShares | None = None,
) -> Column | None:
    """What the fullest rank would reserve if there were room for all; none where it is no more."""
    ahead = run_ahead(points, hardware, constants)
    if ahead is None:
        return None
    calm = replace(constants, run_ahead_memory=0.0, run_ahead_stage_memory=0.0)
    first, middle, last = stage_memories(points, stages, hardware, calm, shares)
    waiting = kept_in_flight(points)
    last_rank = np.asarray(points.pp) - 1.0
    return np.maximum(
        np.maximum(
            first.total + ahead.wanted(waiting.at(0.0)),
            middle.total + ahead.wanted(waiting.at(1.0)),
        ),
        last.total + ahead.wanted(waiting.at(last_rank)),
    )


def peak_of(ranks: tuple[MemoryParts, MemoryParts, MemoryParts]) -> Column:
    """The largest of the ranks' totals."""
    first, middle, last = ranks
    return np.maximum(np.maximum(first.total, middle.total), last.total)


def write_parts(
    peak: Column, ranks: tuple[MemoryParts, MemoryParts, MemoryParts], out: Mapping[str, Array]
) -> None:
    """Write the parts of the rank where the peak is reached into columns of their names."""
    first, middle, last = ranks
    at_middle = np.broadcast_to(middle.total >= peak, np.shape(peak))
    at_first = np.broadcast_to(first.total >= peak, np.shape(peak))
    for name, column in out.items():
        part = getattr(last, name)
        column[...] = part
        for rank, where in ((middle, at_middle), (first, at_first)):
            if getattr(rank, name) is not part:
                np.copyto(column, getattr(rank, name), where=where)
