"""Looks at processes of ours from outside: for tests that nothing is left behind."""

import contextlib
import json
import time
from collections.abc import Callable, Iterable
from pathlib import Path

import psutil

from tuner.testing.fault_matrix import Victim


def descendants(pid: int | None = None) -> list[psutil.Process]:
    """All living processes under `pid`, this process by default."""
    with contextlib.suppress(psutil.NoSuchProcess):
        return [child for child in psutil.Process(pid).children(recursive=True) if is_alive(child)]
    return []


def is_alive(process: psutil.Process) -> bool:
    """Whether it runs; a zombie does not."""
    try:
        return process.is_running() and process.status() != psutil.STATUS_ZOMBIE
    except psutil.NoSuchProcess:
        return False


def left_after(processes: Iterable[psutil.Process], timeout_s: float) -> list[psutil.Process]:
    """Those that still live after at most `timeout_s`."""
    watched = list(processes)
    wait_until(lambda: not any(map(is_alive, watched)), timeout_s)
    return [process for process in watched if is_alive(process)]


def wait_until(condition: Callable[[], bool], timeout_s: float) -> bool:
    """Wait for a condition; whether it came true in time."""
    deadline_s = time.monotonic() + timeout_s
    while time.monotonic() < deadline_s:
        if condition():
            return True
        time.sleep(0.01)
    return condition()


def rank_processes(folder: Path) -> list[psutil.Process]:
    """The fake ranks of a trial and what they left, as they noted themselves."""
    pids = [json.loads(path.read_text())["pid"] for path in sorted(folder.glob("noted.*.json"))]
    children = folder / "children.txt"
    if children.exists():
        pids += [int(line) for line in children.read_text().split()]
    found = []
    for pid in pids:
        with contextlib.suppress(psutil.NoSuchProcess):
            found.append(psutil.Process(pid))
    return found


def processes_in(folder: Path) -> list[psutil.Process]:
    """Living processes whose working directory is `folder` or below: ranks and their children."""
    found = []
    for process in psutil.process_iter():
        with contextlib.suppress(psutil.Error):
            if Path(process.cwd()).is_relative_to(folder) and is_alive(process):
                found.append(process)
    return found


_PROGRAMS = {
    "ray driver": "tuner.launchers.ray_driver",
    "ray head": "gcs_server",
    "raylet": "raylet",
}


def find_victim(victim: Victim, folder: Path) -> psutil.Process:
    """The process that a `Kill` of the fault matrix is about, above the ranks of a running trial.

    Raises:
        LookupError: There is none: the launcher has no such part.
    """
    wait_until(lambda: bool(rank_processes(folder)), 10.0)
    parents = rank_processes(folder)[0].parents()
    if victim == "fork server":
        return parents[0]
    if victim == "agent":
        return parents[1]
    for process in descendants():
        with contextlib.suppress(psutil.NoSuchProcess):
            program = _PROGRAMS[victim]
            if process.name() == program or program in process.cmdline():
                return process
    raise LookupError(f"no {victim} is running")
