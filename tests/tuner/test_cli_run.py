"""`tuner run` and `tuner resume`, mostly with real processes and a trainer that only pretends."""

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import psutil
import pytest

import results_db
from results_db.records import StudyStatus, TrialStatus
from trainer.contract import FailureKind, TrialJob, TrialOutput
from tuner.cli import main
from tuner.config import parse_study_text
from tuner.testing.fake_launcher import FakeLauncher, completed, failed

FAKE_TRAINER = "launcher.options.entry=tuner.testing.fake_trainer:run_rank"
COMMON = ["--model", "gpt2-tiny", "--devices", "2", "--searcher", "random"]
LOCAL = ["--launcher", "local", "--set", FAKE_TRAINER]

Run = Callable[..., tuple[int, str, str]]


@pytest.fixture
def cli(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Run:
    """Runs the command in an empty folder; the peak of the CPU is not measured."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv("TUNER_STORE", raising=False)
    monkeypatch.setattr("tuner.study.measured_peaks", lambda cluster, dtypes: {"fp32": 1e12})

    def run(*arguments: str) -> tuple[int, str, str]:
        code = main(arguments)
        captured = capsys.readouterr()
        return code, captured.out, captured.err

    return run


@pytest.fixture
def answer(monkeypatch: pytest.MonkeyPatch) -> Callable[[Callable[[TrialJob], TrialOutput]], None]:
    """Puts a launcher in place whose trials end at once, as told."""

    def put(answer: Callable[[TrialJob], TrialOutput]) -> None:
        monkeypatch.setattr(
            "tuner.controller.make_launcher",
            lambda study: FakeLauncher(num_devices=2, answer=answer),
        )

    return put


def faster_with_tp(job: TrialJob) -> TrialOutput:
    return completed(job, step_time_s=1.0 / (2 * job.config.tp + job.config.micro_batch_size))


def test_a_study_runs_on_real_processes_and_is_ranked(cli: Run, tmp_path: Path) -> None:
    options = ["search.confirm_top=1", "search.confirm_repeats=1", "search.check_drift=false"]
    sets = [word for option in options for word in ("--set", option)]
    code, out, err = cli("run", *COMMON, *LOCAL, "--max-trials", "3", "--name", "first", *sets)
    assert code == 0
    assert "tokens/s" in out.splitlines()[0]
    assert len(out.splitlines()) == 4
    assert "study first: gpt2-tiny on 2 x" in err
    assert "tuner rank first --all" in err
    assert "tuner show " in err
    assert "[3/3] #3 " in err
    assert "[3/3 + 1] #4 " in err
    with results_db.open(tmp_path / "tuner_runs/results.db") as store:
        rows = store.trials(store.get_study("first").id or 0)
    assert [row.trial.status for row in rows] == [TrialStatus.COMPLETED] * 4
    assert [row.trial.purpose for row in rows] == ["search"] * 3 + ["confirm"]


def test_simulated_numbers_are_said_to_be_simulated(cli: Run) -> None:
    options = ["--launcher", "simulated", "--max-trials", "2", "--set", "search.confirm_top=0"]
    code, _, err = cli("run", *COMMON, *options)
    assert code == 0
    assert "launcher simulated" in err
    assert "a cost model gave these numbers, no machine did" in err


def test_json_is_the_whole_of_standard_output(cli: Run, answer: Any) -> None:
    answer(faster_with_tp)
    code, out, _ = cli("run", *COMMON, "--max-trials", "6", "--json", "--set",
                       "search.baseline.dp=2", "--set", "search.confirm_top=0")  # fmt: skip
    document = json.loads(out)
    assert code == 0
    assert document["status"] == "completed"
    assert document["num_trials"] == 6 + 2  # the baseline, and it again to look for drift
    rows = document["leaderboard"]
    speeds = [row["tokens_per_s"] for row in rows]
    assert speeds == sorted(speeds, reverse=True)
    baseline = next(row for row in rows if row["knobs"]["dp"] == 2 and row["label"].count(" ") == 3)
    assert document["baseline_tokens_per_s"] == baseline["tokens_per_s"]
    assert rows[0]["speedup_vs_baseline"] == pytest.approx(speeds[0] / baseline["tokens_per_s"])


def test_the_leaderboard_compares_with_median_and_baseline(cli: Run, answer: Any) -> None:
    answer(faster_with_tp)
    code, out, err = cli("run", *COMMON, "--max-trials", "6", "--set", "search.baseline.dp=2")
    assert code == 0
    assert {"vs", "median", "baseline", "configuration"} <= set(out.splitlines()[0].split())
    assert "1.00x" in out
    assert "x over your current configuration" in err
    assert "cannot tell it from" in err


def test_a_baseline_that_nobody_runs_has_a_name(cli: Run, answer: Any) -> None:
    answer(faster_with_tp)
    name = 'search.baseline_name="plain data parallelism"'
    baseline = ("--set", "search.baseline.dp=2", "--set", name)
    code, _, err = cli("run", *COMMON, "--max-trials", "3", *baseline)
    assert code == 0
    assert "x over plain data parallelism" in err
    assert "x over plain data parallelism" in cli("rank")[2]
    assert "your current configuration" not in err


def test_quiet_prints_the_table_alone(cli: Run, answer: Any) -> None:
    answer(faster_with_tp)
    code, out, err = cli("run", "-q", *COMMON, "--max-trials", "2")
    assert (code, err) == (0, "")
    assert len(out.splitlines()) == 3


def test_dry_run_shows_points_and_config_and_leaves_nothing(cli: Run, tmp_path: Path) -> None:
    code, out, err = cli("run", *COMMON, "--dry-run", "--max-trials", "3")
    assert code == 0
    assert "legal configurations: " in out
    assert "first 3 that random would try" in out
    text = out.partition("resolved study file")[2]
    assert parse_study_text(text).search.max_trials == 3
    assert "nothing was run or stored" in err
    assert list(tmp_path.iterdir()) == []


def test_dry_run_as_json(cli: Run) -> None:
    code, out, _ = cli("run", *COMMON, "--dry-run", "--json", "--set", "space.tp=2")
    document = json.loads(out)
    assert code == 0
    assert document["num_legal_points"] > 0
    assert len(document["first_candidates"]) == 5
    assert {item["knobs"].get("tp") for item in document["first_candidates"]} == {2}
    assert all(item["predicted_step_time_s"] > 0 for item in document["first_candidates"])
    assert parse_study_text(document["resolved_config"]).space.tp == (2,)


def test_a_study_file_in_the_folder_is_found_and_its_store_is_used(
    cli: Run, answer: Any, tmp_path: Path
) -> None:
    answer(faster_with_tp)
    text = "name = 'found'\n[model]\nsource = 'gpt2-tiny'\n[cluster]\ndevices = 2\n[search]\n"
    text += "searcher = 'random'\nmax_trials = 2\nconfirm_top = 0\n[store]\nurl = 'own.db'"
    (tmp_path / "study.toml").write_text(text)
    code, _, err = cli("run")
    assert code == 0
    assert "using study.toml" in err
    assert (tmp_path / "own.db").exists()
    for command in (["rank"], ["rank", "study.toml"], ["rank", "found", "--store", "own.db"]):
        code, out, err = cli(*command)
        assert code == 0
        assert "study found" in err
        assert len(out.splitlines()) == 3
    code, _, err = cli("run", "study.toml")
    assert code == 2
    assert "found" in err


def test_every_trial_failing_is_code_3_with_the_reason(cli: Run, answer: Any) -> None:
    answer(lambda job: failed(FailureKind.OOM, "no memory left"))
    code, out, err = cli("run", *COMMON, "--max-trials", "3")
    assert code == 3
    assert out == ""
    last = err.splitlines()[-2:]
    assert last[0] == "error: none of 3 trials gave a number; the last one said: no memory left"
    assert last[1].startswith("hint: use more devices")
    assert "`tuner rank --all` lists the reasons" in last[1]
    code, out, _ = cli("rank", "--all")
    assert code == 0
    assert out.count("oom: no memory left") == 3


def test_resume_goes_on_with_a_larger_budget_and_repeats_nothing(cli: Run, answer: Any) -> None:
    answer(faster_with_tp)
    options = ["--name", "s", "--max-trials", "2", "--set", "search.confirm_top=0"]
    assert cli("run", *COMMON, *options)[0] == 0
    code, _, err = cli("resume", "s", "--max-trials", "5")
    assert code == 0
    assert "resuming s" in err
    with results_db.open("tuner_runs/results.db") as store:
        rows = store.trials(store.get_study("s").id or 0)
    searched = [row.trial.config_key for row in rows if row.trial.purpose == "search"]
    assert len(searched) == len(set(searched)) == 5


def test_resume_of_an_unknown_study_names_the_known_ones(cli: Run, answer: Any) -> None:
    answer(faster_with_tp)
    cli("run", *COMMON, "--name", "known", "--max-trials", "1")
    code, _, err = cli("resume", "unknown")
    assert code == 2
    assert "'unknown'" in err
    assert "known" in err.splitlines()[-1]


def start(folder: Path, *arguments: str) -> subprocess.Popen[str]:
    """The command in a process of its own, with trials that last."""
    command = [sys.executable, "-m", "tuner.cli", "run", *COMMON, *LOCAL, *arguments]
    options = ["--name", "long", "--set", "measure.measured_steps=100000"]
    return subprocess.Popen(
        [*command, *options],
        cwd=folder,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        start_new_session=True,
        env={**os.environ, "TUNER_STORE": f"sqlite:///{folder}/r.db"},
    )


def wait_for_steps(folder: Path) -> None:
    deadline_s = time.monotonic() + 60
    while not list(folder.rglob("report.0.jsonl")):
        assert time.monotonic() < deadline_s, "no trial started"
        time.sleep(0.05)


def status_of(folder: Path) -> tuple[StudyStatus, list[TrialStatus]]:
    with results_db.open(folder / "r.db") as store:
        study = store.get_study("long")
        return study.status, [row.trial.status for row in store.trials(study.id or 0)]


@pytest.mark.slow
@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_an_interrupt_stops_in_good_order(tmp_path: Path, number: signal.Signals) -> None:
    process = start(tmp_path)
    wait_for_steps(tmp_path)
    children = psutil.Process(process.pid).children(recursive=True)
    process.send_signal(number)
    _, err = process.communicate(timeout=60)
    assert process.returncode == 130
    assert "stopping; Ctrl-C again" in err
    assert "tuner resume long" in err
    assert "Traceback" not in err
    assert psutil.wait_procs(children, timeout=10)[1] == []
    status, trials = status_of(tmp_path)
    assert status is StudyStatus.INTERRUPTED
    assert trials == [TrialStatus.QUEUED]


@pytest.mark.slow
def test_a_second_interrupt_ends_everything_at_once(tmp_path: Path) -> None:
    process = start(tmp_path)
    wait_for_steps(tmp_path)
    children = psutil.Process(process.pid).children(recursive=True)
    assert children
    process.send_signal(signal.SIGINT)
    process.send_signal(signal.SIGINT)
    process.communicate(timeout=60)
    assert process.returncode == 130
    assert psutil.wait_procs(children, timeout=10)[1] == []
