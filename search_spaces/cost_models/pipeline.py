"""Time of a replica's micro-batches through its pipeline, by schedule, with uneven stages."""

from typing import NamedTuple

import numpy as np

from search_spaces.cost_models.collectives import hop_s
from search_spaces.cost_models.constants import Constants
from search_spaces.cost_models.hardware import Hardware
from search_spaces.cost_models.head import EndTimes
from search_spaces.cost_models.layer import LayerTimes
from search_spaces.cost_models.points import INTERLEAVED, ZBV, ZERO_BUBBLE, Column, Points
from search_spaces.cost_models.stages import StageLayers


class PipelineTimes(NamedTuple):
    """Seconds per step: work of the slowest rank, idle time, hops; the slowest rank's layers."""

    busy_s: Column
    bubble_s: Column
    hops_s: Column
    slowest_layers: Column
    slowest_ends_s: Column


def _bubble_share(points: Points, layer: LayerTimes) -> Column:
    """Idle time of a schedule, as a share of what 1F1B idles.

    Interleaving divides it by the chunks (2104.04473, section 2.2). Zero-bubble schedules fill gaps
    with weight gradients W, as far as the chains of forwards F and input gradients I leave any:
    H1 idles `max(F + I - W, F, I)` per rank (2401.10241, table 1). ZB-V's form was read off replays
    of its actions; fewer micro-batches than two a rank do not fill the V.
    """
    schedule = np.asarray(points.schedule)
    whole = np.maximum(layer.total_s, 1e-30)
    forward, weight = layer.forward_s, layer.weight_gradient_s
    inputs = layer.total_s - forward - weight
    interleaved = 1.0 / np.maximum(points.virtual_stages, 1.0)
    share = np.where(schedule == INTERLEAVED, interleaved, 1.0)
    longest = np.maximum(np.maximum(forward, inputs), forward + inputs - weight)
    share = np.where(schedule == ZERO_BUBBLE, longest / whole, share)
    if not np.any(schedule == ZBV):
        return share
    filled = np.maximum(np.maximum(forward, inputs), 2.0 * (inputs - weight))
    few = np.maximum(2.0 * inputs, forward + inputs)
    v_shaped = np.where(points.num_microbatches >= 2.0 * points.pp, filled, few)
    return np.where(schedule == ZBV, 0.5 * v_shaped / whole, share)


def pipeline_times(
    points: Points,
    stages: StageLayers,
    layer: LayerTimes,
    ends: EndTimes,
    hardware: Hardware,
    constants: Constants,
) -> PipelineTimes:
    """The slowest rank sets the pace, the others' work of one micro-batch fills and drains."""
    single = np.asarray(points.pp) <= 1
    v_shaped = np.asarray(points.schedule) == ZBV
    head_on_first = single | v_shaped
    host = constants.host_micro_batch_s
    first_ends = ends.embedding_s + np.where(head_on_first, ends.head_s, 0.0)
    last_ends = np.where(head_on_first, 0.0, ends.head_s)
    pace = layer.total_s
    first = stages.first * pace + first_ends
    middle = stages.middle * pace
    last = np.where(single, 0.0, stages.last * pace + last_ends)
    slowest = np.maximum(np.maximum(first, middle), last)
    work = points.num_layers * pace + ends.embedding_s + ends.head_s
    is_first = first >= slowest
    is_last = ~is_first & (last >= slowest)
    layers = np.where(is_first, stages.first, np.where(is_last, stages.last, stages.middle))
    own_ends = np.where(is_first, first_ends, np.where(is_last, last_ends, 0.0))
    micro_batches = points.num_microbatches
    chunks = points.virtual_stages
    filling = work - slowest - (points.num_layers - layers) * layer.contention_s
    bubble: Column = (filling + host * (points.pp - 1.0)) * _bubble_share(points, layer)
    busy = micro_batches * (slowest + host)
    if hardware.ranks_per_core > 1.0:
        bubble = _crowded_bubble(busy, bubble, np.minimum(hardware.ranks_per_core, points.pp))
    hops = _hop_time(points, ends, hardware, constants) * (
        2.0 * micro_batches * chunks + 2.0 * (points.pp - 1.0)
    ) / np.where(np.asarray(points.is_training) > 0, 1.0, 2.0)  # fmt: skip
    return PipelineTimes(
        busy_s=busy,
        bubble_s=np.where(single, 0.0, bubble),
        hops_s=np.where(single, 0.0, hops),
        slowest_layers=layers,
        slowest_ends_s=own_ends,
    )


def _crowded_bubble(busy_s: Column, bubble_s: Column, speedup: Column) -> Column:
    """Idle time where ranks share cores: those that idle leave their cores to those that work.

    The step takes what the cores need for all work, or the longest chain of actions, each
    `speedup` times as fast as while all ranks work, whichever is longer.
    """
    return np.maximum((busy_s + bubble_s) / speedup - busy_s, 0.0)


def _hop_time(points: Points, ends: EndTimes, hardware: Hardware, constants: Constants) -> Column:
    """One activation to the next stage; tensor-parallel ranks send a share each and gather it."""
    num_bytes = points.tokens * points.hidden_size * points.dtype_bytes
    stride = points.tp * points.cp * points.dp
    return hop_s(num_bytes / points.tp, stride, hardware, constants) + ends.hop_gather_s
