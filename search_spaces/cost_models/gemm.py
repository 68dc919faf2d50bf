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
    fitted to 183 GEMMs measured on an A100 (3.5 % mean error). Where the machine itself was
    measured, its own rates by size take the place of all that.
    """
    flops = 2.0 * rows * columns * inner
    if hardware.gemm_log_flops:
        return constants.gemm * flops / _measured_rate(flops, dtype_bytes, hardware)
    traits = hardware.traits
    tiles = np.ceil(rows / traits.tile_m) * np.ceil(columns / traits.tile_n)
    waves = tiles / traits.num_sms
    filled = np.sqrt(waves / np.ceil(waves))
    rate = peak_flops(dtype_bytes, hardware) * traits.gemm_efficiency * filled
    traffic = dtype_bytes * (rows * inner + columns * inner + rows * columns)
    moved = MEMORY_SHARE / hardware.memory_bytes_per_s * traffic
    return constants.gemm * (flops / rate + moved) + traits.launch_s


def _measured_rate(flops: Column, dtype_bytes: Column, hardware: Hardware) -> Column:
    """FLOP/s of products of that size, between the measured ones by the logarithm of the size.

    A precision that was not measured takes the other's rates, scaled by the peaks.
    """
    full, half = hardware.gemm_rates_fp32, hardware.gemm_rates_half
    gain = hardware.peak_half / hardware.peak_fp32
    full = full or tuple(rate / gain for rate in half)
    half = half or tuple(rate * gain for rate in full)
    size = np.log2(np.maximum(flops, 1.0))
    return np.where(
        np.asarray(dtype_bytes) < 4,
        np.interp(size, hardware.gemm_log_flops, half),
        np.interp(size, hardware.gemm_log_flops, full),
    )
