"""Real `tuner` processes on a folder of their own, for tests that start several or kill some."""

import sqlite3
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import TypeVar

import psutil

Found = TypeVar("Found")


class TunerFolder:
    """A folder with a study file and the database of the `tuner` commands that run in it."""

    def __init__(self, folder: Path, study: str) -> None:
        """`study` is the text of its `study.toml`."""
        self.folder = folder
        (folder / "study.toml").write_text(study)

    def start(self, *arguments: str, output: str = "output.txt") -> subprocess.Popen[str]:
        """Start `tuner ARGUMENTS` here; all that it prints goes to the end of a file."""
        command = [sys.executable, "-m", "tuner.cli", *arguments]
        with (self.folder / output).open("a") as file:
            return subprocess.Popen(  # noqa: S603 -- our own command
                command, cwd=self.folder, stdout=file, stderr=file, stdin=subprocess.DEVNULL,
                text=True,
            )  # fmt: skip

    def rows(self, query: str) -> list[tuple[object, ...]]:
        """What the database answers; nothing while there is none, or not all of it yet."""
        path = self.folder / "tuner_runs" / "results.db"
        if not path.exists():
            return []
        connection = sqlite3.connect(f"file:{path}?mode=ro", uri=True)
        try:
            return connection.execute(query).fetchall()
        except sqlite3.OperationalError:
            return []
        finally:
            connection.close()

    def processes(self, below: str = "") -> list[psutil.Process]:
        """Processes that stand in this folder, or below a folder of it; not this one."""
        place = str(self.folder / below)
        own = psutil.Process().pid
        return [p for p in psutil.process_iter() if p.pid != own and _stands_in(p, place)]

    def end_all(self) -> list[psutil.Process]:
        """Kill what is left; returns it."""
        left = self.processes()
        for process in left:
            process.kill()
        return left


def _stands_in(process: psutil.Process, place: str) -> bool:
    try:
        return process.cwd().startswith(place)
    except psutil.Error:
        return False


def wait_for(what: str, look: Callable[[], Found | None], timeout_s: float = 120.0) -> Found:
    """What `look` finds in the end; raises `TimeoutError` when that takes too long."""
    end_s = time.monotonic() + timeout_s
    while time.monotonic() < end_s:
        if found := look():
            return found
        time.sleep(0.02)
    raise TimeoutError(f"no {what} within {timeout_s} s")
