"""What a running study shows on standard error: a live display on a terminal, else plain lines."""

import contextlib
import os
import sys
import time
from collections import deque
from collections.abc import Callable
from contextlib import AbstractContextManager
from dataclasses import replace
from typing import TYPE_CHECKING, Protocol, Self, TextIO

from tuner.cli import formats, output
from tuner.cli.options import verbosity
from tuner.ports import StudyObserver, StudyProgress, TrialEvent

if TYPE_CHECKING:
    from rich.console import Group, RenderableType
    from rich.text import Text

_NUM_RECENT = 6
_REFRESHES_PER_S = 4
_BAR_WIDTH = 30
_STOPPING = "stopping; Ctrl-C again ends everything at once"
_ENDS = frozenset({"completed", "infeasible", "failed", "pruned", "cancelled"})
_STYLES = {"completed": "green", "infeasible": "yellow", "failed": "red"}


class Display(StudyObserver, AbstractContextManager["Display"], Protocol):
    """An observer that is shown between entering and leaving it."""

    def on_stop(self) -> None:
        """The user asked to stop; called from a signal handler."""
        ...


def make_display(title: str, *, plain: bool = False, stream: TextIO | None = None) -> Display:
    """The display that suits `stream` (standard error) and what the user asked for."""
    stream = stream or sys.stderr
    if verbosity() < 0:
        return SilentDisplay()
    if plain or not output.is_live(stream):
        return PlainDisplay(title, stream)
    return LiveDisplay(title, stream)


class SilentDisplay:
    """Shows nothing."""

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *exception: object) -> None:
        return None

    def on_event(self, event: TrialEvent, progress: StudyProgress) -> None:
        """Nothing."""

    def on_message(self, text: str) -> None:
        """Nothing."""

    def on_stop(self) -> None:
        """Nothing."""


class PlainDisplay(SilentDisplay):
    """A line for every trial that ends, with the best so far; for logs and pipes."""

    def __init__(self, title: str, stream: TextIO) -> None:
        self._title = title
        self._stream = stream
        self._tally = _Tally()

    def __enter__(self) -> Self:
        self._print(self._title)
        return self

    def on_event(self, event: TrialEvent, progress: StudyProgress) -> None:
        """A line for an end; for a start as well under `-v`."""
        progress = self._tally.update(event, progress)
        if event.event == "step" or (event.event == "started" and verbosity() < 1):
            return
        self._print(f"[{counter(progress)}] {result_line(event)}{self._tail(event, progress)}")

    def on_message(self, text: str) -> None:
        """A line of its own."""
        self._print(text)

    def on_stop(self) -> None:
        """A line, written past Python's buffers, which a signal handler must not enter."""
        with contextlib.suppress(OSError, ValueError):
            os.write(self._stream.fileno(), f"{_STOPPING}\n".encode())

    def _tail(self, event: TrialEvent, progress: StudyProgress) -> str:
        if event.event == "started" or progress.best_tokens_per_s is None:
            return ""
        left = formats.duration(progress.remaining_s)
        best = formats.throughput(progress.best_tokens_per_s)
        return f" | best {best} tokens/s: {progress.best} | left {left}"

    def _print(self, text: str) -> None:
        print(text, file=self._stream, flush=True)


class LiveDisplay(SilentDisplay):
    """Redraws a few lines in place: how far, the best, what runs now, the last results."""

    def __init__(
        self, title: str, stream: TextIO, clock: Callable[[], float] = time.monotonic
    ) -> None:
        from rich.live import Live

        self._title = title
        self._tally = _Tally()
        self._clock = clock
        self._progress: StudyProgress | None = None
        self._received_s = clock()
        self._is_stopping = False
        self._running: dict[int, tuple[TrialEvent, float]] = {}
        self._recent: deque[Text] = deque(maxlen=_NUM_RECENT)
        self._live = Live(
            get_renderable=self.render,
            console=output.console(stream),
            refresh_per_second=_REFRESHES_PER_S,
            redirect_stdout=False,
        )

    def __enter__(self) -> Self:
        self._live.start()
        return self

    def __exit__(self, *exception: object) -> None:
        self._running.clear()
        self._live.stop()

    def on_event(self, event: TrialEvent, progress: StudyProgress) -> None:
        """Take in what changed; the next redraw shows it."""
        from rich.text import Text

        self._progress = self._tally.update(event, progress)
        self._received_s = self._clock()
        if event.event == "started":
            self._running[event.number] = (event, self._clock())
        elif event.event == "step":
            since_s = self._running.get(event.number, (event, self._clock()))[1]
            self._running[event.number] = (event, since_s)
        else:
            self._running.pop(event.number, None)
            style = _STYLES.get(event.event, "")
            line = Text(result_line(event), style=style, no_wrap=True, overflow="ellipsis")
            self._recent.append(line)

    def on_message(self, text: str) -> None:
        """A line above the display."""
        self._live.console.print(text)

    def on_stop(self) -> None:
        """The next redraw says so."""
        self._is_stopping = True

    def render(self) -> "Group":
        """The display as it is now."""
        from rich.console import Group
        from rich.text import Text

        lines: list[RenderableType] = [Text(self._title, style="bold"), self._bar()]
        if self._progress and self._progress.best_tokens_per_s is not None:
            speed = formats.throughput(self._progress.best_tokens_per_s)
            lines.append(
                Text(f"best    {speed} tokens/s  {self._progress.best}", style="bold green")
            )
        lines += [Text(self._running_line(*item)) for item in list(self._running.values())]
        lines += list(self._recent)
        if self._is_stopping:
            lines.append(Text(_STOPPING, style="bold yellow"))
        return Group(*lines)

    def _bar(self) -> "RenderableType":
        from rich.progress_bar import ProgressBar
        from rich.table import Table
        from rich.text import Text

        progress = self._progress
        if progress is None:
            return Text("starting ...")
        since_s = self._clock() - self._received_s
        left_s = None if progress.remaining_s is None else max(0.0, progress.remaining_s - since_s)
        spent, left = map(formats.duration, (progress.elapsed_s + since_s, left_s))
        facts = (
            f"{counter(progress)} trials, {progress.num_infeasible} infeasible,"
            f" {progress.num_failed} failed, {spent} so far, {left} left"
        )
        total = num_total(progress)
        done = min(progress.num_finished, total) if total else 0
        row = Table.grid(padding=(0, 1))
        row.add_row(ProgressBar(total=total or 1, completed=done, width=_BAR_WIDTH), Text(facts))
        return row

    def _running_line(self, event: TrialEvent, since_s: float) -> str:
        where = "starting" if event.step is None else f"step {event.step + 1}"
        spent = formats.duration(self._clock() - since_s)
        return f"running #{event.number} {event.config.short()}  {where}, {spent}"


class _Tally:
    """Brings a progress up to its own event, whose trial it may not count yet."""

    def __init__(self) -> None:
        self._num_before: int | None = None
        self._num_ended = 0

    def update(self, event: TrialEvent, progress: StudyProgress) -> StudyProgress:
        """The progress with the event's trial counted, and as the best if it is."""
        if self._num_before is None:
            self._num_before = progress.num_finished
        if event.event in _ENDS:
            self._num_ended += 1
        num_finished = max(progress.num_finished, self._num_before + self._num_ended)
        best, best_tokens_per_s = progress.best, progress.best_tokens_per_s
        if event.tokens_per_s is not None and event.tokens_per_s > (best_tokens_per_s or 0.0):
            best, best_tokens_per_s = event.config.short(), event.tokens_per_s
        return replace(
            progress, num_finished=num_finished, best=best, best_tokens_per_s=best_tokens_per_s
        )


def num_total(progress: StudyProgress) -> int | None:
    """Trials of the search, as far as is known; baseline and repeats come on top."""
    bounds = [n for n in (progress.max_trials, progress.num_legal_points) if n is not None]
    return min(bounds) if bounds else None


def counter(progress: StudyProgress) -> str:
    """How many trials are done, e.g. ` 7/24`, or `24/24 + 2` with repeats on top."""
    total, done = num_total(progress), progress.num_finished
    if total is None:
        return str(done)
    beyond = f" + {done - total}" if done > total else ""
    return f"{min(done, total):>{len(str(total))}}/{total}{beyond}"


def result_line(event: TrialEvent) -> str:
    """One trial's news in a line."""
    head = f"#{event.number} {event.config.short()}"
    if event.event == "completed" and event.tokens_per_s is not None:
        speed = formats.throughput(event.tokens_per_s)
        return f"{head}: {speed} tokens/s, {formats.step_time(event.step_time_s)} a step"
    words = " ".join(event.message.split())
    return f"{head}: {event.event}{f', {words}' if words else ''}"
