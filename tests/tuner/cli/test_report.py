"""`tuner report` from the command line."""

import json
from pathlib import Path

import pytest

import results_db
from results_db.records import StudyRecord
from tuner.cli import main


@pytest.fixture
def url(tmp_path: Path) -> str:
    path = tmp_path / "results.db"
    with results_db.open(path) as store:
        store.create_study(
            StudyRecord(name="new", searcher="random", launcher="local", model={"name": "m"},
                        cluster={}, training={}, resolved_config="", config_hash="x")
        )  # fmt: skip
    return str(path)


@pytest.mark.parametrize(
    ("name", "start"), [("r.html", "<!doctype html>"), ("r.md", "# new"), ("r.json", "{")]
)
def test_the_suffix_chooses_the_format(url: str, tmp_path: Path, name: str, start: str) -> None:
    target = tmp_path / "deep" / name
    assert main(["report", "new", "-o", str(target), "--store", url]) == 0
    assert target.read_text(encoding="utf-8").startswith(start)


def test_json_goes_to_standard_output(url: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["report", "--format", "json", "--store", url]) == 0
    document = json.loads(capsys.readouterr().out)
    assert document["study_name"] == "new"
    assert document["winner"] is None
    assert document["figures"]["gains"]["missing"]


def test_wrong_wishes_are_one_sentence(
    url: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["report", "new", "-o", "x.docx", "--store", url]) == 2
    assert "legal suffixes: .html" in capsys.readouterr().err
    assert main(["report", "new", "-o", "-", "--format", "pdf", "--store", url]) == 2
    assert "-o FILE.pdf" in capsys.readouterr().err
    (tmp_path / "file").write_text("")
    assert main(["report", "new", "-o", str(tmp_path / "file" / "r.html"), "--store", url]) == 2
    assert "cannot be written" in capsys.readouterr().err
    assert main(["report", "nothing", "--store", url]) == 2


def test_figures_without_a_browser_name_what_to_install(
    url: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("TUNER_BROWSER", "no-such-browser")
    assert main(["report", "new", "-o", str(tmp_path / "r.pdf"), "--store", url]) == 4
    assert "no-such-browser" in capsys.readouterr().err
