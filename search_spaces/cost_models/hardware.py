"""`Hardware`: what the arithmetic needs of a device and its links, read off a `ClusterSpec`."""

import math
from dataclasses import dataclass

from search_spaces.cluster_spec import ClusterSpec

CPU_FLOPS_PER_S_PER_CORE = 50e9
"""Peak in fp32 of one CPU core when the cluster does not say; bf16 counts four times as much."""


@dataclass(frozen=True, kw_only=True)
class DeviceTraits:
    """Facts of a device family that no user should have to know.

    `gemm_efficiency` is the share of peak that a large GEMM reaches, `attention_*` the share that
    each attention kernel reaches on the multiplications of its scores.
    """

    num_sms: float
    tile_m: float = 128.0
    tile_n: float = 256.0
    gemm_efficiency: float = 0.79
    attention_batched: float = 0.45
    attention_flash1: float = 0.33
    attention_flash2: float = 0.55
    gemm_spread: float = 0.2
    """How far trials may move GEMMs: little where large ones were measured."""
    launch_s: float = 8.5e-6
    near_links: tuple[tuple[int, float], ...] = ()
    """Groups of at most so many neighbours have links that many times faster than the node's."""


TRAITS: dict[str, DeviceTraits] = {
    "a100": DeviceTraits(num_sms=108, gemm_spread=0.04),
    "h100": DeviceTraits(
        num_sms=132, gemm_efficiency=0.72, attention_batched=0.3, attention_flash1=0.17,
        attention_flash2=0.38, launch_s=6e-6, gemm_spread=0.04,
    ),
    # two dies in a package share 200 GB/s, dies of two packages 50 to 100 GB/s (OLCF user guide)
    "mi250x": DeviceTraits(
        num_sms=110, gemm_efficiency=0.55, attention_flash2=0.3,
        near_links=((4, 1.5), (2, 4.0)),
    ),
    "rtx5000": DeviceTraits(num_sms=48, tile_n=128.0, gemm_efficiency=0.74),
    "cpu": DeviceTraits(
        num_sms=1, tile_m=1.0, tile_n=1.0, gemm_efficiency=0.8, attention_batched=0.4,
        attention_flash1=0.4, attention_flash2=0.4, launch_s=5e-6,
    ),
}  # fmt: skip
ALIASES = {"h200": "h100", "h800": "h100", "b200": "h100", "a800": "a100", "frontier": "mi250x",
           "mi250": "mi250x", "frontera": "rtx5000", "quadro rtx 5000": "rtx5000"}  # fmt: skip


def traits_of(device_name: str, device_kind: str) -> DeviceTraits:
    """Traits of the family that the device's name mentions; else of the kind's usual device."""
    name = device_name.lower()
    for known, family in [*((key, key) for key in TRAITS), *ALIASES.items()]:
        if known in name:
            return TRAITS[family]
    return TRAITS["cpu" if device_kind == "cpu" else "a100"]


@dataclass(frozen=True, kw_only=True)
class Hardware:
    """One device and its links. FLOP/s, bytes/s, seconds and bytes."""

    peak_fp32: float
    peak_half: float
    memory_bytes_per_s: float
    memory_bytes: float
    devices_per_node: float
    intra_alpha_s: float
    intra_bytes_per_s: float
    inter_alpha_s: float
    inter_bytes_per_s: float
    traits: DeviceTraits
    is_cpu: bool = False
    ranks_per_core: float = 1.0
    """How many ranks share a core; the rates above are those of one rank while all are busy."""
    gemm_log_flops: tuple[float, ...] = ()
    """Doublings of the sizes of measured matrix products; empty where none were measured."""
    gemm_rates_fp32: tuple[float, ...] = ()
    """FLOP/s at those sizes."""
    gemm_rates_half: tuple[float, ...] = ()


def hardware_of(cluster: ClusterSpec) -> Hardware:
    """Read a cluster; a CPU without a stated peak counts 50 GFLOP/s a core."""
    is_cpu = cluster.device_kind == "cpu"
    fallback = CPU_FLOPS_PER_S_PER_CORE * cluster.threads_per_device if is_cpu else 15e12
    fp32 = cluster.peak_flops_per_s.get("fp32", fallback)
    curves = cluster.gemm_flops_per_s
    curve_half = curves.get("bf16") or curves.get("fp16") or ()
    half = max((cluster.peak_flops_per_s.get(name, 0.0) for name in ("bf16", "fp16")), default=0.0)
    return Hardware(
        peak_fp32=fp32,
        peak_half=half or 4.0 * fp32,
        memory_bytes_per_s=cluster.memory_bytes_per_s,
        memory_bytes=float(cluster.memory_bytes),
        devices_per_node=float(cluster.devices_per_node),
        intra_alpha_s=cluster.intra_node.alpha_s,
        intra_bytes_per_s=cluster.intra_node.bytes_per_s,
        inter_alpha_s=cluster.inter_node.alpha_s,
        inter_bytes_per_s=cluster.inter_node.bytes_per_s,
        traits=traits_of(cluster.device_name, cluster.device_kind),
        is_cpu=is_cpu,
        ranks_per_core=cluster.ranks_per_core,
        gemm_log_flops=tuple(math.log2(size) for size in cluster.gemm_flops),
        gemm_rates_fp32=tuple(curves.get("fp32", ())),
        gemm_rates_half=tuple(curve_half),
    )
