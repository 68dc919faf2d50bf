"""The Python examples run as they stand, and say what they promise."""

import runpy
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
def test_ray_tune_search(
    capsys: pytest.CaptureFixture[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    import ray

    monkeypatch.setenv("RAY_AIR_LOCAL_CACHE_DIR", str(tmp_path / "cache"))
    monkeypatch.setenv("HOME", str(tmp_path))
    ray.init(num_cpus=1, include_dashboard=False, configure_logging=False, log_to_driver=False)
    try:
        play("ray_tune_search.py")
    finally:
        ray.shutdown()
    assert "dp" in capsys.readouterr().out.splitlines()[-1]
