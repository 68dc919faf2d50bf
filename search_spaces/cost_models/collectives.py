"""Collectives and hops under a hierarchical alpha-beta model."""

from typing import NamedTuple

import numpy as np

from search_spaces.cost_models.constants import Constants
from search_spaces.cost_models.hardware import Hardware
from search_spaces.cost_models.points import Column

GATHER_LATENCY = 0.6
"""Latency of a reduce-scatter or all-gather within a node over that of an all-reduce."""

MANY = 1024
"""Points from which on a table is faster than powers."""


class Group(NamedTuple):
    """A group of ranks as its collectives see it."""

    size: Column
    s_per_byte: Column
    """Inverse bus bandwidth of a ring."""
    tree_latency_s: Column
    """Latency of an all-reduce: a tree over nodes (NCCL's choice for small messages)."""
    ring_latency_s: Column
    """Latency of a reduce-scatter or all-gather: a ring, one step per rank between nodes."""
    exchange_s_per_byte: Column
    """Inverse bandwidth of one rank that sends to all others at once."""


def ranks_per_node(size: Column, stride: Column, hardware: Hardware) -> Column:
    """Ranks of one node that belong to the same group of `size` ranks `stride` apart."""
    return np.minimum(size, np.maximum(np.floor(hardware.devices_per_node / stride), 1.0))


def group_of(size: Column, stride: Column, hardware: Hardware, constants: Constants) -> Group:
    """A group of `size` ranks that lie `stride` ranks apart.

    Within a node the link sets the pace; between nodes the network cards of the ranks that the
    group has on each do, and every doubling of its nodes takes some bandwidth away.
    """
    local = ranks_per_node(size, stride, hardware)
    doublings = np.log2(np.maximum(size / local, 1.0))
    cards = _cards(local, constants.nic_sharing)
    intra = constants.intra_node / hardware.intra_bytes_per_s / _nearness(size, stride, hardware)
    inter = constants.inter_node / (hardware.inter_bytes_per_s * cards)
    spread = np.maximum(intra, inter) * np.exp2(constants.node_degradation * doublings)
    crosses = doublings > 0
    per_byte = np.where(crosses, spread, intra)
    near: Column = hardware.intra_alpha_s * constants.latency
    far = hardware.inter_alpha_s
    if hardware.ranks_per_core > 1.0:  # every step of the ring waits for ranks that do not run
        near = near * np.maximum(size - 1.0, 1.0)
    return Group(
        size=size,
        s_per_byte=per_byte,
        tree_latency_s=np.where(crosses, constants.latency * far * (1.0 + doublings), near),
        ring_latency_s=np.where(
            crosses, (size - 1.0) * constants.ring_step_s, GATHER_LATENCY * near
        ),
        exchange_s_per_byte=np.where(crosses, per_byte * local, per_byte),
    )


def _cards(local: Column, sharing: Column) -> Column:
    """`local ** sharing`; looked up where points are many, as ranks of a node are few."""
    if np.ndim(sharing) or np.size(local) < MANY:
        return np.exp2(sharing * np.log2(local))
    whole = np.arange(1.0 + np.max(local))
    return np.asarray(whole**sharing)[np.asarray(local).astype(np.intp)]


def _nearness(size: Column, stride: Column, hardware: Hardware) -> Column:
    """How much faster than the node's links those of close neighbours are."""
    nearness: Column = 1.0
    for neighbours, factor in hardware.traits.near_links:
        nearness = np.where(size * stride <= neighbours, factor, nearness)
    return nearness


def all_reduce_s(num_bytes: Column, group: Group) -> Column:
    """Time of an all-reduce of `num_bytes` on every rank."""
    moved = 2.0 * (group.size - 1.0) / group.size * num_bytes
    return np.where(group.size > 1.0, moved * group.s_per_byte + group.tree_latency_s, 0.0)


def reduce_scatter_s(num_bytes: Column, group: Group) -> Column:
    """Time of a reduce-scatter or all-gather of `num_bytes` in total."""
    moved = (group.size - 1.0) / group.size * num_bytes
    return np.where(group.size > 1.0, moved * group.s_per_byte + group.ring_latency_s, 0.0)


def all_to_all_s(num_bytes: Column, group: Group) -> Column:
    """Time of an all-to-all in which every rank sends `num_bytes` in total."""
    moved = (group.size - 1.0) / group.size * num_bytes
    time = moved * group.exchange_s_per_byte + group.tree_latency_s
    return np.where(group.size > 1.0, time, 0.0)


def hop_s(num_bytes: Column, stride: Column, hardware: Hardware, constants: Constants) -> Column:
    """Time of one point-to-point message to the rank `stride` further on."""
    per_byte = np.where(
        stride >= hardware.devices_per_node,
        constants.inter_node / hardware.inter_bytes_per_s,
        2.0 * constants.intra_node / hardware.intra_bytes_per_s,
    )
    return num_bytes * per_byte * constants.hop_factor + constants.hop_s
