"""`kill -9` of a rank, of the node's agent and of the controller in the middle of real trials."""

import signal
from collections.abc import Iterator
from pathlib import Path

import psutil
import pytest

from tuner.testing.real_processes import TunerFolder, wait_for

pytestmark = [pytest.mark.slow, pytest.mark.ray, pytest.mark.distributed, pytest.mark.timeout(400)]

STUDY = """
name = "killed"
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
max_trials = 6
max_retries = 2
confirm_top = 0
check_drift = false
early_stop = false
[measure]
warmup_steps = 1
measured_steps = 20
deadline_s = 120.0
hang_s = 60.0
"""


@pytest.fixture
def folder(tmp_path: Path) -> Iterator[TunerFolder]:
    made = TunerFolder(tmp_path, STUDY)
    yield made
    assert not (left := made.end_all()), f"left behind: {left}"


def ranks(folder: TunerFolder) -> list[psutil.Process]:
    """Processes whose folder is a trial's own: the ranks."""
    found = folder.processes("tuner_runs/killed/trials")
    return found if len(found) == 2 else []


def running(folder: TunerFolder) -> list[psutil.Process]:
    """The ranks of a trial that has taken a step."""
    trials = folder.folder / "tuner_runs" / "killed" / "trials"
    reports = sorted(trials.glob("*/report.0.jsonl"))
    if not reports or reports[-1].stat().st_size == 0:
        return []
    current = {process.cwd() for process in ranks(folder)}
    return ranks(folder) if current == {str(reports[-1].parent)} else []


def agent_of(rank: psutil.Process) -> psutil.Process:
    """The node's agent: the Ray worker above the rank's fork server."""
    for process in rank.parents():
        if "NodeAgent" in " ".join(process.cmdline()):
            return process
    raise AssertionError(f"no agent above {rank}: {[p.cmdline() for p in rank.parents()]}")


def test_nothing_that_is_killed_loses_or_repeats_a_result(folder: TunerFolder) -> None:
    run = folder.start("run", "study.toml")

    wait_for("running trial", lambda: running(folder))[1].kill()
    failed = wait_for(
        "failed trial",
        lambda: folder.rows("SELECT number, status FROM trials WHERE status = 'failed'"),
    )
    assert failed == [(1, "failed")]

    agent_of(wait_for("running trial", lambda: running(folder))[0]).kill()
    wait_for(
        "second failed trial",
        lambda: len(folder.rows("SELECT 1 FROM trials WHERE status = 'failed'")) >= 2,
    )

    wait_for(
        "completed trial",
        lambda: folder.rows("SELECT 1 FROM trials WHERE status = 'completed'"),
    )
    wait_for("running trial", lambda: running(folder))
    run.send_signal(signal.SIGKILL)
    run.wait()
    before = folder.rows(
        "SELECT config_id, number FROM trials WHERE status = 'completed' ORDER BY number"
    )
    assert folder.rows("SELECT count(*) FROM trials WHERE status = 'running'") == [(1,)]
    wait_for("end of the orphaned ranks", lambda: not ranks(folder), timeout_s=30)

    assert folder.start("resume", "killed").wait(timeout=200) == 0
    statuses = folder.rows("SELECT status, count(*) FROM trials GROUP BY status ORDER BY status")
    assert dict(statuses)["completed"] == 6  # type: ignore[arg-type]
    assert set(dict(statuses)) == {"completed", "failed"}  # type: ignore[arg-type]
    after = folder.rows("SELECT config_id, number FROM trials WHERE status = 'completed'")
    assert set(before) <= set(after)
    assert len({config for config, _ in after}) == 6
    reasons = folder.rows("SELECT kind, message FROM failures")
    assert all(kind and message for kind, message in reasons)
