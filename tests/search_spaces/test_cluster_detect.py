"""Detection obeys affinity, control groups and visible devices; nothing here needs a GPU."""

import os
import stat
from pathlib import Path

import pytest

from search_spaces import cluster_detect
from search_spaces.cluster_detect import (
    detect_local_cluster,
    usable_cores,
    usable_memory_bytes,
)
from search_spaces.errors import ClusterSpecError

GIB = 2**30


def put(root: Path, files: dict[str, str]) -> Path:
    for name, text in files.items():
        path = root / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    return root


def meminfo(gib: int) -> str:
    return f"MemTotal: 99999999 kB\nMemAvailable:   {gib * 2**20} kB\n"


@pytest.fixture
def no_gpu(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(cluster_detect, "_output", lambda *_: "")


def test_this_machine() -> None:
    cluster = detect_local_cluster(device_kind="cpu")
    assert cluster.device_kind == "cpu"
    assert cluster.name == "local"
    assert cluster.num_nodes == 1
    assert 2 <= cluster.num_devices <= 8
    assert cluster.memory_bytes >= 2**20
    assert cluster.peak_flops_per_s == {}


@pytest.mark.usefixtures("no_gpu")
@pytest.mark.parametrize(
    ("cores", "devices", "threads"), [(1, 2, 1), (2, 2, 1), (6, 4, 1), (64, 8, 8)]
)
def test_ranks_of_a_cpu(
    monkeypatch: pytest.MonkeyPatch, cores: int, devices: int, threads: int
) -> None:
    monkeypatch.setattr(cluster_detect, "usable_cores", lambda: cores)
    monkeypatch.setattr(cluster_detect, "usable_memory_bytes", lambda: 64 * GIB)
    cluster = detect_local_cluster()
    assert (cluster.num_devices, cluster.threads_per_device) == (devices, threads)
    assert cluster.memory_bytes == 64 * GIB // devices
    assert cluster.ranks_per_core == max(1.0, devices / cores)
    three = detect_local_cluster(3)
    assert three.ranks_per_core == max(1.0, 3 / cores)
    # collectives of ranks that wait for a core take long
    assert (three.intra_node.alpha_s > 1e-3) is (cores < 3)
    assert (three.num_devices, three.memory_bytes) == (3, 64 * GIB // 3)


def test_groups_of_version_2(tmp_path: Path) -> None:
    root = put(
        tmp_path,
        {
            "proc/self/cgroup": "0::/jobs/one\n",
            "proc/meminfo": meminfo(100),
            "sys/fs/cgroup/jobs/one/memory.max": "max\n",
            "sys/fs/cgroup/jobs/memory.max": str(12 * GIB),
            "sys/fs/cgroup/jobs/memory.current": str(2 * GIB),
            "sys/fs/cgroup/jobs/one/cpu.max": "150000 100000\n",
            "sys/fs/cgroup/jobs/cpu.max": "max 100000\n",
        },
    )
    assert usable_memory_bytes(root) == 10 * GIB
    assert usable_cores(root) == 1


def test_groups_of_version_1(tmp_path: Path) -> None:
    root = put(
        tmp_path,
        {
            "proc/self/cgroup": "5:memory:/job\n4:cpu,cpuacct:/job\n",
            "proc/meminfo": meminfo(100),
            "sys/fs/cgroup/memory/job/memory.limit_in_bytes": str(4 * GIB),
            "sys/fs/cgroup/memory/job/memory.usage_in_bytes": str(GIB),
            "sys/fs/cgroup/memory/memory.limit_in_bytes": "9223372036854771712",
            "sys/fs/cgroup/cpu/job/cpu.cfs_quota_us": "100000",
            "sys/fs/cgroup/cpu/job/cpu.cfs_period_us": "100000",
        },
    )
    assert usable_memory_bytes(root) == 3 * GIB
    assert usable_cores(root) == 1


def test_without_limits_or_proc(tmp_path: Path) -> None:
    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count()
    assert usable_cores(tmp_path) == cores
    assert usable_memory_bytes(tmp_path) == 8 * GIB
    put(tmp_path, {"proc/self/cgroup": "garbage\n", "proc/meminfo": meminfo(7)})
    assert usable_memory_bytes(tmp_path) == 7 * GIB
    unlimited = {"proc/self/cgroup": "1:cpu:/\n", "sys/fs/cgroup/cpu/cpu.cfs_quota_us": "-1",
                 "sys/fs/cgroup/cpu/cpu.cfs_period_us": "100000"}  # fmt: skip
    assert usable_cores(put(tmp_path, unlimited)) == cores


def fake_tool(folder: Path, name: str, output: str, code: int = 0) -> None:
    tool = folder / name
    tool.write_text(f"#!/bin/sh\ncat <<'END'\n{output}\nEND\nexit {code}\n")
    tool.chmod(tool.stat().st_mode | stat.S_IXUSR)


@pytest.fixture
def tools(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("PATH", f"{tmp_path}:/bin:/usr/bin")
    for name in ("CUDA_VISIBLE_DEVICES", "HIP_VISIBLE_DEVICES", "ROCR_VISIBLE_DEVICES"):
        monkeypatch.delenv(name, raising=False)
    return tmp_path


def test_nvidia_cards(tools: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    fake_tool(tools, "nvidia-smi", "\n".join(["NVIDIA H100 80GB HBM3, 81559"] * 4))
    cluster = detect_local_cluster()
    assert (cluster.device_kind, cluster.num_devices) == ("cuda", 4)
    assert cluster.memory_bytes == 81559 * 2**20
    assert cluster.peak_flops_per_s["bf16"] == pytest.approx(989.4e12)
    assert (cluster.name, cluster.num_nodes) == ("local", 1)
    assert detect_local_cluster(2).num_devices == 2
    with pytest.raises(ClusterSpecError, match="has 4 cuda devices, not 8"):
        detect_local_cluster(8)
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "2,3")
    assert detect_local_cluster().num_devices == 2
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "")
    assert detect_local_cluster().device_kind == "cpu"


@pytest.mark.parametrize(
    "name", ["NVIDIA H200 NVL", "NVIDIA RTX 5000 Ada Generation", "NVIDIA H100 PCIe"]
)
def test_other_products_get_no_peak(tools: Path, name: str) -> None:
    fake_tool(tools, "nvidia-smi", f"{name}, 100000")
    assert detect_local_cluster().peak_flops_per_s == {}


def test_amd_cards(tools: Path) -> None:
    card = '{"Card Series": "AMD INSTINCT MI250X", "VRAM Total Memory (B)": "68702699520"}'
    fake_tool(tools, "nvidia-smi", "failed", code=9)
    fake_tool(tools, "rocm-smi", f'{{"card0": {card}, "card1": {card}, "system": {{}}}}')
    cluster = detect_local_cluster()
    assert (cluster.device_kind, cluster.num_devices) == ("rocm", 2)
    assert cluster.memory_bytes == 68702699520
    assert cluster.peak_flops_per_s["fp16"] == pytest.approx(191.5e12)


@pytest.mark.usefixtures("no_gpu")
def test_a_kind_that_is_not_there() -> None:
    with pytest.raises(ClusterSpecError, match="no cuda device"):
        detect_local_cluster(device_kind="cuda")
    with pytest.raises(ClusterSpecError, match="cannot use 0 devices"):
        detect_local_cluster(0)
