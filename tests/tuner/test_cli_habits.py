"""Habits of the command line: where files are found, what completion offers, what NO_COLOR does."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

from tuner.cli import main
from tuner.config import find_study_file, load_study_config

STUDY = '[model]\nsource = "gpt2-tiny"\n[search]\nmax_trials = 3\n'


@pytest.fixture
def project(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A repository with a study file at its root, seen from a folder deep inside."""
    monkeypatch.delenv("TUNER_STORE", raising=False)
    root = tmp_path / "project"
    (root / "src" / "deep").mkdir(parents=True)
    (root / ".git").mkdir()
    (root / "tuner.toml").write_text(STUDY)
    monkeypatch.chdir(root / "src" / "deep")
    return root


def test_a_study_file_is_found_in_a_folder_above(project: Path) -> None:
    found = find_study_file(Path())
    assert found == Path("../../tuner.toml")
    (project / "src" / "study.toml").write_text(STUDY)
    assert find_study_file(Path()) == Path("../study.toml")
    Path("tuner.toml").write_text(STUDY)
    assert find_study_file(Path()) == Path("tuner.toml")


def test_the_way_up_ends_at_the_repository_and_at_home(
    project: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (project / "tuner.toml").rename(project.parent / "tuner.toml")
    assert find_study_file(Path()) is None
    (project / ".git").rmdir()
    assert find_study_file(Path()) == Path("../../../tuner.toml")
    monkeypatch.setattr(Path, "home", lambda: project)
    assert find_study_file(Path()) is None


def test_files_of_others_above_are_left_alone(
    project: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(os, "getuid", lambda: 4_000_000)
    assert find_study_file(Path()) is None
    Path("tuner.toml").write_text(STUDY)
    assert find_study_file(Path()) == Path("tuner.toml")  # this folder is the user's own choice


def test_commands_below_mean_the_same_database(
    project: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    options = ("--launcher", "simulated", "--searcher", "random", "--name", "s", "--plain")
    cluster = ("--set", "cluster.preset=dgx-a100-80", "--devices", "2")
    assert main(["run", *options, *cluster]) == 0
    assert "using ../../tuner.toml" in capsys.readouterr().err
    assert (project / "tuner_runs" / "results.db").exists()
    assert not Path("tuner_runs").exists()
    monkeypatch.chdir(project / "src")
    assert main(["rank", "--csv"]) == 0
    assert ",s," in capsys.readouterr().out
    monkeypatch.setenv("TUNER_STORE", "elsewhere.db")
    assert main(["rank"]) == 5
    assert "elsewhere.db" in capsys.readouterr().err
    assert main(["rank", "z", "--store", "../tuner_runs/results.db"]) == 2


def test_a_misspelt_study_names_the_nearest(
    project: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    options = ("--launcher", "simulated", "--searcher", "random", "--name", "nightly", "--plain")
    assert main(["run", *options, "--set", "cluster.preset=dgx-a100-80", "--devices", "2"]) == 0
    capsys.readouterr()
    assert main(["rank", "nigthly"]) == 2
    assert "did you mean 'nightly'?" in capsys.readouterr().err


def test_an_explicit_file_keeps_the_default_database(project: Path) -> None:
    config = load_study_config(Path("../../tuner.toml"))
    assert config.store.url == "sqlite:///tuner_runs/results.db"


def complete(words: str, index: int, cwd: Path) -> list[str]:
    done = subprocess.run(
        [sys.executable, "-c", "import sys; from tuner.cli import main; sys.exit(main())"],
        cwd=cwd,
        env={
            "COMP_WORDS": words,
            "COMP_CWORD": str(index),
            "_TUNER_COMPLETE": "bash_complete",
            "PATH": "/usr/bin",
            "HOME": str(cwd),
        },
        capture_output=True,
        text=True,
        check=True,
    )
    assert done.stderr == ""
    return done.stdout.split()


def test_completion_offers_stored_studies_and_files(project: Path) -> None:
    options = ("--launcher", "simulated", "--searcher", "random", "--name", "nightly", "--plain")
    assert main(["run", *options, "--set", "cluster.preset=dgx-a100-80", "--devices", "2"]) == 0
    assert "plain,nightly" in complete("tuner rank ni", 2, project)
    assert "plain,nightly" in complete("tuner show 1 --study ", 4, project)
    assert complete("tuner run stu", 2, project) == ["file,stu"]
    # a database that is not there offers nothing, and says nothing
    assert complete("tuner rank --store no.db x", 4, project) == ["file,x"]


@pytest.mark.parametrize("variable", ["NO_COLOR", "TERM"])
def test_no_colour_and_nothing_redrawn(
    project: Path, variable: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    from tuner.cli.output import console, is_live

    class Terminal:
        def isatty(self) -> bool:
            return True

        def write(self, text: str) -> int:
            written.append(text)
            return len(text)

        def flush(self) -> None:
            return None

    written: list[str] = []
    for name in ("NO_COLOR", "FORCE_COLOR", "TERM"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("TERM", "xterm")
    terminal = Terminal()
    assert is_live(terminal)  # type: ignore[arg-type]
    monkeypatch.setenv(variable, "dumb" if variable == "TERM" else "1")
    assert not is_live(terminal)  # type: ignore[arg-type]
    console(terminal).print("a", style="red")  # type: ignore[arg-type]
    assert "\x1b[31" not in "".join(written)
