"""Whole studies of `tuner run` whose trials are other people's trainers, and their leaderboards."""

import json
import os
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from tuner.cli import main
from tuner.testing.processes import left_after, processes_in

ROOT = Path(__file__).parents[3]
EXAMPLES = ROOT / "examples" / "adapters"
FAKE = ROOT / "tests" / "fixtures" / "adapters" / "fake_megatron"
# Few and short trials; confirmation is other tests' business.
SHORT = ["search.confirm_top=0", "search.check_drift=false", "search.early_stop=false"]

Study = Callable[..., dict[str, Any]]


@pytest.fixture
def study(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> Iterator[Study]:
    """Runs a study in an empty folder, in which nothing may run at the end; gives its ranking."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr("tuner.study.measured_peaks", lambda cluster, dtypes: {"fp32": 1e12})
    # The examples find our package where the tests do, wherever it is installed.
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join([str(ROOT), os.environ.get("PYTHONPATH", "")]))

    def run(file: Path, *settings: str) -> dict[str, Any]:
        options = [part for setting in (*SHORT, *settings) for part in ("--set", setting)]
        place = ["--store", str(tmp_path / "s.db")]
        code = main(["run", str(file), *place, "--searcher", "grid", *options])
        said = capsys.readouterr()
        assert code == 0, said.err
        assert main(["rank", *place, "--all", "--json"]) == 0
        ranking: dict[str, Any] = json.loads(capsys.readouterr().out)
        return ranking

    yield run
    others = [process for process in processes_in(tmp_path) if process.pid != os.getpid()]
    assert left_after(others, 5.0) == []


def test_a_trainer_that_overstates_its_batch_does_not_lead(study: Study) -> None:
    """From micro-batch 4 on it runs half of its accumulation, and so takes half the time."""
    ranking = study(FAKE / "study.toml")
    assert [row["knobs"]["micro_batch_size"] for row in ranking["leaderboard"]] == [2, 1]
    times_s = [row["step_time_s"] for row in ranking["leaderboard"]]
    assert times_s == pytest.approx([0.036, 0.052])
    lost = ranking["without_a_number"]
    assert sorted(row["knobs"]["micro_batch_size"] for row in lost) == [4, 8]
    for row in lost:
        assert (row["status"], row["kind"]) == ("failed", "implausible")
        assert "says 8 sequences per step" in row["message"]
        assert "means 16" in row["message"]


@pytest.mark.distributed
def test_a_script_with_three_lines_is_tuned(study: Study) -> None:
    """A plain DDP script on two ranks under torchrun."""
    ranking = study(
        EXAMPLES / "ddp_script" / "study.toml", "space.zero_stage=0", "space.micro_batch_size=4",
        "measure.measured_steps=4",
    )  # fmt: skip
    assert ranking["without_a_number"] == []
    (row,) = ranking["leaderboard"]
    assert row["knobs"]["micro_batch_size"] == 4
    assert row["tokens_per_s"] == pytest.approx(8 * 64 / row["step_time_s"])
    assert row["peak_memory_bytes"] > 50 << 20


@pytest.mark.slow
@pytest.mark.distributed
def test_a_script_with_fsdp_is_tuned(study: Study) -> None:
    ranking = study(EXAMPLES / "ddp_script" / "study.toml")
    assert ranking["without_a_number"] == []
    assert len(ranking["leaderboard"]) == 6


@pytest.mark.slow
@pytest.mark.distributed
def test_a_script_with_the_hugging_face_trainer_is_tuned(study: Study) -> None:
    pytest.importorskip("accelerate")
    ranking = study(
        EXAMPLES / "hf_trainer" / "study.toml", "space.micro_batch_size=[2,4]",
        "space.recompute=none", "space.dp=2", "space.use_all_devices=true",
    )  # fmt: skip
    assert ranking["without_a_number"] == []
    assert sorted(row["knobs"]["micro_batch_size"] for row in ranking["leaderboard"]) == [2, 4]
    assert all(row["peak_memory_bytes"] > 50 << 20 for row in ranking["leaderboard"])
