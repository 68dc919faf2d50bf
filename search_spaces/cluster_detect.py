"""Finding out what this machine has, with the standard library alone.

Containers and batch systems allow less than the machine has: CPU affinity, control groups of
version 1 and 2, and `CUDA_VISIBLE_DEVICES` and its kin are obeyed.
"""

import json
import os
import platform
import shutil
import subprocess
from collections.abc import Iterator, Mapping
from pathlib import Path, PurePosixPath
from typing import Any, Final

from search_spaces.cluster_io import cluster_preset_names, load_cluster_spec
from search_spaces.cluster_spec import ClusterSpec, DeviceKind, LinkSpec
from search_spaces.errors import ClusterSpecError

_MOST_CPU_RANKS: Final = 8
_COMMAND_TIMEOUT_S: Final = 20.0
_MIB: Final = 2**20
_DEFAULT_MEMORY_BYTES: Final = 8 * 2**30
_CROWDED_LINK: Final = LinkSpec(alpha_s=2.5e-3, bytes_per_s=1e9)
"""Ranks that share cores wait for each other's time slices at every collective: some milliseconds,
as `tuner calibrate` finds with four ranks on two cores."""
_VAGUE: Final = frozenset({"nvidia", "amd", "instinct", "gcd", "sxm4"})
"""Words of a device's name that its driver may leave out."""
_OTHER_PRODUCTS: Final = frozenset({"nvl", "ada", "mig"})
"""Words that make another device of a known name."""
_UNLIMITED: Final = 1 << 60
"""Control groups of version 1 write "no limit" as a number near 2^63."""


def detect_local_cluster(
    devices: int | None = None, device_kind: DeviceKind | None = None
) -> ClusterSpec:
    """Describe this machine as a cluster of one node.

    Accelerators are taken where `nvidia-smi` or `rocm-smi` lists some, else the CPU's cores. A CPU
    is split into `devices` ranks: by default the largest power of two up to the usable cores and 8,
    and 2 at least, so that there is something to choose between. Peak FLOP/s of a CPU are left for
    a measurement.

    Args:
        devices: ranks on a CPU, or accelerators to use of those found.
        device_kind: look for this kind alone.

    Raises:
        ClusterSpecError: the machine has no device of that kind, or fewer than asked for.
    """
    if devices is not None and devices < 1:
        raise ClusterSpecError(f"cannot use {devices} devices", "give 1 or more")
    if device_kind != "cpu":
        found = _accelerators(device_kind)
        if found is not None:
            return _with_devices(found, devices)
        if device_kind is not None:
            raise ClusterSpecError(f"this machine has no {device_kind} device", "or use cpu")
    return _cpu_cluster(devices)


def usable_cores(root: Path = Path("/")) -> int:
    """Cores that this process may use: its affinity, or the quota of its control group if less."""
    affinity = getattr(os, "sched_getaffinity", None)
    cores = len(affinity(0)) if affinity else os.cpu_count() or 1
    quotas = [quota for group in _groups(root, "cpu") if (quota := _cpu_quota(group))]
    return max(1, min([cores, *(int(quota) for quota in quotas)]))


def usable_memory_bytes(root: Path = Path("/")) -> int:
    """Memory that this process may still take: what is free, or what its control group leaves."""
    available = _meminfo_bytes(root / "proc/meminfo")
    left = [
        max(0, limit - _number(group / used, 0))
        for name, used in (("memory.max", "memory.current"),
                           ("memory.limit_in_bytes", "memory.usage_in_bytes"))
        for group in _groups(root, "memory")
        if 0 < (limit := _number(group / name, 0)) < _UNLIMITED
    ]  # fmt: skip
    return max(_MIB, min([available, *left]))


def _cpu_cluster(devices: int | None) -> ClusterSpec:
    cores = usable_cores()
    if devices is None:
        devices = max(2, 1 << (min(cores, _MOST_CPU_RANKS).bit_length() - 1))
    crowd = max(1.0, devices / cores)
    return ClusterSpec(
        device_kind="cpu",
        device_name=_cpu_name(),
        devices_per_node=devices,
        memory_bytes=max(_MIB, usable_memory_bytes() // devices),
        threads_per_device=max(1, cores // devices),
        ranks_per_core=crowd,
        intra_node=_CROWDED_LINK if crowd > 1.0 else ClusterSpec().intra_node,
    )


def _cpu_name(root: Path = Path("/")) -> str:
    try:
        lines = (root / "proc/cpuinfo").read_text(errors="replace").splitlines()
    except OSError:
        lines = []
    for line in lines:
        key, _, value = line.partition(":")
        if key.strip() == "model name" and value.strip():
            return f"{value.strip()} (cpu)"
    return f"{platform.processor() or platform.machine() or 'unknown'} (cpu)"


def _meminfo_bytes(path: Path) -> int:
    """`MemAvailable`, or 8 GiB where the system does not say."""
    try:
        lines = path.read_text().splitlines()
    except OSError:
        return _DEFAULT_MEMORY_BYTES
    for line in lines:
        words = line.split()
        if len(words) >= 2 and words[0] == "MemAvailable:" and words[1].isdigit():
            return int(words[1]) * 1024
    return _DEFAULT_MEMORY_BYTES


def _groups(root: Path, controller: str) -> Iterator[Path]:
    """Folders of this process's control groups for a controller, from its own up to the root."""
    try:
        lines = (root / "proc/self/cgroup").read_text().splitlines()
    except OSError:
        return
    mount = root / "sys/fs/cgroup"
    for line in lines:
        number, _, rest = line.partition(":")
        names, _, group = rest.partition(":")
        if number == "0" and not names:
            base = mount
        elif controller in names.split(","):
            base = mount / controller
        else:
            continue
        path = PurePosixPath(group.lstrip("/"))
        yield from (base / parent for parent in (path, *path.parents))


def _cpu_quota(group: Path) -> float | None:
    """Cores that a control group may use; none without a limit."""
    try:
        quota, period = (group / "cpu.max").read_text().split()[:2]
    except (OSError, ValueError):
        quota = str(_number(group / "cpu.cfs_quota_us", 0))
        period = str(_number(group / "cpu.cfs_period_us", 0))
    if not (quota.isdigit() and period.isdigit()) or 0 in (int(quota), int(period)):
        return None
    return max(1.0, int(quota) / int(period))


def _number(path: Path, default: int) -> int:
    try:
        text = path.read_text().strip()
    except OSError:
        return default
    return int(text) if text.lstrip("-").isdigit() else default


def _accelerators(kind: DeviceKind | None) -> ClusterSpec | None:
    if kind != "rocm":
        cards = _nvidia_cards(os.environ)
        if cards:
            return _card_cluster("cuda", cards)
    if kind != "cuda":
        cards = _amd_cards(os.environ)
        if cards:
            return _card_cluster("rocm", cards)
    return None


def _with_devices(cluster: ClusterSpec, devices: int | None) -> ClusterSpec:
    if devices is None:
        return cluster
    if devices > cluster.num_devices:
        raise ClusterSpecError(
            f"this machine has {cluster.num_devices} {cluster.device_kind} devices, not {devices}"
        )
    return cluster.model_copy(update={"devices_per_node": devices})


def _card_cluster(kind: DeviceKind, cards: list[tuple[str, int]]) -> ClusterSpec:
    """Cards of the first one's model; what their presets know of them is filled in."""
    name, memory_bytes = cards[0]
    num_cards = sum(card[0] == name for card in cards)
    facts = {
        "name": "local",
        "device_kind": kind,
        "device_name": name,
        "num_nodes": 1,
        "devices_per_node": num_cards,
        "memory_bytes": memory_bytes,
        "threads_per_device": max(1, usable_cores() // num_cards),
    }
    known = _preset_of_device(name)
    return known.model_copy(update=facts) if known else ClusterSpec.model_validate(facts)


def _preset_of_device(name: str) -> ClusterSpec | None:
    """The preset whose device is the same product; its memory's size may differ."""
    words = _words(name)
    if words & _OTHER_PRODUCTS:
        return None
    presets = (load_cluster_spec(preset) for preset in cluster_preset_names())
    return next(
        (
            preset
            for preset in presets
            if preset.device_kind != "cpu" and _words(preset.device_name) - _VAGUE <= words
        ),
        None,
    )


def _words(name: str) -> set[str]:
    words = name.lower().replace("-", " ").replace("/", " ").split()
    return {word for word in words if not word.endswith("gb")}


def _visible(environment: Mapping[str, str], *names: str) -> int | None:
    """Devices that an environment variable leaves visible; none when it says nothing."""
    for name in names:
        if name in environment:
            listed = [item.strip() for item in environment[name].split(",")]
            return next(
                (place for place, item in enumerate(listed) if item in ("", "-1")), len(listed)
            )
    return None


def _nvidia_cards(environment: Mapping[str, str]) -> list[tuple[str, int]]:
    text = _output("nvidia-smi", "--query-gpu=name,memory.total", "--format=csv,noheader,nounits")
    cards = []
    for line in text.splitlines():
        name, _, mebibytes = line.rpartition(",")
        if name and mebibytes.strip().isdigit():
            cards.append((name.strip(), int(mebibytes) * _MIB))
    return cards[: _visible(environment, "CUDA_VISIBLE_DEVICES")]


def _amd_cards(environment: Mapping[str, str]) -> list[tuple[str, int]]:
    text = _output("rocm-smi", "--showproductname", "--showmeminfo", "vram", "--json")
    try:
        listed: Any = json.loads(text or "{}")
    except ValueError:
        return []
    cards = []
    for card in listed.values() if isinstance(listed, dict) else []:
        if not isinstance(card, dict):
            continue
        memory = str(card.get("VRAM Total Memory (B)", ""))
        if memory.isdigit():
            name = str(card.get("Card Series", card.get("Card series", "AMD GPU")))
            cards.append((name, int(memory)))
    return cards[: _visible(environment, "HIP_VISIBLE_DEVICES", "ROCR_VISIBLE_DEVICES")]


def _output(*command: str) -> str:
    """What a command prints; nothing when it is absent, fails or hangs."""
    program = shutil.which(command[0])
    if program is None:
        return ""
    try:
        done = subprocess.run(  # noqa: S603 -- a fixed command, no shell
            [program, *command[1:]],
            capture_output=True,
            text=True,
            timeout=_COMMAND_TIMEOUT_S,
            check=False,
        )
    except (OSError, subprocess.SubprocessError):
        return ""
    return done.stdout if done.returncode == 0 else ""
