"""Cluster files: presets, human units, round trips and errors that name the key."""

from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from search_spaces.cluster_io import (
    cluster_preset_names,
    dump_cluster_spec,
    load_cluster_spec,
    parse_cluster_spec,
)
from search_spaces.cluster_spec import ClusterSpec, LinkSpec
from search_spaces.errors import ClusterSpecError


def test_presets() -> None:
    assert {
        "frontier", "frontera-rtx5000", "dgx-a100-40", "dgx-a100-80", "dgx-h100", "h200", "laptop",
    } <= set(cluster_preset_names())  # fmt: skip
    for name in cluster_preset_names():
        assert load_cluster_spec(name).name == name
    frontier = load_cluster_spec("frontier")
    assert frontier.devices_per_node == 8
    assert frontier.memory_bytes == 64 * 2**30
    assert frontier.peak_flops_per_s["fp16"] == pytest.approx(191.5e12)
    assert frontier.memory_bytes_per_s == pytest.approx(1.6e12)


def test_human_units_become_si() -> None:
    spec = parse_cluster_spec(
        {
            "memory_gib": 1.5, "memory_gb_per_s": 10, "peak_tflops": {"bf16": 2},
            "intra_node": {"alpha_us": 5, "gb_per_s": 3},
        },
        "here",
    )  # fmt: skip
    assert spec.memory_bytes == 3 * 2**29
    assert spec.memory_bytes_per_s == 1e10
    assert spec.peak_flops_per_s == {"bf16": 2e12}
    assert spec.intra_node == LinkSpec(alpha_s=5e-6, bytes_per_s=3e9)
    assert spec.inter_node == ClusterSpec().inter_node


sizes = st.floats(1e-3, 1e6, allow_nan=False)
links = st.builds(LinkSpec, alpha_s=st.floats(0, 1), bytes_per_s=sizes)
clusters = st.builds(
    ClusterSpec, name=st.text(max_size=8), device_kind=st.sampled_from(["cpu", "cuda", "rocm"]),
    device_name=st.text(max_size=8), num_nodes=st.integers(1, 9999),
    devices_per_node=st.integers(1, 16), memory_bytes=st.integers(2**20, 2**40),
    memory_bytes_per_s=sizes,
    peak_flops_per_s=st.dictionaries(st.sampled_from(["fp32", "bf16", "fp16"]), sizes),
    threads_per_device=st.integers(1, 64), ranks_per_core=st.floats(1, 64),
    intra_node=links, inter_node=links,
    nics_per_node=st.integers(1, 8), price_per_device_hour=st.none() | st.floats(0, 100),
)  # fmt: skip


@settings(max_examples=100, deadline=None)
@given(clusters)
def test_dumped_clusters_read_back(
    tmp_path_factory: pytest.TempPathFactory, cluster: ClusterSpec
) -> None:
    path = tmp_path_factory.mktemp("clusters") / "one.toml"
    path.write_text(dump_cluster_spec(cluster), encoding="utf-8", newline="\n")
    read = load_cluster_spec(str(path))
    assert read.memory_bytes == cluster.memory_bytes
    flat, expected = _floats(read), _floats(cluster)
    assert flat.keys() == expected.keys()
    for key, value in expected.items():
        assert flat[key] == (pytest.approx(value, rel=1e-12) if isinstance(value, float) else value)


def _floats(cluster: ClusterSpec) -> dict[str, Any]:
    fields = cluster.model_dump()
    for table in ("intra_node", "inter_node", "peak_flops_per_s"):
        fields |= {f"{table}.{key}": value for key, value in fields.pop(table).items()}
    return fields


@pytest.mark.parametrize(
    ("text", "match"),
    [
        ("memory_gb = 3", "unknown key memory_gb .*did you mean memory_gib"),
        ("intra_node = { alpha_us = 1, gbps = 1 }", "unknown key intra_node.gbps .*keys: alpha_us"),
        ("intra_node = { alpha_us = 1 }", "lacks the key intra_node.gb_per_s"),
        ("peak_tflops = { int8 = 1.0 }", "peak_tflops.int8"),
        ("num_nodes = 0", "num_nodes is 0"),
        ('num_nodes = "2"', "num_nodes is '2'"),
        ("memory_gib = 0", "memory_gib is 0"),
        ('device_kind = "tpu"', "device_kind is 'tpu'.*'cpu', 'cuda' or 'rocm'"),
        ("memory_gib = inf", "memory_gib is inf"),
        ("num_nodes =", "is not TOML"),
    ],
)
def test_bad_files_name_the_key(tmp_path: Path, text: str, match: str) -> None:
    path = tmp_path / "c.toml"
    path.write_text(text)
    with pytest.raises(ClusterSpecError, match=match):
        load_cluster_spec(str(path))


def test_unknown_sources() -> None:
    with pytest.raises(ClusterSpecError, match=r"did you mean dgx-h100.*presets: dgx-a100-40"):
        load_cluster_spec("dgx-h10")
    with pytest.raises(ClusterSpecError, match=r"cluster file 'no/such\.toml' does not exist"):
        load_cluster_spec("no/such.toml")


def test_a_file_is_named_by_itself(tmp_path: Path) -> None:
    (tmp_path / "ours.toml").write_text("num_nodes = 2")
    assert load_cluster_spec(str(tmp_path / "ours.toml")).name == "ours"
