"""`tuner watch`: a running study in the terminal, from any other process or machine."""

import sys
import time
from collections.abc import Callable
from dataclasses import asdict
from typing import TYPE_CHECKING

import click

from tuner.cli import formats, output, sparks
from tuner.cli.options import json_option, store_option, stored_study_argument, verbosity_options
from tuner.cli.output import print_json, say
from tuner.cli.stores import open_for_reading

if TYPE_CHECKING:
    from rich.console import RenderableType

    from results_db.store import Store
    from tuner.web.study_pulse import EndedTrial, Pulse

_SILENT_S = 120.0
"""A controller that was not heard of for so long is probably gone."""
_BAR_WIDTH = 30
_LINE_WIDTH = 40


@click.command(
    epilog="\b\nExamples:\n  tuner watch                 the newest study, until it ends\n"
    "  tuner watch my-study --once how it stands now\n"
    "  tuner watch --once --json | jq .best_tokens_per_s"
)
@stored_study_argument
@click.option("--once", is_flag=True, help="Show how it stands now and end.")
@click.option(
    "--interval", "interval_s", type=click.FloatRange(min=0.1), default=1.0, show_default=True,
    help="Seconds between two looks at the database.",
)  # fmt: skip
@json_option
@store_option
@verbosity_options
def watch(
    study: str | None, once: bool, interval_s: float, as_json: bool, store: str | None
) -> None:
    """Watch a running study: progress, running trials, best so far, last failures.

    Reads the results database, so the study may run in another process or on another machine. Ends
    when the study ends. Without a terminal a line is printed at every change.
    """
    opened, record = open_for_reading(study, store)
    with opened:
        follower = _Follower(opened, record.name, interval_s)
        if once:
            _show_once(follower.look(), as_json)
        elif as_json:
            follower.follow(lambda pulse: print_json(_document(pulse)))
        elif output.is_live(sys.stdout):
            _follow_live(follower)
        else:
            follower.follow(lambda pulse: click.echo(_line(pulse)))


class _Follower:
    """Looks at the database again and again until the study ends."""

    def __init__(self, store: "Store", study: str, interval_s: float) -> None:
        self._store, self._study, self._interval_s = store, study, interval_s

    def look(self) -> "Pulse":
        """How the study stands now."""
        from tuner.web.study_pulse import take_pulse

        return take_pulse(self._store, self._study)

    def follow(self, show: Callable[["Pulse"], None], *, at_every_look: bool = False) -> "Pulse":
        """Show every change (or every look) until the study is over; returns the last."""
        shown: tuple[object, ...] | None = None
        while True:
            pulse = self.look()
            state = (pulse.status, dict(pulse.counts), [row.number for row in pulse.running])
            if at_every_look or state != shown:
                show(pulse)
                shown = state
            if pulse.is_over:
                return pulse
            time.sleep(self._interval_s)


def _show_once(pulse: "Pulse", as_json: bool) -> None:
    if as_json:
        print_json(_document(pulse))
    else:
        output.console().print(render(pulse))


def _follow_live(follower: _Follower) -> None:
    from rich.live import Live

    with Live(console=output.console(), auto_refresh=False) as live:
        last = follower.follow(
            lambda pulse: live.update(render(pulse), refresh=True), at_every_look=True
        )
    say(_ending(last))


def _ending(pulse: "Pulse") -> str:
    if pulse.status == "completed":
        return f"study {pulse.study} is completed: tuner rank {pulse.study}"
    return f"study {pulse.study} is {pulse.status} and no controller runs it: tuner resume"


def _document(pulse: "Pulse") -> dict[str, object]:
    return {**asdict(pulse), "num_finished": pulse.num_finished, "is_over": pulse.is_over}


def _line(pulse: "Pulse") -> str:
    """The state in one line, for logs and pipes."""
    best = "no number yet"
    if pulse.best_tokens_per_s is not None:
        best = f"best {formats.throughput(pulse.best_tokens_per_s)} tokens/s: {pulse.best_label}"
    running = ", ".join(f"#{row.number}" for row in pulse.running) or "none"
    return f"[{_counter(pulse)}] {_tally(pulse)} | running {running} | {best} | {_left(pulse)}"


def _counter(pulse: "Pulse") -> str:
    total = f"/{pulse.max_trials}" if pulse.max_trials is not None else ""
    return f"{pulse.num_searched}{total}"


def _tally(pulse: "Pulse") -> str:
    ends = ("completed", "infeasible", "failed", "pruned", "cancelled")
    return ", ".join(f"{pulse.counts[end]:,} {end}" for end in ends if pulse.counts.get(end)) or (
        "no trial has ended"
    )


def _left(pulse: "Pulse") -> str:
    if pulse.status != "running":
        return pulse.status
    if pulse.remaining_s is None:
        return "left unknown"
    return f"left {formats.duration(pulse.remaining_s)}"


def render(pulse: "Pulse") -> "RenderableType":
    """The state for a terminal: bars and sparkline only where the stream can show them."""
    from rich.console import Group
    from rich.progress_bar import ProgressBar
    from rich.table import Table
    from rich.text import Text

    def line(words: str, style: str = "") -> Text:
        return Text(words, style=style, no_wrap=True, overflow="ellipsis")

    simulated = ", simulated" if pulse.is_simulated else ""
    lines: list[RenderableType] = [line(f"{pulse.study} ({pulse.status}{simulated})", "bold")]
    facts = (
        f"{_counter(pulse)} searched, {formats.duration(pulse.elapsed_s)} so far, {_left(pulse)}"
    )
    if pulse.max_trials and sparks.can_show(sys.stdout):
        row = Table.grid(padding=(0, 1))
        done = min(pulse.num_searched, pulse.max_trials)
        row.add_row(
            ProgressBar(total=pulse.max_trials, completed=done, width=_BAR_WIDTH), Text(facts)
        )
        lines.append(row)
    else:
        lines.append(line(facts))
    lines.append(line(_tally(pulse)))
    if pulse.best_tokens_per_s is not None:
        best = f"{formats.throughput(pulse.best_tokens_per_s)} tokens/s  {pulse.best_label}"
        lines.append(line(f"best     {best}", "bold green"))
    if len(pulse.bests) > 1 and sparks.can_show(sys.stdout):
        first, last = formats.throughput(pulse.bests[0]), formats.throughput(pulse.bests[-1])
        lines.append(
            line(f"rises    {first} {sparks.sparkline(pulse.bests, _LINE_WIDTH)} {last} tokens/s")
        )
    lines += [
        line(f"running  #{row.number} {row.label}  {formats.duration(row.elapsed_s)}", "cyan")
        for row in pulse.running
    ]
    lines += [line(f"ended    {_ended(row)}") for row in pulse.recent if row.tokens_per_s]
    lines += [line(f"lost     {_ended(row)}", "yellow") for row in pulse.failures]
    if _is_silent(pulse):
        lines.append(line(_silence(pulse), "bold red"))
    return Group(*lines)


def _ended(row: "EndedTrial") -> str:
    if row.tokens_per_s is not None:
        return f"#{row.number} {row.label}: {formats.throughput(row.tokens_per_s)} tokens/s"
    why = f"{row.failure}: {row.message}" if row.failure else row.status
    return f"#{row.number} {row.label}: {why}"


def _is_silent(pulse: "Pulse") -> bool:
    return pulse.status == "running" and (pulse.silent_s or 0.0) > _SILENT_S


def _silence(pulse: "Pulse") -> str:
    spent = formats.duration(pulse.silent_s)
    return f"its controller has been silent for {spent}; if it is gone: tuner resume"
