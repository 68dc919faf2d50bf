"""Objectives and constraints named in a study file."""

from pathlib import Path

import pytest

from tuner.cli import main
from tuner.config import load_study_config
from tuner.custom import constraint_of, load_function, objective_of, reference_of
from tuner.errors import ConfigError

RULES = """
def small(config, setting):
    return "more than two stages" if config.pp > 2 else None

def frugal(trial):
    return trial.tokens_per_s / trial.peak_memory_bytes

WIDTH = 3
"""


@pytest.fixture
def study_file(tmp_path: Path) -> Path:
    (tmp_path / "rules.py").write_text(RULES)
    path = tmp_path / "study.toml"
    path.write_text(
        'name = "s"\n[model]\nsource = "gpt2-124m"\n[cluster]\npreset = "dgx-a100-80"\n'
        '[space]\nconstraint = "rules.py:small"\ncompile = false\ncp = 1\nrecompute = "none"\n'
        '[search]\nobjective = "rules.py:frugal"\nmax_trials = 4\nsearcher = "random"\n'
        "confirm_top = 0\ncheck_drift = false\n"
        f'[launcher]\nname = "simulated"\n[store]\nurl = "{tmp_path}/r.db"\n'
    )
    return path


def test_functions_are_found_beside_the_study_file(
    study_file: Path, monkeypatch: pytest.MonkeyPatch, tmp_path_factory: pytest.TempPathFactory
) -> None:
    monkeypatch.chdir(tmp_path_factory.mktemp("elsewhere"))
    config = load_study_config(study_file)
    constraint, objective = constraint_of(config), objective_of(config)
    assert constraint is not None
    assert constraint.name == "user:small"
    assert objective is not None
    assert objective.direction == "maximize"


def test_the_command_line_uses_them(study_file: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["why", "pp=4,dp=2", str(study_file)]) == 3
    assert "user:small: more than two stages" in capsys.readouterr().out
    assert main(["run", str(study_file), "--plain"]) == 0
    capsys.readouterr()
    store = ["--store", str(study_file.parent / "r.db")]
    sql = "SELECT rule, COUNT(*) FROM untried_points GROUP BY rule ORDER BY rule"
    assert main(["sql", sql, *store, "--csv"]) == 0
    rows = dict(line.split(",") for line in capsys.readouterr().out.split()[1:])
    assert int(rows["user:small"]) > 0
    assert main(["rank", "s", *store]) == 0
    shown = capsys.readouterr()
    assert "score" in shown.out
    assert "frugal" in shown.err
    scores = [line.split()[1] for line in shown.out.splitlines()[1:]]
    assert scores == sorted(scores, key=float, reverse=True)


@pytest.mark.parametrize(
    ("reference", "expected"),
    [
        ("rules", "should be a function"),
        ("rules.py:", "should be a function"),
        ("{}/rules.py:nobody", "has no attribute 'nobody'"),
        ("{}/rules.py:WIDTH", "is not a function"),
        ("{}/absent.py:f", "No such file"),
        ("no_such_module_here:f", "No module named"),
        ("__main__:f", "of the program that made the study"),
        ("tests:f.<locals>.<lambda>", "of the program that made the study"),
    ],
)
def test_what_cannot_be_loaded_is_one_sentence(
    study_file: Path, reference: str, expected: str
) -> None:
    with pytest.raises(ConfigError, match=expected):
        load_function(reference.format(study_file.parent), "search.objective")


def test_a_function_is_named_by_its_module() -> None:
    assert reference_of(load_function) == "tuner.custom:load_function"
    assert load_function(reference_of(load_function), "key") is load_function
