"""Ctrl-C: the first one stops the study in good order, the second one ends everything at once."""

import os
import signal
import threading
from collections.abc import Callable
from types import FrameType
from typing import Any, Self

from tuner.cli import EXIT_INTERRUPTED

_SIGNALS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)


class StopOnSignal:
    """While entered, the first signal sets `stop`; another one kills all children and exits.

    Args:
        on_stop: called from the signal handler, so it must not take locks.
    """

    def __init__(self, on_stop: Callable[[], None]) -> None:
        self.stop = threading.Event()
        self._on_stop = on_stop
        self._previous: dict[signal.Signals, Any] = {}

    def __enter__(self) -> Self:
        if threading.current_thread() is threading.main_thread():
            for number in _SIGNALS:
                self._previous[number] = signal.signal(number, self._handle)
        return self

    def __exit__(self, *exception: object) -> None:
        for number, handler in self._previous.items():
            signal.signal(number, handler)

    def _handle(self, number: int, frame: FrameType | None) -> None:
        if self.stop.is_set():
            kill_children()
            os._exit(EXIT_INTERRUPTED)
        self.stop.set()
        self._on_stop()


def kill_children() -> None:
    """End every process below this one, whatever it does."""
    import psutil

    for process in psutil.Process().children(recursive=True):
        try:
            process.kill()
        except psutil.NoSuchProcess:
            continue
