"""What a user can get wrong: the exact exit code, one sentence, never a traceback."""

import os
import sqlite3
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from tuner.cli import main

TINY = ("--model", "gpt2-tiny", "--devices", "2", "--dry-run")


def write(name: str, text: str) -> Callable[[Path], None]:
    return lambda folder: (folder / name).write_text(text) and None


def nothing(folder: Path) -> None:
    assert folder.is_dir()


def not_a_database(folder: Path) -> None:
    (folder / "bad.db").write_bytes(b"this is no database, whatever its name says\n" * 100)


def foreign_database(folder: Path) -> None:
    with sqlite3.connect(folder / "bad.db") as connection:
        connection.execute("CREATE TABLE customers (id INTEGER)")


def folder_as_database(folder: Path) -> None:
    (folder / "bad.db").mkdir()


STUDY = "[model]\nsource = 'gpt2-tiny'\n[cluster]\ndevices = 2\n"
CASES: dict[str, tuple[Callable[[Path], None], tuple[str, ...], int, tuple[str, ...]]] = {
    "missing study file": (nothing, ("run", "absent.toml"), 2, ("absent.toml", "tuner init")),
    "no study and no model": (nothing, ("run",), 2, ("no model is named", "--model")),
    "study is a folder": (nothing, ("run", "."), 2, ("cannot be read",)),
    "study is no TOML": (write("s.toml", "model: gpt2"), ("run", "s.toml"), 2, ("not TOML",)),
    "study is binary": (
        lambda folder: (folder / "s.toml").write_bytes(b"\xff\x00\xfe") and None,
        ("run", "s.toml"), 2, ("UTF-8",),
    ),
    "unknown key": (
        write("s.toml", STUDY + "[search]\nmax_trails = 3"), ("run", "s.toml"), 2,
        ("`search.max_trails` in s.toml", "did you mean `max_trials`?", "parallel_trials"),
    ),
    "unknown section": (
        write("s.toml", STUDY + "[serach]"), ("run", "s.toml"), 2, ("did you mean `search`?",),
    ),
    "unknown key by --set": (
        nothing, ("run", *TINY, "--set", "space.ttp=2"), 2, ("`space.ttp` in --set", "`tp`"),
    ),
    "wrong type": (
        nothing, ("run", *TINY, "--set", "search.max_trials=many"), 2, ("should be an integer",),
    ),
    "wrong value": (
        nothing, ("run", *TINY, "--set", "training.dtype=fp8"), 2, ("'fp32', 'bf16', 'fp16'",),
    ),
    "no value": (nothing, ("run", *TINY, "--set", "search.max_trials"), 2, ("key=value",)),
    "unknown preset": (
        nothing, ("run", "--model", "gpt2-125m"), 2, ("gpt2-125m", "gpt2-124m"),
    ),
    "missing config.json": (
        nothing, ("run", "--model", "models/config.json"), 2, ("models/config.json",),
    ),
    "config.json of an unknown architecture": (
        write("config.json", '{"model_type": "bert"}'), ("run", "--model", "config.json"), 2,
        ("bert", "llama", "gpt2"),
    ),
    "config.json that is no JSON": (
        write("config.json", "{"), ("run", "--model", "config.json"), 2, ("JSON",),
    ),
    "config.json of impossible sizes": (
        write("config.json", '{"model_type": "gpt2", "n_embd": 100, "n_head": 3, "n_layer": 2,'
              '"n_positions": 64, "vocab_size": 10}'),
        ("run", "--model", "config.json"), 2, ("100", "3"),
    ),
    "unknown cluster": (
        nothing, ("run", *TINY[:2], "--set", "cluster.preset=summit"), 2, ("summit", "frontier"),
    ),
    "devices that are no whole nodes": (
        nothing, ("run", *TINY[:2], "--devices", "12", "--set", "cluster.preset=frontier"), 2,
        ("12", "8"),
    ),
    "no devices": (nothing, ("run", *TINY[:2], "--devices", "0"), 2, ("--devices is 0",)),
    "unknown searcher": (
        nothing, ("run", *TINY, "--searcher", "cbi"), 2, ("'cbi'", "did you mean 'cbo'?", "random"),
    ),
    "unknown launcher": (
        nothing, ("run", *TINY, "--launcher", "rai"), 2, ("'rai'", "did you mean 'ray'?", "local"),
    ),
    "unknown option of a launcher": (
        nothing,
        ("run", *TINY, "--launcher", "local", "--set", "launcher.options.start_methd=spawn"), 2,
        ("no option 'start_methd'", "did you mean 'start_method'?", "entry"),
    ),
    "address for a launcher without a cluster": (
        nothing, ("run", *TINY, "--launcher", "local", "--set", "launcher.address=auto"), 2,
        ("launcher.address", "local", "ray"),
    ),
    "unknown option of a searcher": (
        nothing, ("run", *TINY, "--searcher", "random", "--set", "search.options.kapa=1"), 2,
        ("'random' has no option 'kapa'", "its options: none"),
    ),
    "two descriptions of the cluster": (
        nothing,
        ("run", *TINY, "--set", "cluster.preset=frontier", "--set", "cluster.memory_gib=4"), 2,
        ("not both preset and keys of its own",),
    ),
    "sequence longer than the model's": (
        nothing, ("run", *TINY, "--set", "training.sequence_length=100000"), 3, ("100000",),
    ),
    "all points illegal": (nothing, ("run", *TINY, "--set", "space.tp=3"), 3, ("tp 3", "2")),
    "baseline that cannot run": (
        nothing, ("run", *TINY[:-1], "--set", "search.baseline.tp=3"), 2,
        ("search.baseline", "tp 3"),
    ),
    "knob that does not exist": (
        nothing, ("why", "tpp=3", "--model", "gpt2-tiny"), 2, ("'tpp' is no knob", "'tp'"),
    ),
    "knob of the wrong type": (
        nothing, ("why", "tp=x", "--model", "gpt2-tiny"), 2, ("tp is 'x'", "integer"),
    ),
    "no knobs": (nothing, ("why", " ", "--model", "gpt2-tiny"), 2, ("no configuration",)),
    "init of an unknown model": (nothing, ("init", "--model", "gtp2-124m"), 2, ("gpt2-124m",)),
    "init over a file": (write("study.toml", ""), ("init",), 2, ("exists already", "--force")),
    "init into no folder": (nothing, ("init", "-o", "no/s.toml"), 2, ("cannot be written",)),
    "absent database": (nothing, ("rank",), 5, ("tuner_runs/results.db", "tuner run")),
    "absent database of another folder": (
        nothing, ("rank", "--store", "no/where.db"), 5, ("no/where.db",),
    ),
    "not a database": (not_a_database, ("rank", "--store", "bad.db"), 5, ("bad.db",)),
    "somebody else's database": (
        foreign_database, ("rank", "--store", "bad.db"), 5, ("tables of something else",),
    ),
    "a folder as database": (folder_as_database, ("studies", "--store", "bad.db"), 5, ("bad.db",)),
    "run into what is no database": (
        not_a_database, ("run", *TINY[:-1], "--store", "bad.db"), 5, ("bad.db",),
    ),
    "resume from what is no database": (
        not_a_database, ("resume", "--store", "bad.db"), 5, ("bad.db",),
    ),
    "show from what is no database": (
        not_a_database, ("show", "1", "--store", "bad.db"), 5, ("bad.db",),
    ),
    "database in no folder that can be made": (
        write("file", ""), ("run", *TINY[:-1], "--store", "file/r.db"), 5, ("file/r.db",),
    ),
    "URL of no known database": (
        nothing, ("rank", "--store", "oracel://host/db"), 5, ("oracel",),
    ),
}  # fmt: skip


@pytest.mark.parametrize("case", CASES)
def test_bad_input(
    case: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    prepare, arguments, code, expected = CASES[case]
    prepare(tmp_path)
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv("TUNER_STORE", raising=False)
    monkeypatch.setattr("tuner.study.measured_peaks", lambda cluster, dtypes: {"fp32": 1e12})
    before = sorted(tmp_path.rglob("*"))
    assert main(arguments) == code
    captured = capsys.readouterr()
    lines = [line for line in captured.err.splitlines() if not line.startswith("using ")]
    assert lines[0].startswith("error: ")
    assert len(lines) == 1 or (len(lines) == 2 and lines[1].startswith("hint: "))
    for text in expected:
        assert text in captured.err, captured.err
    assert "Traceback" not in captured.err
    assert captured.out == ""
    assert sorted(tmp_path.rglob("*")) == before


@pytest.mark.parametrize("case", ["unknown key", "all points illegal", "not a database"])
def test_bad_input_of_a_process(case: str, tmp_path: Path) -> None:
    prepare, arguments, code, expected = CASES[case]
    prepare(tmp_path)
    done = subprocess.run(
        [sys.executable, "-m", "tuner.cli", *arguments],
        cwd=tmp_path,
        env={name: value for name, value in os.environ.items() if name != "TUNER_STORE"},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == code
    assert "Traceback" not in done.stderr
    assert all(text in done.stderr for text in expected)
    assert done.stdout == ""


def test_a_broken_study_file_in_the_folder_does_not_break_reading(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv("TUNER_STORE", raising=False)
    (tmp_path / "study.toml").write_text("no toml")
    assert main(["studies"]) == 5
    warning, error, _ = capsys.readouterr().err.splitlines()
    assert warning.startswith("warning: study.toml is not used to find the database")
    assert "tuner_runs/results.db" in error
