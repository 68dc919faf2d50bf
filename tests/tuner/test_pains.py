"""Troubles that users of other tools reported in public; docs/pains.md names the tests."""

import ast
import itertools
import os
import re
import stat
import threading
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import pytest

from results_db.queries import best
from results_db.records import TrialStatus
from search_spaces.parallel_config import ParallelConfig
from trainer.contract import FailureKind, Phase, TrialJob, TrialOutput
from tuner.api.observers import as_observer
from tuner.controller import Controller, make_searcher, run_study
from tuner.launchers.local import LocalLauncher
from tuner.study import Study, open_study
from tuner.testing.fake_launcher import FakeLauncher, completed, failed
from tuner.testing.fake_trainer import ENTRY, FakeBehaviour
from tuner.testing.jobs import misbehave, tiny_job
from tuner.testing.launcher_contract import wait_for
from tuner.testing.processes import rank_processes

ROOT = Path(__file__).parents[2]
PAGE = ROOT / "docs" / "pains.md"


@pytest.fixture
def make_study(make_study: Callable[..., Study]) -> Callable[..., Study]:
    def make(search: Mapping[str, Any], **sections: Mapping[str, Any]) -> Study:
        return make_study(sections, **{"early_stop": False, **search})

    return make


def test_one_machine_needs_no_remote_shell(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """DeepSpeed #4993, #5709, #7269: autotuning one node wanted ssh, pdsh and a host file."""
    for name in ("ssh", "pdsh", "mpirun", "srun", "hostname"):
        program = tmp_path / "bin" / name
        program.parent.mkdir(exist_ok=True)
        program.write_text(f"#!/bin/sh\necho {name} >> {tmp_path}/called\nexit 1\n")
        program.chmod(program.stat().st_mode | stat.S_IXUSR)
    monkeypatch.setenv("PATH", str(tmp_path / "bin"), prepend=os.pathsep)
    launcher = LocalLauncher(num_devices=2, run_folder=tmp_path, entry=ENTRY)
    launcher.open()
    try:
        assert wait_for(launcher.submit(tiny_job(), tmp_path / "trial")).result is not None
    finally:
        launcher.close()
    assert not (tmp_path / "called").exists()


def test_a_trial_after_one_out_of_memory_has_fresh_processes(tmp_path: Path) -> None:
    """composer #3030, ray #23971: memory that an out-of-memory trial held was never given back."""
    launcher = LocalLauncher(num_devices=2, run_folder=tmp_path, entry=ENTRY)
    launcher.open()
    try:
        folder = misbehave(tmp_path / "oom", FakeBehaviour(mode="oom", rank=1, step=1))
        failure = wait_for(launcher.submit(tiny_job(), folder)).failures[0]
        assert (failure.failure, failure.phase) == (FailureKind.OOM, Phase.FORWARD)
        before = {process.pid for process in rank_processes(folder)}
        assert wait_for(launcher.submit(tiny_job(), tmp_path / "next")).result is not None
        assert before == set(), "the ranks that ran out of memory are gone"
    finally:
        launcher.close()


def test_ranks_have_no_say_in_the_configuration(make_study: Callable[..., Study]) -> None:
    """Lightning #19789, transformers #32215: ranks shrank their batch each for itself after an OOM.

    Here an out-of-memory error of one rank ends the trial as what it is; the point stays as it was.
    """
    study = make_study(search={"max_trials": 4})
    jobs: list[TrialJob] = []

    def answer(job: TrialJob) -> TrialOutput:
        jobs.append(job)
        return failed(FailureKind.OOM)

    launcher = FakeLauncher(num_devices=2, answer=answer)
    run_study(study, as_observer(None), launcher=launcher)
    rows = study.store.trials(study.id)
    assert [row.trial.config_key for row in rows] == [job.config.config_key for job in jobs]
    assert len({job.config.config_key for job in jobs}) == len(jobs) == 4
    assert all(row.trial.status is TrialStatus.INFEASIBLE for row in rows)
    assert all(
        row.trial.knobs["micro_batch_size"] == job.config.micro_batch_size
        for row, job in zip(rows, jobs, strict=True)
    )


def test_two_trials_that_each_want_all_devices_take_turns(
    make_study: Callable[..., Study], tmp_path: Path
) -> None:
    """ray #32856, #9919, #12360: trials held a part of their devices and waited for the rest."""
    study = make_study(
        search={"max_trials": 4, "parallel_trials": 2, "searcher": "random"},
        measure={"warmup_steps": 1, "measured_steps": 2, "deadline_s": 30.0},
    )
    launcher = LocalLauncher(num_devices=2, run_folder=tmp_path, entry=ENTRY)
    stop = threading.Event()
    timer = threading.Timer(30.0, stop.set)
    timer.start()
    outcome = Controller(study, make_searcher(study), launcher, as_observer(None), stop).run()
    timer.cancel()
    assert outcome.num_completed == 4
    rows = sorted(study.store.trials(study.id), key=lambda row: str(row.trial.started_at))
    for row, following in itertools.pairwise(rows):
        assert row.trial.finished_at is not None
        assert following.trial.started_at is not None
        assert following.trial.started_at >= row.trial.finished_at


@pytest.mark.parametrize(
    ("winner", "loser"),
    [
        (ParallelConfig(dp=2, zero_stage=1), ParallelConfig(dp=2, zero_stage=0)),
        (ParallelConfig(dp=2, micro_batch_size=1), ParallelConfig(dp=2, micro_batch_size=4)),
        (ParallelConfig(pp=2), ParallelConfig(tp=2)),
        (ParallelConfig(pp=2, pipeline_schedule="gpipe"), ParallelConfig(pp=2)),
    ],
)
def test_no_rule_of_thumb_hides_a_winner(
    make_study: Callable[..., Study], winner: ParallelConfig, loser: ParallelConfig
) -> None:
    """Paddle #43782: ZeRO 1 beat 0; Megatron-LM #258: PP beat TP in a node; torchtitan #773.

    What is usually slower stays in the space; if it is faster here it is found.
    """
    study = make_study(
        search={"max_trials": 1000, "searcher": "random"},
        space={
            "zero_stage": [0, 1], "micro_batch_size": [1, 4], "recompute": "none",
            "pipeline_schedule": ["1f1b", "gpipe"], "sequence_parallel": False, "cp": 1,
        },
    )  # fmt: skip
    keys = {candidate.config.config_key for candidate in study.candidates}
    assert {winner.config_key, loser.config_key} <= keys

    def answer(job: TrialJob) -> TrialOutput:
        is_winner = job.config.config_key == winner.config_key
        return completed(job, 0.005 if is_winner else 0.01)

    launcher = FakeLauncher(num_devices=2, answer=answer)
    run_study(study, as_observer(None), launcher=launcher)
    found = best(study.store, study.id)
    assert found is not None
    assert found.config_key == winner.config_key


def test_known_failures_are_never_proposed_again_after_a_resume(
    make_study: Callable[..., Study],
) -> None:
    """optuna #3472, #2864: settings that had failed were suggested again."""
    study = make_study(search={"max_trials": 3, "max_retries": 0})
    launcher = FakeLauncher(num_devices=2, answer=failed(FailureKind.CRASH))
    run_study(study, as_observer(None), launcher=launcher)
    first = [handle.job.config.config_key for handle in launcher.handles]
    again = open_study(study.config.store.url, study.name)
    search = again.config.search.model_copy(update={"max_trials": 8})
    again.config = again.config.model_copy(update={"search": search})
    launcher = FakeLauncher(num_devices=2)
    run_study(again, as_observer(None), launcher=launcher)
    again.store.close()
    second = [handle.job.config.config_key for handle in launcher.handles]
    assert len(second) == 5
    assert not set(first) & set(second)


def _tests_of(path: Path) -> set[str]:
    tree = ast.parse(path.read_text())
    return {
        node.name
        for node in ast.walk(tree)
        if isinstance(node, ast.FunctionDef) and node.name.startswith("test")
    }


def test_every_test_that_the_page_names_exists() -> None:
    named = re.findall(r"`((?:tests|tuner)/[\w/]+\.py)::(\w+)`", PAGE.read_text())
    assert len(named) > 40
    missing = [
        f"{path}::{name}"
        for path, name in named
        if not (ROOT / path).exists() or name not in _tests_of(ROOT / path)
    ]
    assert missing == []


def test_every_row_of_the_page_has_a_public_link() -> None:
    rows = [line for line in PAGE.read_text().splitlines() if line.startswith("| [")]
    assert len(rows) >= 25
    assert all("](https://github.com/" in row for row in rows)
