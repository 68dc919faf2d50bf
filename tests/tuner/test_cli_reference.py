"""The reference pages are those of the commands and keys that there are."""

import subprocess
import sys
from pathlib import Path

import click
import pytest

from tuner.cli import reference
from tuner.cli.group import tuner
from tuner.config import StudyConfig
from tuner.config.problems import sections_of
from tuner.registry import LAUNCHERS

ROOT = Path(__file__).parents[2]
IN_STEP = "run `python -m tuner.cli.reference` and commit what it writes"


def test_pages_are_in_step() -> None:
    # in a process of its own: click remembers the help option that a command was first used with
    command = [sys.executable, "-m", "tuner.cli.reference", "--check"]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
    assert done.returncode == 0, f"{done.stdout}{done.stderr}; {IN_STEP}"


def test_every_command_and_key_is_on_its_page() -> None:
    commands = reference.cli_page()
    names = tuner.list_commands(click.Context(tuner))
    assert all(f"\n## tuner {name}\n" in commands for name in names)
    keys = reference.config_page()
    for name, section in sections_of(StudyConfig).items():
        block = keys.partition(f"\n## [{name}]\n")[2].partition("\n## ")[0]
        assert all(f"| `{key}` |" in block for key in section.model_fields), name
        assert not [line for line in block.splitlines() if line.endswith("|  |")], name


def test_every_launcher_is_named() -> None:
    assert all(name in reference.config_page() for name in LAUNCHERS)


def test_check_finds_a_page_that_is_out_of_step(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "docs").mkdir()
    assert reference.main([]) == 0
    assert reference.main(["--check"]) == 0
    (tmp_path / "docs/cli.md").write_text("old")
    assert reference.main(["--check"]) == 1
    assert "docs/cli.md is out of step" in capsys.readouterr().out
