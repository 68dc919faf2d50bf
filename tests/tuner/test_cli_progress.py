"""What a running study shows, on a terminal and in a log."""

import io
import re
from dataclasses import replace

import pytest

from search_spaces.parallel_config import ParallelConfig
from tuner.cli.progress import (
    LiveDisplay,
    PlainDisplay,
    SilentDisplay,
    counter,
    make_display,
    result_line,
)
from tuner.ports import StudyProgress, TrialEvent

PROGRESS = StudyProgress(
    num_finished=0, max_trials=24, num_legal_points=80, num_completed=0, num_infeasible=0,
    num_failed=0, running=(), best=None, best_tokens_per_s=None, elapsed_s=1.0, remaining_s=None,
)  # fmt: skip
FAST, SLOW = ParallelConfig(tp=2), ParallelConfig(dp=2)


class Terminal(io.StringIO):
    """A stream that says it is a terminal."""

    def isatty(self) -> bool:
        return True


def started(number: int, config: ParallelConfig) -> TrialEvent:
    return TrialEvent(event="started", number=number, config=config)


def ended(number: int, config: ParallelConfig, tokens_per_s: float) -> TrialEvent:
    step_time_s = 100 / tokens_per_s
    return TrialEvent(
        event="completed", number=number, config=config, tokens_per_s=tokens_per_s,
        step_time_s=step_time_s,
    )  # fmt: skip


def lost(number: int, config: ParallelConfig) -> TrialEvent:
    return TrialEvent(event="infeasible", number=number, config=config, message="oom:\n no memory")


def lines_of(*events: TrialEvent) -> list[str]:
    stream = io.StringIO()
    with PlainDisplay("title", stream) as display:
        for event in events:
            display.on_event(event, PROGRESS)
    return stream.getvalue().splitlines()


def test_plain_lines_tell_of_ends_with_the_best_so_far() -> None:
    lines = lines_of(
        started(1, SLOW), ended(1, SLOW, 50.0), started(2, FAST), ended(2, FAST, 100.0),
        started(3, SLOW), lost(3, SLOW),
    )  # fmt: skip
    assert lines[0] == "title"
    assert lines[1].startswith("[ 1/24] #1 tp1 pp1 dp2 mbs1: 50.00 tokens/s, 2 s a step")
    assert "best 100.0 tokens/s: tp2 pp1 dp1 mbs1" in lines[2]
    assert lines[3].startswith("[ 3/24] #3 tp1 pp1 dp2 mbs1: infeasible, oom: no memory")
    assert len(lines) == 4


def test_a_trial_is_counted_once_whether_the_progress_has_it_or_not() -> None:
    stream = io.StringIO()
    with PlainDisplay("title", stream) as display:
        display.on_event(started(1, SLOW), PROGRESS)
        display.on_event(ended(1, SLOW, 50.0), replace(PROGRESS, num_finished=1))
        display.on_event(started(2, FAST), replace(PROGRESS, num_finished=1))
        display.on_event(ended(2, FAST, 50.0), replace(PROGRESS, num_finished=1))
    assert re.findall(r"\[ ?(\d+)/24\]", stream.getvalue()) == ["1", "2"]


def test_a_resumed_study_counts_on() -> None:
    stream = io.StringIO()
    with PlainDisplay("title", stream) as display:
        display.on_event(started(8, SLOW), replace(PROGRESS, num_finished=7))
        display.on_event(ended(8, SLOW, 50.0), replace(PROGRESS, num_finished=7))
    assert "[ 8/24]" in stream.getvalue()


@pytest.mark.parametrize(
    ("changes", "expected"),
    [
        ({"num_finished": 7}, " 7/24"),
        ({"num_finished": 7, "num_legal_points": 9}, "7/9"),
        ({"num_finished": 26}, "24/24 + 2"),
        ({"num_finished": 3, "max_trials": None, "num_legal_points": None}, "3"),
    ],
)
def test_counter(changes: dict[str, int | None], expected: str) -> None:
    assert counter(replace(PROGRESS, **changes)) == expected  # type: ignore[arg-type]


def test_events_without_a_number_are_one_line() -> None:
    event = TrialEvent(event="requeued", number=3, config=SLOW, message="its controller\nhad died")
    assert result_line(event) == "#3 tp1 pp1 dp2 mbs1: requeued, its controller had died"


def live(stream: Terminal, times: list[float]) -> LiveDisplay:
    return LiveDisplay("title", stream, clock=lambda: times[0])


def render(display: LiveDisplay) -> str:
    from rich.console import Console

    console = Console(file=io.StringIO(), width=120, color_system=None)
    with console.capture() as captured:
        console.print(display.render())
    return captured.get()


def test_the_live_display_shows_best_running_recent_and_time() -> None:
    times = [0.0]
    display = live(Terminal(), times)
    assert "starting" in render(display)
    display.on_event(started(1, SLOW), PROGRESS)
    display.on_event(ended(1, SLOW, 50.0), PROGRESS)
    display.on_event(started(2, FAST), replace(PROGRESS, elapsed_s=60.0, remaining_s=120.0))
    step = TrialEvent(event="step", number=2, config=FAST, step=4)
    display.on_event(step, replace(PROGRESS, elapsed_s=60.0, remaining_s=120.0))
    times[0] = 30.0
    text = render(display)
    assert "1/24 trials, 0 infeasible, 0 failed, 01:30 so far, 01:30 left" in text
    assert "running #2 tp2 pp1 dp1 mbs1  step 5, 00:30" in text
    assert "#1 tp1 pp1 dp2 mbs1: 50.00 tokens/s" in text
    display.on_event(ended(2, FAST, 100.0), PROGRESS)
    text = render(display)
    assert "best    100.0 tokens/s  tp2 pp1 dp1 mbs1" in text
    assert "running" not in text
    assert "stopping" not in text
    display.on_stop()
    assert "stopping; Ctrl-C again" in render(display)


def test_the_live_display_keeps_only_the_last_results() -> None:
    display = live(Terminal(), [0.0])
    for number in range(1, 21):
        display.on_event(started(number, SLOW), PROGRESS)
        display.on_event(ended(number, SLOW, 50.0), PROGRESS)
    text = render(display)
    assert "#20 " in text
    assert "#14 " not in text


def test_the_live_display_draws_and_leaves_the_terminal_clean() -> None:
    stream = Terminal()
    with LiveDisplay("title", stream) as display:
        display.on_event(started(1, SLOW), PROGRESS)
        display.on_message("a message [not markup]")
        display.on_event(ended(1, SLOW, 50.0), PROGRESS)
    text = stream.getvalue()
    assert "a message [not markup]" in text
    assert "50.00 tokens/s" in text
    assert text.rindex("\x1b[?25h") > text.rindex("\x1b[?25l")  # the cursor is visible again


@pytest.mark.parametrize(
    ("environment", "plain", "stream", "kind"),
    [
        ({}, False, Terminal(), LiveDisplay),
        ({}, True, Terminal(), PlainDisplay),
        ({}, False, io.StringIO(), PlainDisplay),
        ({"NO_COLOR": "1"}, False, Terminal(), PlainDisplay),
        ({"TERM": "dumb"}, False, Terminal(), PlainDisplay),
    ],
)
def test_the_display_suits_the_terminal(
    monkeypatch: pytest.MonkeyPatch,
    environment: dict[str, str],
    plain: bool,
    stream: io.StringIO,
    kind: type,
) -> None:
    monkeypatch.delenv("NO_COLOR", raising=False)
    monkeypatch.setenv("TERM", "xterm")
    for name, value in environment.items():
        monkeypatch.setenv(name, value)
    assert type(make_display("title", plain=plain, stream=stream)) is kind


def test_quiet_shows_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("tuner.cli.progress.verbosity", lambda: -1)
    stream = Terminal()
    with make_display("title", stream=stream) as display:
        display.on_event(started(1, SLOW), PROGRESS)
        display.on_message("text")
        display.on_stop()
    assert type(display) is SilentDisplay
    assert stream.getvalue() == ""
