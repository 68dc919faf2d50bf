"""The vectorised core: step time and memory of N points by part."""

from dataclasses import dataclass

import numpy as np

from search_spaces.cost_models.constants import Constants
from search_spaces.cost_models.data_parallel import data_parallel_s
from search_spaces.cost_models.hardware import Hardware
from search_spaces.cost_models.layer_table import work_times
from search_spaces.cost_models.memory import (
    MemoryParts,
    densities,
    peak_of,
    stage_memories,
    stage_memory,
    wanted_bytes,
    write_parts,
)
from search_spaces.cost_models.optimizer import accumulation_s, optimizer_s
from search_spaces.cost_models.parameters import RankShares, rank_shares
from search_spaces.cost_models.pipeline import pipeline_times
from search_spaces.cost_models.points import ZBV, Array, Column, Points
from search_spaces.cost_models.residual import PRIOR_HALF_WIDTH
from search_spaces.cost_models.run_ahead import NEGLIGIBLE, pressure
from search_spaces.cost_models.stages import StageLayers, stage_layers

PARTS = (
    "compute", "tensor_parallel", "context_parallel", "expert_parallel", "pipeline_bubble",
    "pipeline_p2p", "data_parallel", "accumulation", "optimizer", "host",
)  # fmt: skip
MEMORY_PARTS = tuple(MemoryParts.__dataclass_fields__)
CHUNK = 16384
PRIOR_MEMORY_HALF_WIDTH = 0.2
"""Half-width of the 90 % interval of the peak memory's logarithm before anything was measured."""


@dataclass(frozen=True, kw_only=True)
class Prediction:
    """Predictions for N points; every array has N entries."""

    step_time_s: Array
    parts_s: dict[str, Array]
    """Addends of the step time in seconds, by part (`PARTS`)."""
    peak_memory_bytes: Array
    memory_parts_bytes: dict[str, Array]
    """Addends of the peak memory in bytes, of the pipeline rank where it is reached."""
    step_time_half_width: Array
    """Half-width of the 90 % interval of the step time's logarithm."""
    memory_half_width: Array
    """The same for the peak memory."""


def _time_parts(
    points: Points,
    hardware: Hardware,
    constants: Constants,
    stages: StageLayers,
    shares: RankShares,
) -> dict[str, Column]:
    """Seconds per step by part."""
    layer, ends = work_times(points, hardware, constants)
    pipe = pipeline_times(points, stages, layer, ends, hardware, constants)
    single = np.asarray(np.asarray(points.pp) <= 1, dtype=np.float64)
    held = np.maximum(shares.held(stages.first, 1.0, single), shares.held(stages.last, single, 1.0))
    micro_batches = points.num_microbatches
    per_layer = micro_batches * pipe.slowest_layers
    host = per_layer * layer.host_s + micro_batches * constants.host_micro_batch_s
    reduction = data_parallel_s(points, held, pipe.slowest_layers, layer, hardware, constants)
    return {
        "compute": per_layer * layer.compute_s + micro_batches * pipe.slowest_ends_s,
        "tensor_parallel": per_layer * layer.tensor_parallel_s,
        "context_parallel": per_layer * layer.context_parallel_s,
        "expert_parallel": per_layer * layer.expert_parallel_s,
        "pipeline_bubble": pipe.bubble_s,
        "pipeline_p2p": pipe.hops_s,
        "data_parallel": reduction,
        "accumulation": accumulation_s(points, held, hardware, constants),
        "optimizer": optimizer_s(points, held, hardware, constants),
        "host": host + constants.host_step_s + constants.host_parameter_s * held,
    }


def _slowdown(
    points: Points,
    hardware: Hardware,
    constants: Constants,
    stages: StageLayers,
    shares: RankShares,
) -> Column:
    """Stragglers: the more nodes, the later the last; and a lack of memory."""
    nodes = points.num_devices / hardware.devices_per_node
    late = 1.0 + constants.straggler * np.log2(np.maximum(nodes, 1.0))
    if np.max(constants.pressure) < NEGLIGIBLE:
        return late
    wanted = wanted_bytes(points, stages, hardware, constants, shares)
    return late if wanted is None else late * pressure(wanted, hardware, constants)


def step_time(points: Points, hardware: Hardware, constants: Constants) -> Column:
    """Seconds per optimizer step of all points at once."""
    stages, shares = stage_layers(points), rank_shares(points)
    parts = _time_parts(points, hardware, constants, stages, shares)
    total = sum(parts.values(), start=np.float64(0.0))
    slower = _slowdown(points, hardware, constants, stages, shares)
    return np.asarray(total * slower, dtype=np.float64)


def peak_memory_bytes(points: Points, hardware: Hardware, constants: Constants) -> Column:
    """Peak bytes over the ranks of all points at once."""
    return peak_of(stage_memories(points, stage_layers(points), hardware, constants))


def first_rank_bytes(points: Points, hardware: Hardware, constants: Constants) -> Column:
    """Peak bytes of the first pipeline rank: what a log shows that only one rank writes."""
    density = densities(points, hardware, constants)
    alone = (np.asarray(points.pp) <= 1) | (np.asarray(points.schedule) == ZBV)
    has_head = np.asarray(alone, dtype=np.float64)
    first = stage_layers(points).first
    return stage_memory(points, density, first, 0.0, 1.0, has_head).total


def predict(
    points: Points, hardware: Hardware, constants: Constants, *, has_parts: bool = True
) -> Prediction:
    """Step time and memory of all points, in chunks that stay in the processor's cache.

    Without `has_parts` only the two totals are kept, which is all that a ranking needs.
    """
    size = points.size
    result = Prediction(
        step_time_s=np.empty(size),
        parts_s={name: np.empty(size) for name in PARTS if has_parts},
        peak_memory_bytes=np.empty(size),
        memory_parts_bytes={name: np.empty(size) for name in MEMORY_PARTS if has_parts},
        step_time_half_width=np.broadcast_to(np.float64(PRIOR_HALF_WIDTH), (size,)),
        memory_half_width=np.broadcast_to(np.float64(PRIOR_MEMORY_HALF_WIDTH), (size,)),
    )
    for start in range(0, size, CHUNK):
        rows = slice(start, start + CHUNK)
        chunk = points if size <= CHUNK else points.take(rows)
        _predict_chunk(chunk, hardware, constants, result, rows)
    return result


def _predict_chunk(
    points: Points, hardware: Hardware, constants: Constants, result: Prediction, rows: slice
) -> None:
    """Write the predictions of some points into the rows of a result."""
    stages, shares = stage_layers(points), rank_shares(points)
    slower = _slowdown(points, hardware, constants, stages, shares)
    times = _time_parts(points, hardware, constants, stages, shares)
    result.step_time_s[rows] = sum(times.values(), start=np.float64(0.0)) * slower
    for name, column in result.parts_s.items():
        np.multiply(times[name], slower, out=column[rows])
    ranks = stage_memories(points, stages, hardware, constants, shares)
    peak = peak_of(ranks)
    result.peak_memory_bytes[rows] = peak
    if result.memory_parts_bytes:
        chunk = {name: column[rows] for name, column in result.memory_parts_bytes.items()}
        write_parts(peak, ranks, chunk)
