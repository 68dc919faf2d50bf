"""Ways to take a database, its disk or the time of day away from a study, and to give it back."""

import contextlib
import datetime
import os
import sqlite3
import subprocess
import threading
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path
from types import ModuleType
from typing import Any
from unittest import mock

from results_db import outcome_rows, trial_rows
from results_db import store as store_module
from tuner import controller, leases, trial_runner
from tuner.study import Study

_DISK_BYTES = 8 << 20


class CannotStrike(Exception):
    """This machine lacks what the fault needs; the message says what."""


def _nothing() -> None:
    """Nothing has to be given back."""


@dataclass(frozen=True)
class Change:
    """What strikes a running study, and what gives back what it took, before a resume."""

    act: Callable[[Study], None]
    undo: Callable[[], None] = _nothing


Strike = Callable[[Path], AbstractContextManager[Change]]
"""Takes the folder in which the study will be made."""


def lock(seconds: float) -> Strike:
    """Another writer holds the write lock for so long."""

    @contextmanager
    def strike(folder: Path) -> Iterator[Change]:
        with ExitStack() as stack:

            def act(study: Study) -> None:
                link = sqlite3.connect(
                    study.store.url, isolation_level=None, check_same_thread=False
                )
                link.execute("BEGIN IMMEDIATE")
                timer = threading.Timer(seconds, link.rollback)
                timer.start()
                stack.callback(link.close)
                stack.callback(timer.join)

            yield Change(act, stack.close)

    return strike


def move(seconds: float) -> Strike:
    """The file is moved away and comes back."""

    @contextmanager
    def strike(folder: Path) -> Iterator[Change]:
        with ExitStack() as stack:

            def act(study: Study) -> None:
                path, elsewhere = Path(study.store.url), folder / "elsewhere.db"
                path.rename(elsewhere)
                timer = threading.Timer(seconds, lambda: elsewhere.rename(path))
                timer.start()
                stack.callback(timer.join)

            yield Change(act)

    return strike


@contextmanager
def forbid_writes(folder: Path) -> Iterator[Change]:
    """The connection may only read, as on a file system that turned read-only."""
    del folder

    def act(study: Study) -> None:
        study.store.database.write(lambda conn: conn.exec_driver_sql("PRAGMA query_only=ON"))

    yield Change(act)


@contextmanager
def fill_disk(folder: Path) -> Iterator[Change]:
    """The file system of the database is full: a small one of its own, which only root can make."""
    mount = ["mount", "-t", "tmpfs", "-o", f"size={_DISK_BYTES}", "tmpfs", str(folder)]
    folder.mkdir(parents=True, exist_ok=True)
    if os.geteuid() != 0 or subprocess.run(mount, capture_output=True, check=False).returncode:
        raise CannotStrike("a file system of its own needs root and mount")
    ballast = folder / "ballast"

    def act(_: Study) -> None:
        with contextlib.suppress(OSError), ballast.open("wb", buffering=0) as stream:
            while stream.write(b"x" * 4096):
                pass

    try:
        yield Change(act, ballast.unlink)
    finally:
        subprocess.run(["umount", "--lazy", str(folder)], check=True)


class _DayAgo(datetime.datetime):
    """A clock that shows yesterday."""

    @classmethod
    def now(cls, tz: datetime.tzinfo | None = None) -> Any:
        """The time of day, a day too early."""
        return datetime.datetime.now(tz) - datetime.timedelta(days=1)


_CLOCKS: tuple[ModuleType, ...] = (
    controller, leases, trial_runner, store_module, trial_rows, outcome_rows
)  # fmt: skip


@contextmanager
def clock_set_back(folder: Path) -> Iterator[Change]:
    """The time of day jumps back, for everything that writes times."""
    del folder
    with ExitStack() as stack:

        def act(_: Study) -> None:
            for module in _CLOCKS:
                stack.enter_context(mock.patch.object(module, "datetime", _DayAgo))

        yield Change(act)
