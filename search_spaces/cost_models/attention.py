"""Time of the attention core (scores, softmax, weighted sum) by kernel."""

from typing import NamedTuple

import numpy as np

from search_spaces.cost_models.constants import Constants
from search_spaces.cost_models.gemm import peak_flops
from search_spaces.cost_models.hardware import Hardware
from search_spaces.cost_models.points import (
    ATTENTION_EAGER,
    ATTENTION_FLASH1,
    ATTENTION_FLASH2,
    Column,
    Points,
)

SMALL_HEAD = 96
SMALL_HEAD_SHARE = 0.85
"""Below this head size the second flash kernel runs that much slower; the first does not."""


class AttentionTimes(NamedTuple):
    """Seconds of one layer's attention core on one rank."""

    forward_s: Column
    backward_s: Column


def attention_times(points: Points, hardware: Hardware, constants: Constants) -> AttentionTimes:
    """Flash kernels skip the masked half; eager ones compute it and move every score in memory."""
    traits = hardware.traits
    peak = peak_flops(points.dtype_bytes, hardware)
    width = points.num_heads * points.head_dim / points.tp
    flops = 4.0 * points.tokens * points.sequence_length * width
    flash_share = np.where(
        points.attention == ATTENTION_FLASH2, traits.attention_flash2, traits.attention_flash1
    )
    is_small = np.asarray(points.head_dim) < SMALL_HEAD
    flash_share = flash_share * np.where(
        is_small & (points.attention == ATTENTION_FLASH2), SMALL_HEAD_SHARE, 1.0
    )
    flash = 0.5 * flops / (peak * flash_share)
    batched = flops / (peak * traits.attention_batched)
    scores = points.tokens * points.sequence_length * points.num_heads / points.tp
    per_score = scores * points.dtype_bytes / 2.0 * _score_cost(hardware, constants)
    eager = points.attention == ATTENTION_EAGER
    is_flash = np.asarray(points.attention) >= ATTENTION_FLASH1
    forward = np.where(is_flash, flash, batched + per_score * np.where(eager, 37.0, 13.0))
    backward = np.where(
        is_flash, 3.1 * flash, 2.0 * batched + per_score * np.where(eager, 45.0, 17.0)
    )
    return AttentionTimes(constants.attention * forward, constants.attention * backward)


def _score_cost(hardware: Hardware, constants: Constants) -> float:
    """Seconds per byte of element-wise traffic over the scores."""
    return constants.elementwise / hardware.memory_bytes_per_s
