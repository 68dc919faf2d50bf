"""Observers for programs: nothing, or a function that takes a line of text."""

from collections.abc import Callable
from typing import cast

from tuner.ports import StudyObserver, StudyProgress, TrialEvent


class LineObserver:
    """Gives a function a line for every trial that ends, and every message."""

    def __init__(self, tell: Callable[[str], object]) -> None:
        self._tell = tell

    def on_event(self, event: TrialEvent, progress: StudyProgress) -> None:
        """A line for an end, none for a start or a step."""
        if event.event in ("started", "step"):
            return
        said = event.message or event.event
        if event.tokens_per_s is not None:
            said = f"{event.tokens_per_s:,.0f} tokens/s"
        self._tell(f"trial {event.number}: {event.config.short()}: {said}")

    def on_message(self, text: str) -> None:
        """A line of its own."""
        self._tell(text)


def _nothing(_line: str) -> None:
    """Tell nobody."""


def as_observer(observer: StudyObserver | Callable[[str], object] | None) -> StudyObserver:
    """An observer of what a program passed: an observer, a function of a line, or none."""
    if observer is None:
        return LineObserver(_nothing)
    if hasattr(observer, "on_event"):
        return cast("StudyObserver", observer)
    return LineObserver(observer)
