"""Time of the optimizer step."""

import numpy as np

from search_spaces.cost_models.constants import Constants
from search_spaces.cost_models.hardware import Hardware
from search_spaces.cost_models.points import Column, Points

HOST_LINK_BYTES_PER_S = 12e9
"""Effective bandwidth between a device and host memory, for offloaded states."""


def accumulation_s(
    points: Points, rank_parameters: Column, hardware: Hardware, constants: Constants
) -> Column:
    """Adding each micro-batch's gradients to the fp32 sum: read both, write one.

    Stacks whose GEMMs add in place (Megatron's fused accumulation, 2022) skip most of it.
    """
    stage = np.asarray(points.zero_stage)
    held = rank_parameters / np.where(stage >= 3, points.shards, 1.0)
    num_bytes = held * (points.dtype_bytes + 8.0) * points.num_microbatches
    seconds = 1.25 * constants.accumulation * num_bytes / hardware.memory_bytes_per_s
    return np.asarray(points.is_training) * seconds


def optimizer_s(
    points: Points, rank_parameters: Column, hardware: Hardware, constants: Constants
) -> Column:
    """Memory traffic of AdamW: fp32 master, two moments, gradient, and the cast weights."""
    stage = np.asarray(points.zero_stage)
    owned = rank_parameters / np.where(stage >= 1, points.shards, 1.0)
    per_parameter = 18.0 + 8.0 * np.asarray(points.optimizer_states)
    touched = owned * per_parameter + np.where(stage >= 1, 4.0 * rank_parameters, 0.0)
    seconds = 1.25 * constants.optimizer * touched / hardware.memory_bytes_per_s
    link = hardware.memory_bytes_per_s if hardware.is_cpu else HOST_LINK_BYTES_PER_S
    moved = np.asarray(points.offload) * owned * 2.0 * (2.0 + points.dtype_bytes) / link
    return np.asarray(points.is_training) * (seconds + moved)
