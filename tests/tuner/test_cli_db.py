"""`tuner sql` and `tuner db`: output for people and pipes, exit codes, and no traceback."""

import csv
import io
import json
import shutil
from pathlib import Path

import pytest

import results_db
from results_db.records import MeasurementRow, StudyRecord, TrialOutcome, TrialRecord, TrialStatus
from tuner.cli import main
from tuner.cli.db import db_group, sql_command

GOLDEN = Path(__file__).parents[1] / "results_db" / "golden" / "0001.db"
HISTORY = """job_id,dp_degree,mp_degree,pp_degree,micro_batch_size,throughput,max_mem_usage
1,4,2,1,1,5000,1000
2,8,1,1,1,,OOM
"""


@pytest.fixture
def database(tmp_path, monkeypatch):
    """A database with two configurations, named by the environment."""
    path = tmp_path / "results.db"
    with results_db.open(path) as store:
        study = store.create_study(
            StudyRecord(
                name="study", searcher="cbo", launcher="local", model={"name": "tiny"},
                cluster={"name": "here"}, training={}, resolved_config="", config_hash="",
            )
        )  # fmt: skip
        pairs = []
        for n in range(2):
            row = MeasurementRow(
                step_time_s=0.5, step_time_iqr_s=0.0, tokens_per_s=2000.0 + n, tokens_per_step=1000,
                num_microbatches=1, num_parameters=1, num_layers=1, model_flops_per_step=1.0,
                hardware_flops_per_step=1.0, model_flops_per_s_per_device=1.0,
                hardware_flops_per_s_per_device=1.0, mfu=None, peak_memory_bytes=1,
                final_loss=None, startup_s=0.0,
            )  # fmt: skip
            trial = TrialRecord(study_id=study.id, config_key=f"k{n}", knobs={"dp": n + 1})
            pairs.append((trial, TrialOutcome(status=TrialStatus.COMPLETED, measurement=row)))
        store.add_results(study.id, pairs)
    monkeypatch.setenv("TUNER_STORE", str(path))
    monkeypatch.chdir(tmp_path)
    return path


QUESTION = "SELECT config, tokens_per_s, mfu FROM leaderboard ORDER BY tokens_per_s DESC"


def test_sql_for_people_and_pipes(database, capsys):
    assert main(["sql", QUESTION]) == 0
    shown = capsys.readouterr().out.splitlines()
    assert shown[0].split() == ["config", "tokens_per_s", "mfu"]
    assert "2001" in shown[1]
    assert main(["sql", "--json", QUESTION]) == 0
    rows = json.loads(capsys.readouterr().out)
    assert rows[0] == {"config": "tp1 pp1 dp2 mbs1", "tokens_per_s": 2001.0, "mfu": None}
    assert main(["sql", "--csv", QUESTION]) == 0
    found = list(csv.reader(io.StringIO(capsys.readouterr().out)))
    assert found[1] == ["tp1 pp1 dp2 mbs1", "2001.0", ""]
    assert main(["sql", "--markdown", "SELECT 'a|b' AS x"]) == 0
    assert capsys.readouterr().out == "| x |\n| --- |\n| a\\|b |\n"


def test_sql_to_parquet_and_from_standard_input(database, capsys, monkeypatch, tmp_path):
    import pandas as pd

    assert main(["sql", QUESTION, "--parquet", "out.parquet"]) == 0
    assert list(pd.read_parquet(tmp_path / "out.parquet")["tokens_per_s"]) == [2001.0, 2000.0]
    monkeypatch.setattr("sys.stdin", io.StringIO("SELECT 7 AS seven"))
    assert main(["sql", "--json", "-"]) == 0
    assert json.loads(capsys.readouterr().out) == [{"seven": 7}]


@pytest.mark.parametrize(
    ("arguments", "code", "words"),
    [
        (["sql", "DELETE FROM trials"], 2, "may only read"),
        (["sql", "SELECT nada"], 2, "no such column"),
        (["sql", "--json", "--csv", "SELECT 1"], 2, "exclude each other"),
        (["sql", "SELECT 1", "--store", "missing.db"], 5, "There is no database missing.db"),
        (["sql", "SELECT 1 AS a, 2 AS a", "--parquet", "x"], 2, "different names"),
        (["db", "check", "--store", "missing.db"], 5, "There is no database"),
        (["db", "backup", "results.db"], 5, "exists"),
        (["db", "prune"], 2, "either --study or"),
        (["db", "prune", "--study", "nope"], 5, "There is no study 'nope'"),
        (["db", "import", "megatron", "x", "--study", "y"], 2, "there are paddle"),
        (["db", "import", "paddle", "x.csv", "--study", "y", "--unit", "z"], 2, "the units are"),
        (["db", "import", "paddle", "x.csv", "--study", "y"], 5, "cannot be read"),
        (["db", "export", "out", "--only", "nope"], 5, "no table or view 'nope'"),
        (["db", "merge", "missing.db"], 5, "There is no database"),
        (["db", "upgrade", "--store", "missing.db"], 5, "There is no database"),
        (["db", "info", "--store", "mysql://a:pw@h/x"], 5, "not supported"),
    ],
)
def test_mistakes_are_explained(database, capsys, arguments, code, words):
    assert main(arguments) == code
    captured = capsys.readouterr()
    assert words in captured.err
    assert "Traceback" not in captured.err
    assert "pw" not in captured.err


def test_info_and_check(database, capsys):
    assert main(["db", "info", "--json"]) == 0
    facts = json.loads(capsys.readouterr().out)
    assert facts["num_rows"]["trials"] == 2
    assert facts["trials_by_status"] == {"completed": 2}
    assert main(["db", "info"]) == 0
    assert "SQLite" in capsys.readouterr().out
    assert main(["db", "check"]) == 0
    assert "obeys all its laws" in capsys.readouterr().out
    assert main(["db", "check", "--json"]) == 0
    assert json.loads(capsys.readouterr().out) == []


def test_a_broken_law_gives_the_storage_code(database, capsys):
    import sqlite3

    with sqlite3.connect(database) as link:
        link.execute("DELETE FROM measurements")
    link.close()
    assert main(["db", "check"]) == 5
    assert "a completed trial has a measurement" in capsys.readouterr().out


def test_backup_merge_export_import_prune(database, capsys, tmp_path):
    assert main(["db", "backup", "copy.db"]) == 0
    (tmp_path / "history.csv").write_text(HISTORY)
    command = ["db", "import", "paddle", "history.csv", "--study", "theirs", "--store", "copy.db"]
    command += ["--sequence-length", "128", "--global-batch-size", "64"]
    assert main(command) == 0
    assert "2 trials, 1 with a result, in theirs" in capsys.readouterr().out
    assert main(["db", "merge", "copy.db"]) == 0
    assert "1 studies and 2 trials added" in capsys.readouterr().out
    assert main(["db", "export", "out", "--format", "csv", "--only", "leaderboard"]) == 0
    assert (tmp_path / "out" / "leaderboard.csv").read_text().count("\n") == 4
    assert main(["db", "prune", "--study", "theirs"]) == 0
    assert "Would delete 1 studies with 2 trials" in capsys.readouterr().out
    assert main(["db", "prune", "--study", "theirs", "--yes"]) == 0
    assert main(["db", "prune", "--details-older-than", "0", "--keep-best", "0", "--yes"]) == 0
    assert main(["db", "check"]) == 0


def test_an_old_database_is_upgraded_with_a_copy(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    shutil.copy(GOLDEN, "old.db")
    assert main(["db", "info", "--store", "old.db"]) == 5
    assert "tuner db upgrade" in capsys.readouterr().err
    assert main(["db", "upgrade", "--store", "old.db"]) == 0
    assert "Upgraded the schema from 0001" in capsys.readouterr().err
    assert list(tmp_path.glob("old.db.before-*"))
    assert main(["db", "upgrade", "--store", "old.db"]) == 0
    assert main(["db", "check", "--store", "old.db"]) == 0


def test_every_command_is_documented():
    guide = (Path(__file__).parents[2] / "docs" / "database" / "guide.md").read_text()
    for name in db_group.commands:
        assert f"tuner db {name}" in guide
    assert sql_command.name == "sql"
