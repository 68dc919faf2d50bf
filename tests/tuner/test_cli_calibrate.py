"""`tuner calibrate` measures and writes a cluster file that `tuner plan` reads."""

import json

import pytest
from click.testing import CliRunner

from search_spaces.cluster_io import load_cluster_spec
from search_spaces.cost_models.analytic import AnalyticCostModel
from search_spaces.model_io import load_model_spec
from search_spaces.parallel_config import ParallelConfig
from search_spaces.training_spec import TrainingSpec
from tuner.cli import calibrate as module

REPORT = {
    "peak_flops_per_s": {"fp32": 5e10, "bf16": 1e11},
    "gemm_curve": {"fp32": [{"rows": 64, "inner": 1024, "columns": 1024, "flops_per_s": 2e10}]},
    "memory_bytes_per_s": 8e9,
    "host_forward_s": 2e-4,
    "host_backward_s": 3e-4,
    "links": {
        "all_reduce_2": {"alpha_s": 1e-4, "bytes_per_s": 1.5e9},
        "message": {"alpha_s": 5e-5, "bytes_per_s": 2e9},
    },
}


def test_the_measured_rates_reach_the_file(tmp_path, monkeypatch):
    monkeypatch.setattr(module, "_measure", lambda cluster: REPORT)
    path = tmp_path / "node.toml"
    arguments = ["--devices", "2", "--output", str(path), "--json"]
    result = CliRunner().invoke(module.calibrate, arguments, catch_exceptions=False)
    assert result.exit_code == 0
    assert json.loads(result.stdout)["measured"] == REPORT
    cluster = load_cluster_spec(str(path))
    assert cluster.devices_per_node == 2
    assert cluster.peak_flops_per_s == pytest.approx(REPORT["peak_flops_per_s"])
    assert cluster.memory_bytes_per_s == pytest.approx(8e9)
    assert cluster.intra_node.bytes_per_s == pytest.approx(1.5e9)
    assert cluster.host_forward_s == pytest.approx(2e-4)
    assert cluster.host_backward_s == pytest.approx(3e-4)
    assert cluster.gemm_flops == pytest.approx([2 * 64 * 1024**2])
    assert cluster.gemm_flops_per_s == {"fp32": pytest.approx([2e10])}


def test_the_plan_follows_what_was_measured(tmp_path, monkeypatch):
    """A machine measured to be slower gets slower predictions: by products, and by its host."""
    times = {}
    for name, rate, host_s in (("fast", 2e10, 1e-5), ("slow", 1e10, 1e-5), ("host", 2e10, 0.5)):
        curve = {"fp32": [{**REPORT["gemm_curve"]["fp32"][0], "flops_per_s": rate}]}
        report = {**REPORT, "gemm_curve": curve, "host_forward_s": host_s}
        monkeypatch.setattr(module, "_measure", lambda cluster, report=report: report)
        path = tmp_path / f"{name}.toml"
        CliRunner().invoke(module.calibrate, ["--devices", "2", "--output", str(path)])
        cluster = load_cluster_spec(str(path))
        model = load_model_spec("llama-mini")
        costs = AnalyticCostModel(model, TrainingSpec(global_batch_size=8), cluster)
        times[name] = costs.estimate(ParallelConfig(dp=2)).parts_s
    assert times["slow"]["compute"] > 1.5 * times["fast"]["compute"]
    assert times["host"]["host"] > 10 * times["fast"]["host"]


def test_a_file_is_not_replaced_unasked(tmp_path, monkeypatch):
    monkeypatch.setattr(module, "_measure", lambda cluster: REPORT)
    path = tmp_path / "node.toml"
    path.write_text("mine")
    arguments = ["--devices", "1", "--output", str(path)]
    result = CliRunner().invoke(module.calibrate, arguments)
    assert "exists" in str(result.exception)
    assert path.read_text() == "mine"
    assert CliRunner().invoke(module.calibrate, [*arguments, "--force"]).exit_code == 0
    assert "memory_gb_per_s" in path.read_text()


@pytest.mark.slow
@pytest.mark.distributed
@pytest.mark.timeout(400)
def test_two_ranks_are_really_measured(tmp_path):
    path = tmp_path / "node.toml"
    arguments = ["--devices", "2", "--output", str(path), "--json"]
    result = CliRunner().invoke(module.calibrate, arguments, catch_exceptions=False)
    report = json.loads(result.stdout)["measured"]
    assert report["peak_flops_per_s"]["fp32"] > 1e8
    assert report["memory_bytes_per_s"] > 1e8
    assert report["links"]["all_reduce_2"]["bytes_per_s"] > 1e6
    assert 0 < report["host_forward_s"] < 1
    assert len(report["gemm_curve"]["fp32"]) > 3
    assert load_cluster_spec(str(path)).num_devices == 2
