"""Two real `tuner` processes on one study: one leads it, the other joins, and either is killed."""

import json
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from tuner.testing.real_processes import TunerFolder, wait_for

pytestmark = [pytest.mark.slow, pytest.mark.ray, pytest.mark.distributed, pytest.mark.timeout(500)]

NUM_TRIALS = 6
STUDY = f"""
name = "shared"
[model]
source = "gpt2-tiny"
[training]
sequence_length = 64
global_batch_size = 16
[cluster]
devices = 2
[space]
micro_batch_size = [4, 8]
zero_stage = [0, 1]
recompute = "none"
pipeline_schedule = "1f1b"
virtual_stages = 1
[search]
searcher = "random"
max_trials = {NUM_TRIALS}
parallel_trials = 2
confirm_top = 0
check_drift = false
early_stop = false
[measure]
warmup_steps = 1
measured_steps = 40
deadline_s = 120.0
hang_s = 60.0
"""
HELPER = "helper.txt"


@pytest.fixture
def folder(tmp_path: Path) -> Iterator[TunerFolder]:
    made = TunerFolder(tmp_path, STUDY)
    yield made
    assert not (left := made.end_all()), f"left behind: {left}"


def trials(folder: TunerFolder, status: str) -> list[tuple[object, ...]]:
    """Configuration, number and owner's process of the trials in a status."""
    query = f"SELECT config_id, number, lease_pid FROM trials WHERE status = '{status}'"
    return folder.rows(query + " ORDER BY number")


def start_both(folder: TunerFolder) -> tuple[subprocess.Popen[str], subprocess.Popen[str]]:
    """A leader and a helper, each with a trial under way."""
    leader = folder.start("run", "study.toml")
    wait_for("running trial", lambda: trials(folder, "running"))
    helper = folder.start("resume", "shared", "--join", "--json", output=HELPER)
    wait_for("two trials of two processes", lambda: owners(folder) == {leader.pid, helper.pid})
    return leader, helper


def owners(folder: TunerFolder) -> set[object]:
    return {pid for _, _, pid in trials(folder, "running")}


def answer(folder: TunerFolder) -> dict[str, object]:
    """What the helper printed at its end."""
    text = (folder.folder / HELPER).read_text()
    return dict(json.loads(text[text.index("{") :]))


def check_nothing_lost_or_repeated(folder: TunerFolder) -> None:
    done = trials(folder, "completed")
    assert len(done) == len({config for config, _, _ in done}) == NUM_TRIALS
    assert folder.rows("SELECT count(*) FROM trials") == [(NUM_TRIALS,)]
    assert folder.rows("SELECT count(*) FROM measurements") == [(NUM_TRIALS,)]
    assert folder.rows("SELECT status FROM studies") == [("completed",)]


def test_two_processes_share_a_study(folder: TunerFolder) -> None:
    leader, helper = start_both(folder)
    assert leader.wait(timeout=240) == 0
    assert helper.wait(timeout=60) == 0
    check_nothing_lost_or_repeated(folder)
    by_helper = [row for row in trials(folder, "completed") if row[2] == helper.pid]
    assert answer(folder) == {
        "study": "shared", "num_trials": len(by_helper), "reason": "it is completed",
    }  # fmt: skip
    assert 0 < len(by_helper) < NUM_TRIALS


def test_a_killed_leader_leaves_the_helper_its_trial_and_the_study_to_resume(
    folder: TunerFolder,
) -> None:
    leader, helper = start_both(folder)
    leader.kill()
    leader.wait()
    assert helper.wait(timeout=120) == 0
    outcome = answer(folder)
    assert outcome["reason"] == "its controller is gone"
    before = trials(folder, "completed")
    assert len([row for row in before if row[2] == helper.pid]) == outcome["num_trials"] != 0
    assert owners(folder) == {leader.pid}, "what the leader ran is known to be abandoned"
    assert folder.start("resume", "shared", "--join").wait(timeout=60) == 5
    assert folder.start("resume", "shared").wait(timeout=240) == 0
    check_nothing_lost_or_repeated(folder)
    assert set(before) <= set(trials(folder, "completed"))


def test_a_killed_helper_s_trial_runs_again_under_the_leader(folder: TunerFolder) -> None:
    leader, helper = start_both(folder)
    helper.kill()
    helper.wait()
    assert leader.wait(timeout=240) == 0
    check_nothing_lost_or_repeated(folder)
    assert "its process had died; it runs again" in (folder.folder / "output.txt").read_text()
