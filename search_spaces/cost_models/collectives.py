"""Collectives and hops under a hierarchical alpha-beta model."""

import numpy as np

from search_spaces.cost_models.constants import Constants
from search_spaces.cost_models.hardware import Hardware
from search_spaces.cost_models.points import Column


def ranks_per_node(size: Column, stride: Column, hardware: Hardware) -> Column:
    """Ranks of one node that belong to the same group of `size` ranks `stride` apart."""
    return np.minimum(size, np.maximum(np.floor(hardware.devices_per_node / stride), 1.0))


def _seconds_per_byte(
    size: Column, stride: Column, hardware: Hardware, constants: Constants
) -> tuple[Column, Column, Column]:
    """Inverse bus bandwidth of a ring, doublings of its nodes, and its ranks on one node."""
    local = ranks_per_node(size, stride, hardware)
    doublings = np.log2(np.maximum(size / local, 1.0))
    intra = constants.intra_node / hardware.intra_bytes_per_s / _nearness(size, stride, hardware)
    inter = constants.inter_node / (hardware.inter_bytes_per_s * local**constants.nic_sharing)
    spread = np.maximum(intra, inter) * np.exp2(constants.node_degradation * doublings)
    return np.where(doublings > 0, spread, intra), doublings, local


def _nearness(size: Column, stride: Column, hardware: Hardware) -> Column:
    """How much faster than the node's links those of close neighbours are."""
    nearness: Column = 1.0
    for neighbours, factor in hardware.traits.near_links:
        nearness = np.where(size * stride <= neighbours, factor, nearness)
    return nearness


def all_reduce_s(
    num_bytes: Column, size: Column, stride: Column, hardware: Hardware, constants: Constants
) -> Column:
    """Time of an all-reduce: ring bandwidth, tree latency (NCCL's choice for small messages)."""
    per_byte, doublings, _ = _seconds_per_byte(size, stride, hardware, constants)
    latency = constants.latency * np.where(
        doublings > 0,
        hardware.inter_alpha_s * (1.0 + doublings),
        hardware.intra_alpha_s,
    )
    return np.where(size > 1, 2.0 * (size - 1) / size * num_bytes * per_byte + latency, 0.0)


def reduce_scatter_s(
    num_bytes: Column, size: Column, stride: Column, hardware: Hardware, constants: Constants
) -> Column:
    """Time of a reduce-scatter or all-gather of `num_bytes` in total: a ring, one step per rank."""
    per_byte, doublings, _ = _seconds_per_byte(size, stride, hardware, constants)
    latency = np.where(
        doublings > 0,
        (size - 1) * constants.ring_step_s,
        0.6 * hardware.intra_alpha_s * constants.latency,
    )
    return np.where(size > 1, (size - 1) / size * num_bytes * per_byte + latency, 0.0)


def all_to_all_s(
    num_bytes: Column, size: Column, stride: Column, hardware: Hardware, constants: Constants
) -> Column:
    """Time of an all-to-all in which every rank sends `num_bytes` in total."""
    per_byte, doublings, local = _seconds_per_byte(size, stride, hardware, constants)
    nics = np.where(doublings > 0, per_byte * local, per_byte)
    alpha = np.where(doublings > 0, hardware.inter_alpha_s, hardware.intra_alpha_s)
    return np.where(size > 1, (size - 1) / size * num_bytes * nics + alpha * constants.latency, 0.0)


def hop_s(num_bytes: Column, stride: Column, hardware: Hardware, constants: Constants) -> Column:
    """Time of one point-to-point message to the rank `stride` further on."""
    per_byte = np.where(
        stride >= hardware.devices_per_node,
        constants.inter_node / hardware.inter_bytes_per_s,
        2.0 * constants.intra_node / hardware.intra_bytes_per_s,
    )
    return num_bytes * per_byte * constants.hop_factor + constants.hop_s
