"""Gradient reduction, ZeRO's gathers, and what of them the backward pass hides."""

import numpy as np

from search_spaces.cost_models.collectives import all_reduce_s, group_of, reduce_scatter_s
from search_spaces.cost_models.constants import Constants
from search_spaces.cost_models.hardware import Hardware
from search_spaces.cost_models.layer import LayerTimes
from search_spaces.cost_models.parameters import dense_layer_parameters, expert_layer_parameters
from search_spaces.cost_models.points import Column, Points


def data_parallel_s(
    points: Points,
    rank_parameters: Column,
    slowest_layers: Column,
    layer: LayerTimes,
    hardware: Hardware,
    constants: Constants,
) -> Column:
    """Exposed seconds per step of the data-parallel group's collectives."""
    stage = np.asarray(points.zero_stage)
    size = points.dp * points.cp
    group = group_of(size, points.tp, hardware, constants)
    gradients = rank_parameters * points.reduce_bytes
    weights = rank_parameters * points.dtype_bytes
    scatter = reduce_scatter_s(gradients, group)
    reduce = np.where(stage >= 1, scatter, all_reduce_s(gradients, group))
    gather = reduce_scatter_s(weights, group)
    window = slowest_layers * layer.backward_s
    is_whole = np.asarray(points.pp) <= 1
    share = np.where(is_whole, constants.data_exposed, constants.stage_exposed)
    share = np.where(stage >= 1, constants.scatter_exposed, share)
    # gradients that stay sharded (stage 2) are scattered after every micro-batch
    times = np.where(stage >= 2, points.num_microbatches, 1.0)
    exposed = times * np.maximum(share * reduce, reduce - window)
    stepwise = exposed + np.where(stage >= 1, gather, 0.0)
    stepwise = np.where(size > 1, stepwise, 0.0) + _tied_s(points, hardware, constants)
    training = np.asarray(points.is_training)
    if not np.any(stage >= 3):
        return training * stepwise
    sharded = _fully_sharded_s(points, slowest_layers, layer, hardware, constants)
    return training * np.where((size > 1) & (stage >= 3), sharded, stepwise)


def _tied_s(points: Points, hardware: Hardware, constants: Constants) -> Column:
    """Sum of the two copies of a tied embedding's gradient, on the first and the last stage."""
    num_bytes = points.vocab_size * points.hidden_size / points.tp * points.reduce_bytes
    stride = points.tp * points.cp * points.dp * np.maximum(np.asarray(points.pp) - 1.0, 1.0)
    copies = (np.asarray(points.pp) > 1) & (np.asarray(points.tied) > 0)
    if not np.any(copies):
        return np.float64(0.0)
    if hardware.traits.near_links:
        return np.where(
            copies, all_reduce_s(num_bytes, group_of(2.0, stride, hardware, constants)), 0.0
        )
    # a pair is either on one node or on two: the two groups are computed once
    near = all_reduce_s(num_bytes, group_of(2.0, 1.0, hardware, constants))
    far = all_reduce_s(num_bytes, group_of(2.0, hardware.devices_per_node, hardware, constants))
    return np.where(copies, np.where(2.0 * stride > hardware.devices_per_node, far, near), 0.0)


def _fully_sharded_s(
    points: Points,
    layers: Column,
    layer: LayerTimes,
    hardware: Hardware,
    constants: Constants,
) -> Column:
    """ZeRO-3: each layer is gathered for each pass and its gradient scattered, while others run."""
    size = points.shards * points.cp
    group = group_of(size, points.tp, hardware, constants)
    whole = dense_layer_parameters(points) + expert_layer_parameters(points) / points.ep
    held = whole / points.tp
    gather = reduce_scatter_s(held * points.dtype_bytes, group)
    scatter = reduce_scatter_s(held * points.reduce_bytes, group)
    traffic = 2.0 * gather + scatter
    per_layer = np.maximum(constants.gather_exposed * traffic, traffic - layer.total_s)
    if hardware.ranks_per_core > 1.0:  # what would hide it has no core to run on
        per_layer = traffic
    table = points.vocab_size * points.hidden_size / points.tp * points.dtype_bytes
    ends = 3.0 * reduce_scatter_s(table, group)
    within = points.num_microbatches * (layers * per_layer + ends)
    replicas = np.maximum(points.dp / points.shards, 1.0)
    if not np.any(replicas > 1):
        return within
    copies = group_of(replicas, points.tp * size, hardware, constants)
    return within + all_reduce_s(held * layers * points.reduce_bytes / size, copies)
