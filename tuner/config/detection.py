"""The machine at hand as a `ClusterSpec`: GPUs that torch can use, else shares of the CPU.

Nothing here imports torch: the vendors' own tools are asked, and torch's version says what it was
built for.
"""

import json
import os
import subprocess
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

import psutil

from search_spaces.cluster_spec import ClusterSpec, DeviceKind

# The tuner's own processes and the page cache of a CPU machine need the rest.
_USABLE_MEMORY = 0.85
_MOST_CPU_RANKS = 8
_TOOL_TIMEOUT_S = 20.0
_CGROUP_LIMITS = ("/sys/fs/cgroup/memory.max", "/sys/fs/cgroup/memory/memory.limit_in_bytes")


def detect_cluster(devices: int | None = None, threads: int | None = None) -> ClusterSpec:
    """This machine; `devices` and `threads` per rank replace what would be chosen."""
    for kind, found in (("cuda", nvidia_devices()), ("rocm", amd_devices())):
        if found and torch_is_built_for(kind):
            return _gpu_machine("cuda" if kind == "cuda" else "rocm", found, devices)
    return cpu_machine(usable_cores(), usable_memory_bytes(), devices, threads)


def cpu_machine(
    cores: int, memory_bytes: int, devices: int | None = None, threads: int | None = None
) -> ClusterSpec:
    """Ranks that split a CPU: by default a power of two of them, at least 2, at most one a core."""
    if devices is None:
        devices = min(_MOST_CPU_RANKS, max(2, 2 ** (cores.bit_length() - 1)))
    return ClusterSpec(
        devices_per_node=devices,
        memory_bytes=max(1, int(memory_bytes * _USABLE_MEMORY) // devices),
        threads_per_device=threads or max(1, cores // devices),
    )


def _gpu_machine(
    kind: DeviceKind, found: list[tuple[str, int]], devices: int | None
) -> ClusterSpec:
    name, _ = found[0]
    return ClusterSpec(
        device_kind=kind,
        device_name=name,
        devices_per_node=devices or len(found),
        memory_bytes=min(memory for _, memory in found),
        threads_per_device=max(1, usable_cores() // len(found)),
    )


def usable_cores() -> int:
    """Cores that this process may run on."""
    if hasattr(os, "sched_getaffinity"):
        return len(os.sched_getaffinity(0))
    return os.cpu_count() or 1


def usable_memory_bytes() -> int:
    """Memory of the machine, or of the container where that is less."""
    limits = [psutil.virtual_memory().total]
    for path in map(Path, _CGROUP_LIMITS):
        try:
            limits.append(int(path.read_text()))
        except (OSError, ValueError):  # absent, or the word "max"
            continue
    return min(limits)


def torch_is_built_for(kind: str) -> bool:
    """Whether the installed torch can drive such devices, judged by its version (`2.13.0+cpu`)."""
    try:
        build = version("torch").partition("+")[2]
    except PackageNotFoundError:
        return False
    if kind == "rocm":
        return build.startswith("rocm")
    return not build.startswith(("cpu", "rocm", "xpu"))  # the plain wheel for Linux is CUDA's


def nvidia_devices() -> list[tuple[str, int]]:
    """Name and memory in bytes of each NVIDIA GPU that this process may use."""
    text = _output_of(
        "nvidia-smi", "--query-gpu=name,memory.total", "--format=csv,noheader,nounits"
    )
    found = [line.rpartition(",") for line in text.splitlines() if "," in line]
    devices = [
        (name.strip(), int(mib) * 2**20) for name, _, mib in found if mib.strip().isdecimal()
    ]
    return _visible(devices, "CUDA_VISIBLE_DEVICES")


def amd_devices() -> list[tuple[str, int]]:
    """Name and memory in bytes of each AMD GPU (a GCD is one) that this process may use."""
    text = _output_of("rocm-smi", "--showproductname", "--showmeminfo", "vram", "--json")
    try:
        cards: dict[str, dict[str, Any]] = json.loads(text)
        devices = [
            (str(card.get("Card Series", "AMD GPU")), int(card["VRAM Total Memory (B)"]))
            for name, card in sorted(cards.items())
            if name.startswith("card")
        ]
    except (ValueError, KeyError, AttributeError):
        return []
    return _visible(devices, "HIP_VISIBLE_DEVICES", "ROCR_VISIBLE_DEVICES", "CUDA_VISIBLE_DEVICES")


def _visible(devices: list[tuple[str, int]], *variables: str) -> list[tuple[str, int]]:
    """The devices that the first of `variables` that is set leaves."""
    for variable in variables:
        if (text := os.environ.get(variable)) is not None:
            wanted = [item for item in text.split(",") if item.strip() not in ("", "-1")]
            return devices[: len(wanted)]
    return devices


def _output_of(*command: str) -> str:
    """What a vendor's tool prints; nothing where it is absent, fails or hangs."""
    try:
        done = subprocess.run(  # noqa: S603 -- fixed commands, no shell
            command, capture_output=True, text=True, timeout=_TOOL_TIMEOUT_S, check=True
        )
    except (OSError, subprocess.SubprocessError):
        return ""
    return done.stdout
