"""`kill -9` of a rank, of the node's agent and of the controller in the middle of real trials."""

import os
import signal
import sqlite3
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TypeVar

import psutil
import pytest

pytestmark = [pytest.mark.slow, pytest.mark.ray, pytest.mark.distributed, pytest.mark.timeout(400)]

Found = TypeVar("Found")
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
def folder(tmp_path: Path) -> Iterator[Path]:
    (tmp_path / "study.toml").write_text(STUDY)
    yield tmp_path
    left = [process for process in psutil.process_iter() if _is_ours(process, tmp_path)]
    for process in left:
        process.kill()
    assert not left, f"left behind: {left}"


def _is_ours(process: psutil.Process, folder: Path) -> bool:
    try:
        return process.cwd().startswith(str(folder)) and process.pid != os.getpid()
    except psutil.Error:
        return False


def tuner(folder: Path, *arguments: str) -> subprocess.Popen[str]:
    command = [sys.executable, "-m", "tuner.cli", *arguments]
    with (folder / "output.txt").open("a") as output:
        return subprocess.Popen(command, cwd=folder, stdout=output, stderr=output, text=True)


def rows(folder: Path, query: str) -> list[tuple[object, ...]]:
    path = folder / "tuner_runs" / "results.db"
    if not path.exists():
        return []
    connection = sqlite3.connect(f"file:{path}?mode=ro", uri=True)
    try:
        return connection.execute(query).fetchall()
    except sqlite3.OperationalError:
        return []
    finally:
        connection.close()


def wait_for(what: str, look: Callable[[], Found | None], timeout_s: float = 120.0) -> Found:
    end_s = time.monotonic() + timeout_s
    while time.monotonic() < end_s:
        if found := look():
            return found
        time.sleep(0.02)
    raise TimeoutError(f"no {what} within {timeout_s} s")


def ranks(folder: Path) -> list[psutil.Process]:
    """Processes whose folder is a trial's own: the ranks."""
    trials = folder / "tuner_runs" / "killed" / "trials"
    found = [process for process in psutil.process_iter() if _is_ours(process, trials)]
    return found if len(found) == 2 else []


def running(folder: Path) -> list[psutil.Process]:
    """The ranks of a trial that has taken a step."""
    reports = sorted((folder / "tuner_runs" / "killed" / "trials").glob("*/report.0.jsonl"))
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


def test_nothing_that_is_killed_loses_or_repeats_a_result(folder: Path) -> None:
    run = tuner(folder, "run", "study.toml")

    wait_for("running trial", lambda: running(folder))[1].kill()
    failed = wait_for(
        "failed trial",
        lambda: rows(folder, "SELECT number, status FROM trials WHERE status = 'failed'"),
    )
    assert failed == [(1, "failed")]

    agent_of(wait_for("running trial", lambda: running(folder))[0]).kill()
    wait_for(
        "second failed trial",
        lambda: len(rows(folder, "SELECT 1 FROM trials WHERE status = 'failed'")) >= 2,
    )

    wait_for(
        "completed trial",
        lambda: rows(folder, "SELECT 1 FROM trials WHERE status = 'completed'"),
    )
    wait_for("running trial", lambda: running(folder))
    run.send_signal(signal.SIGKILL)
    run.wait()
    before = rows(
        folder, "SELECT config_id, number FROM trials WHERE status = 'completed' ORDER BY number"
    )
    assert rows(folder, "SELECT count(*) FROM trials WHERE status = 'running'") == [(1,)]
    wait_for("end of the orphaned ranks", lambda: not ranks(folder), timeout_s=30)

    assert tuner(folder, "resume", "killed").wait(timeout=200) == 0
    statuses = rows(folder, "SELECT status, count(*) FROM trials GROUP BY status ORDER BY status")
    assert dict(statuses)["completed"] == 6  # type: ignore[arg-type]
    assert set(dict(statuses)) == {"completed", "failed"}  # type: ignore[arg-type]
    after = rows(folder, "SELECT config_id, number FROM trials WHERE status = 'completed'")
    assert set(before) <= set(after)
    assert len({config for config, _ in after}) == 6
    reasons = rows(folder, "SELECT kind, message FROM failures")
    assert all(kind and message for kind, message in reasons)
