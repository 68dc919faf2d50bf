"""The command's frame: help, exit codes, one-line errors, verbosity, what is imported when."""

import re
import resource
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import click
import pytest

from results_db.errors import DatabaseUnreadable, InvalidQuery
from search_spaces.errors import ModelSpecError, SpaceError
from tuner.cli import main
from tuner.cli.group import COMMANDS, tuner
from tuner.errors import (
    ConfigError,
    EnvironmentProblem,
    LauncherError,
    NothingFeasibleError,
    StorageProblem,
    TunerError,
)

HEAVY = (
    "torch",
    "ray",
    "deephyper",
    "pandas",
    "sqlalchemy",
    "sklearn",
    "scipy",
    "rich",
    "pydantic",
)


def installed_commands() -> list[str]:
    return tuner.list_commands(click.Context(tuner))


def test_help_imports_nothing_heavy() -> None:
    code = (
        "import sys; from tuner.cli import main; main(['--help']);"
        f"print([name for name in {HEAVY!r} if name in sys.modules], file=sys.stderr)"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stderr.strip() == "[]"
    assert "Exit codes" in done.stdout


def test_help_is_quick() -> None:
    command = [sys.executable, "-m", "tuner.cli", "--help"]
    assert min(_cpu_time_s(command) for _ in range(5)) < 0.3


def _cpu_time_s(command: list[str]) -> float:
    """CPU time, which other work on the machine does not lengthen as it does wall clock."""
    before = resource.getrusage(resource.RUSAGE_CHILDREN)
    subprocess.run(command, capture_output=True, check=True)
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    return after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime


@pytest.mark.parametrize("name", installed_commands())
def test_every_command_has_help_with_examples(
    name: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main([name, "--help"]) == 0
    text = capsys.readouterr().out
    assert f"Usage: tuner {name}" in text
    command = tuner.get_command(click.Context(tuner), name)
    if isinstance(command, click.Group):
        return
    assert "Examples:" in text
    assert re.search(rf"^ +tuner {name}", text, re.MULTILINE)


@pytest.mark.parametrize("name", installed_commands())
def test_the_list_of_commands_says_what_the_command_says(name: str) -> None:
    command = tuner.get_command(click.Context(tuner), name)
    assert command is not None
    assert command.name == name
    assert (command.help or "").splitlines()[0] == COMMANDS[name][1]


def test_every_command_of_the_table_is_installed() -> None:
    assert installed_commands() == list(COMMANDS)


@pytest.mark.parametrize("name", installed_commands())
def test_every_command_takes_verbosity(name: str) -> None:
    command = tuner.get_command(click.Context(tuner), name)
    assert command is not None
    leaves = list(command.commands.values()) if isinstance(command, click.Group) else [command]
    for leaf in leaves:
        options = {option for parameter in leaf.params for option in parameter.opts}
        assert {"-v", "--verbose", "-q", "--quiet"} <= options, leaf.name


def test_version_and_bare_call(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["--version"]) == 0
    assert "0.1.0" in capsys.readouterr().out
    assert main([]) == 0
    assert "Commands:" in capsys.readouterr().out


@pytest.fixture
def failing(monkeypatch: pytest.MonkeyPatch) -> Callable[[BaseException], None]:
    """Makes `tuner presets` raise."""

    def fail_with(error: BaseException) -> None:
        def fail() -> None:
            raise error

        monkeypatch.setattr("tuner.cli.spaces._models", fail)

    return fail_with


@pytest.mark.parametrize(
    ("error", "code"),
    [
        (TunerError("a sentence", "do this"), 1),
        (ConfigError("a sentence", "do this"), 2),
        (NothingFeasibleError("a sentence", "do this"), 3),
        (EnvironmentProblem("a sentence", "do this"), 4),
        (LauncherError("a sentence", "do this"), 4),
        (StorageProblem("a sentence", "do this"), 5),
        (ModelSpecError("a sentence", "do this"), 2),
        (SpaceError("a sentence", "do this"), 2),
        (DatabaseUnreadable("a sentence", "do this"), 5),
        (InvalidQuery("a sentence", "do this"), 2),
    ],
)
def test_errors_are_two_lines_and_a_documented_code(
    failing: Callable[[BaseException], None],
    capsys: pytest.CaptureFixture[str],
    error: Exception,
    code: int,
) -> None:
    failing(error)
    assert main(["presets"]) == code
    captured = capsys.readouterr()
    assert captured.err == "error: a sentence\nhint: do this\n"
    assert captured.out == ""


def test_a_bug_is_one_line_and_the_traceback_is_for_those_who_ask(
    failing: Callable[[BaseException], None], capsys: pytest.CaptureFixture[str]
) -> None:
    failing(ZeroDivisionError("by\nzero"))
    assert main(["presets"]) == 1
    expected = (
        "error: the tuner failed: ZeroDivisionError: by zero\nhint: run with -v for the traceback\n"
    )
    assert capsys.readouterr().err == expected
    for arguments in (["-v", "presets"], ["presets", "-v"]):
        assert main(arguments) == 1
        text = capsys.readouterr().err
        assert "Traceback" in text
        assert text.endswith(expected)
    assert main(["presets", "-q"]) == 1
    assert capsys.readouterr().err == expected


def test_an_interrupt_is_130(
    failing: Callable[[BaseException], None], capsys: pytest.CaptureFixture[str]
) -> None:
    failing(KeyboardInterrupt())
    assert main(["presets"]) == 130
    assert capsys.readouterr().err.strip() == "error: interrupted"


@pytest.mark.parametrize(
    ("arguments", "expected"),
    [
        (["rnu"], "did you mean 'run'? known: init, run"),
        (["zzz"], "known: init, run"),
        (["run", "--max-trails", "3"], "--max-trials"),
        (["run", "--max-trials", "many"], "'many' is not a valid integer"),
        (["show"], "Missing argument 'TRIAL'"),
        (["show", "0"], "0 is not in the range x>=1"),
        (["completion", "powershell"], "'bash', 'zsh', 'fish'"),
        (["rank", "--json", "--csv"], "exclude each other"),
    ],
)
def test_wrong_usage_is_code_2_and_says_what_is_right(
    arguments: list[str], expected: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(arguments) == 2
    captured = capsys.readouterr()
    assert expected in captured.err
    assert captured.err.startswith("error: ")
    assert captured.err.count("\n") <= 2
    assert captured.out == ""


def test_a_reader_that_leaves_early_is_no_error(tmp_path: Path) -> None:
    command = f"{sys.executable} -m tuner.cli init -o - | head -1; echo ${{PIPESTATUS[0]}}"
    done = subprocess.run(["bash", "-c", command], capture_output=True, text=True, check=True)
    assert done.stdout.splitlines()[-1] == "0"
    assert done.stderr == ""


@pytest.mark.parametrize("shell", ["bash", "zsh", "fish"])
def test_completion_scripts_call_the_command(
    shell: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["completion", shell]) == 0
    assert "_TUNER_COMPLETE" in capsys.readouterr().out


def test_completion_offers_commands_and_presets() -> None:
    code = "import sys; from tuner.cli import main; sys.exit(main())"
    for words, index, expected in (
        ("tuner ra", "1", "rank"),
        ("tuner run --model gpt2-m", "3", "gpt2-mini"),
    ):
        environment = {
            "COMP_WORDS": words,
            "COMP_CWORD": index,
            "_TUNER_COMPLETE": "bash_complete",
            "PATH": "/usr/bin",
        }
        done = subprocess.run(
            [sys.executable, "-c", code],
            env=environment,
            capture_output=True,
            text=True,
            check=False,
        )
        assert f"plain,{expected}" in done.stdout
