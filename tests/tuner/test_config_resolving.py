"""From a study file to the cluster that it means: described, limited, detected."""

from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from search_spaces.cluster_spec import ClusterSpec, LinkSpec
from tuner.config import detection, load_study_config, study_config_from
from tuner.config.resolving import described_cluster, load_resolved_config, with_devices
from tuner.config.sections import ClusterSection, LinkSection, StudyConfig
from tuner.errors import ConfigError


def tool(folder: Path, name: str, output: str) -> None:
    path = folder / name
    path.write_text(f"#!/bin/sh\ncat <<'END'\n{output}\nEND\n")
    path.chmod(0o755)


def test_a_described_cluster_is_in_si_units() -> None:
    section = ClusterSection(
        memory_gib=64,
        memory_gb_per_s=1600,
        peak_tflops={"bf16": 191.5},
        devices_per_node=8,
        num_nodes=2,
        inter_node=LinkSection(alpha_us=3, gb_per_s=25),
    )
    cluster = described_cluster(section)
    assert cluster.memory_bytes == 64 * 2**30
    assert cluster.memory_bytes_per_s == pytest.approx(1.6e12)
    assert cluster.peak_flops_per_s == {"bf16": pytest.approx(191.5e12)}
    assert cluster.inter_node == LinkSpec(alpha_s=3e-6, bytes_per_s=25e9)
    assert cluster.num_devices == 16


@given(st.integers(1, 16), st.integers(1, 64))
def test_devices_are_part_of_a_node_or_whole_nodes(per_node: int, devices: int) -> None:
    cluster = ClusterSpec(devices_per_node=per_node, num_nodes=3)
    if devices > per_node and devices % per_node:
        with pytest.raises(ConfigError, match=f"a node has {per_node}"):
            with_devices(cluster, devices)
    else:
        assert with_devices(cluster, devices).num_devices == devices
    assert with_devices(cluster, None) == cluster


@given(st.integers(1, 256), st.integers(2**28, 2**42), st.none() | st.integers(1, 64))
def test_cpu_ranks_share_cores_and_memory(cores: int, memory: int, devices: int | None) -> None:
    cluster = detection.cpu_machine(cores, memory, devices)
    assert cluster.num_devices == (devices or cluster.num_devices)
    assert cluster.num_devices * cluster.memory_bytes <= memory
    assert cluster.num_devices * cluster.threads_per_device <= max(cores, cluster.num_devices)
    if devices is None:
        assert 2 <= cluster.num_devices <= max(2, cores)


def test_gpus_are_detected_where_torch_can_drive_them(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    tool(tmp_path, "nvidia-smi", "NVIDIA H200, 143771\nNVIDIA H200, 143771")
    monkeypatch.setenv("PATH", f"{tmp_path}:/usr/bin:/bin")
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)
    monkeypatch.setattr(detection, "torch_is_built_for", lambda kind: kind == "cuda")
    cluster = detection.detect_cluster()
    assert (cluster.device_kind, cluster.device_name) == ("cuda", "NVIDIA H200")
    assert (cluster.num_devices, cluster.memory_bytes) == (2, 143771 * 2**20)
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "1")
    assert detection.detect_cluster().num_devices == 1
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "")
    assert detection.detect_cluster().device_kind == "cpu"
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES")
    monkeypatch.setattr(detection, "torch_is_built_for", lambda kind: False)
    assert detection.detect_cluster().device_kind == "cpu"


def test_amd_gpus_are_detected(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    card = '{"Card Series": "AMD Instinct MI250X", "VRAM Total Memory (B)": "68702699520"}'
    tool(tmp_path, "rocm-smi", f'{{"card0": {card}, "card1": {card}, "system": {{}}}}')
    monkeypatch.setenv("PATH", f"{tmp_path}:/usr/bin:/bin")
    for variable in ("HIP", "ROCR", "CUDA"):
        monkeypatch.delenv(f"{variable}_VISIBLE_DEVICES", raising=False)
    assert detection.amd_devices() == [("AMD Instinct MI250X", 68702699520)] * 2
    tool(tmp_path, "rocm-smi", "no json")
    assert detection.amd_devices() == []


@pytest.mark.parametrize(
    ("build", "kind", "expected"),
    [
        ("2.13.0+cpu", "cuda", False),
        ("2.13.0", "cuda", True),
        ("2.13.0+cu130", "cuda", True),
        ("2.13.0+rocm7.1", "cuda", False),
        ("2.13.0+rocm7.1", "rocm", True),
        ("2.13.0", "rocm", False),
    ],
)
def test_what_torch_was_built_for_is_read_from_its_version(
    monkeypatch: pytest.MonkeyPatch, build: str, kind: str, expected: bool
) -> None:
    monkeypatch.setattr(detection, "version", lambda name: build)
    assert detection.torch_is_built_for(kind) is expected


def test_trials_write_beside_a_database_file() -> None:
    def folder(url: str) -> Path:
        return load_study_config(model="x", store=url).run_folder()

    assert folder("sqlite:////data/runs/r.db") == Path("/data/runs")
    assert folder("sqlite:///runs/r.db?timeout=3") == Path("runs")
    for url in ("postgresql://host/db", "sqlite:///:memory:", "sqlite://"):
        assert folder(url) == Path("tuner_runs")


def test_a_stored_study_is_read_back_into_the_store_it_came_from() -> None:
    config = load_study_config(model="gpt2-124m", store="sqlite:///old.db", max_trials=3)
    again: StudyConfig = load_resolved_config(config.to_toml(), store_url="sqlite:///new.db")
    assert again.store.url == "sqlite:///new.db"
    assert again.config_hash() == config.config_hash()
    with pytest.raises(ConfigError, match="the stored study"):
        load_resolved_config("[model]\nsource = 'x'\n[future]\nkey = 1")


def test_threads_and_devices_of_the_study_reach_the_cluster() -> None:
    pytest.importorskip("search_spaces.cluster_io")
    from tuner.config import resolve_cluster

    document = {"model": {"source": "x"}, "cluster": {"devices": 4}, "launcher": {}}
    document["launcher"] = {"threads_per_rank": 3}
    cluster = resolve_cluster(study_config_from(document))
    assert (cluster.num_devices, cluster.threads_per_device) == (4, 3)
