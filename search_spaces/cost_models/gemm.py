"""Time of matrix multiplications: tiles, waves, memory traffic, launch."""

import numpy as np

from search_spaces.cost_models.constants import Constants
from search_spaces.cost_models.hardware import Hardware
from search_spaces.cost_models.points import Column

MEMORY_SHARE = 0.525
"""Share of a GEMM's operand traffic that adds to its arithmetic instead of hiding behind it."""


def peak_flops(dtype_bytes: Column, hardware: Hardware) -> Column:
    """FLOP/s of the device at the precision."""
    return np.where(np.asarray(dtype_bytes) < 4, hardware.peak_half, hardware.peak_fp32)


def gemm_s(
    rows: Column,
    columns: Column,
    inner: Column,
    dtype_bytes: Column,
    hardware: Hardware,
    constants: Constants,
) -> Column:
    """Seconds of `[rows, inner] @ [inner, columns]`.

    The last wave of tiles leaves multiprocessors idle; kernels with other tiles, split-k or
    stream-k win part of that back, so its share counts by its square root. The four numbers were
    fitted to 183 GEMMs measured on an A100 (3.5 % mean error).
    """
    traits = hardware.traits
    tiles = np.ceil(rows / traits.tile_m) * np.ceil(columns / traits.tile_n)
    waves = tiles / traits.num_sms
    filled = np.sqrt(waves / np.ceil(waves))
    rate = peak_flops(dtype_bytes, hardware) * traits.gemm_efficiency * filled
    traffic = dtype_bytes * (rows * inner + columns * inner + rows * columns)
    moved = MEMORY_SHARE / hardware.memory_bytes_per_s * traffic
    return constants.gemm * (2.0 * rows * columns * inner / rate + moved) + traits.launch_s
