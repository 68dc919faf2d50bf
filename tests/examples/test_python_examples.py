"""The Python examples run as they stand, and say what they promise."""

import os
import runpy
import subprocess
import sys
import warnings
from pathlib import Path

import pytest

FOLDER = Path(__file__).parents[2] / "examples" / "python"


def play(name: str) -> None:
    runpy.run_path(str(FOLDER / name), run_name="__main__")


@pytest.fixture(autouse=True)
def _elsewhere(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)


def test_every_example_is_tested() -> None:
    tested = {"quick_start", "objective_and_constraint", "optuna_search", "ray_tune_search"}
    assert {path.stem for path in FOLDER.glob("*.py")} == tested


def test_quick_start(capsys: pytest.CaptureFixture[str]) -> None:
    play("quick_start.py")
    out = capsys.readouterr().out
    assert "x the baseline" in out
    assert "zero_stage" in out
    assert "<Study 'quick-start': completed" in out


def test_objective_and_constraint(capsys: pytest.CaptureFixture[str]) -> None:
    play("objective_and_constraint.py")
    out = capsys.readouterr().out
    assert out.count("tokens/$") == 3
    assert "legal points are left out by our_racks" in out


def test_optuna_search(capsys: pytest.CaptureFixture[str]) -> None:
    import optuna

    optuna.logging.set_verbosity(optuna.logging.ERROR)
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", category=optuna.exceptions.ExperimentalWarning)
        play("optuna_search.py")
    assert "best of the stored study" in capsys.readouterr().out


@pytest.mark.slow
@pytest.mark.ray
def test_ray_tune_search_finds_the_fastest(tmp_path: Path) -> None:
    """A real run of Tune, in a process of its own as its Ray is."""
    import tuner

    done = subprocess.run(
        [sys.executable, str(FOLDER / "ray_tune_search.py")],
        env={**os.environ, "HOME": str(tmp_path), "RAY_USAGE_STATS_ENABLED": "0"},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    points = tuner.candidates(
        "gpt2-124m",
        cluster="dgx-a100-80",
        devices=8,
        training={"dtype": "bf16"},
        space={"zero_stage": [0, 1]},
    )
    fastest = min(point.step_time_s or 1.0 for point in points)
    found = float(done.stdout.split()[-1])
    # the cost model is right here, so that the search must come at once to its favourite
    assert found == pytest.approx(8 * 1024 / fastest, rel=0.02)
