"""Best so far against trials and against device-hours."""

from dataclasses import dataclass
from itertools import pairwise

from tuner.web.figures.picture import Missing, Picture
from tuner.web.figures.style import (
    BLUE,
    GREY,
    ORANGE,
    VERMILLION,
    axis,
    number,
    speed_axis,
    stacked,
    text,
    thinned,
)
from tuner.web.study_data import StudyData, TrialPoint

_SHOWN = 1500


@dataclass(frozen=True)
class Moment:
    """The state of a study after a trial ended."""

    trial: TrialPoint
    num_finished: int
    device_hours: float
    best_tokens_per_s: float | None


def moments(data: StudyData) -> list[Moment]:
    """The study's course: one moment per finished trial, in the order of their ends."""
    finished = [trial for trial in data.trials if trial.is_finished]
    finished.sort(key=lambda trial: (trial.finished_at is None, trial.finished_at, trial.number))
    found: list[Moment] = []
    best: float | None = None
    spent_s = 0.0
    for place, trial in enumerate(finished, 1):
        spent_s += device_seconds(data, trial)
        # a repeat that happens to be faster is no find of the search
        if trial.tokens_per_s is not None and trial.repeat == 0:
            best = max(best or 0.0, trial.tokens_per_s)
        found.append(Moment(trial, place, spent_s / 3600, best))
    return found


def device_seconds(data: StudyData, trial: TrialPoint) -> float:
    """Seconds of a trial times its devices; for a simulated one of its steps, as it has no more."""
    config = data.configs.get(trial.config_key)
    world_size = config.world_size if config else 1
    if data.is_simulated:
        measure = data.study.section("measure")
        steps = int(measure.get("warmup_steps", 2)) + int(measure.get("measured_steps", 5))
        return (trial.step_time_s or 0.0) * steps * world_size
    return (trial.wall_s or 0.0) * world_size


def best_so_far(data: StudyData) -> Picture | Missing:
    """Every trial and the best so far: above against trials, below against device-hours."""
    course = moments(data)
    known = [m for m in course if m.best_tokens_per_s is not None]
    if not known:
        return Missing("No trial has given a number yet.")
    made = stacked(2, 560, vertical_spacing=0.17)
    bests = _bests(known)
    for row, field in ((1, "num_finished"), (2, "device_hours")):
        first = row == 1
        measured = [m for m in known if m.trial.tokens_per_s is not None]
        shown = [measured[i] for i in thinned(range(len(measured)), _SHOWN)]
        made.add_scatter(
            x=[getattr(m, field) for m in shown],
            y=[m.trial.tokens_per_s for m in shown],
            mode="markers", name="a trial", legendgroup="trial", showlegend=first,
            marker={"size": 5, "color": GREY, "opacity": 0.6},
            text=[f"#{m.trial.number} {text(data.label(m.trial.config_key))}" for m in shown],
            hovertemplate="%{text}<br>%{y:,.4~s} tokens/s<extra></extra>",
            row=row, col=1,
        )  # fmt: skip
        made.add_scatter(
            x=[getattr(m, field) for m in bests],
            y=[m.best_tokens_per_s for m in bests],
            mode="lines+markers", name="best so far", legendgroup="best", showlegend=first,
            line={"shape": "hv", "color": BLUE, "width": 2.5},
            marker={"size": [6] * (len(bests) - 1) + [0]},
            hovertemplate="best %{y:,.4~s} tokens/s<extra></extra>",
            row=row, col=1,
        )  # fmt: skip
        _add_lost(made, course, field, row)
        if data.baseline is not None:
            made.add_scatter(
                x=[getattr(course[0], field), getattr(course[-1], field)],
                y=[data.baseline.tokens_per_s] * 2,
                mode="lines", name="baseline", legendgroup="base", showlegend=first,
                line={"color": ORANGE, "dash": "dash"}, hoverinfo="name+y", row=row, col=1,
            )  # fmt: skip
    made.update_yaxes(speed_axis(rangemode="tozero"))
    made.update_xaxes(axis("finished trials", tickformat="~s", rangemode="tozero"), row=1, col=1)
    hours = "simulated device time, steps only (h)" if data.is_simulated else "device time (h)"
    made.update_xaxes(axis(hours, rangemode="tozero"), row=2, col=1)
    return Picture(made, _caption(data, bests, course))


def _bests(known: list[Moment]) -> list[Moment]:
    """Moments of a new best, and the last one, so that the line reaches the end."""
    found = [known[0]]
    found += [
        later
        for before, later in pairwise(known)
        if later.best_tokens_per_s != before.best_tokens_per_s
    ]
    return [*found, known[-1]]


def _add_lost(made: object, course: list[Moment], field: str, row: int) -> None:
    """Trials without a number, on the floor of the panel."""
    lost = [m for m in course if m.trial.tokens_per_s is None]
    if not lost:
        return
    shown = [lost[i] for i in thinned(range(len(lost)), _SHOWN)]
    made.add_scatter(  # type: ignore[attr-defined]
        x=[getattr(m, field) for m in shown],
        y=[0] * len(shown),
        mode="markers", name="no number", legendgroup="lost", showlegend=row == 1,
        marker={"size": 6, "symbol": "x-thin", "color": VERMILLION,
                "line": {"width": 1.5, "color": VERMILLION}},
        text=[f"#{m.trial.number} {text(m.trial.failure_kind or m.trial.status)}" for m in shown],
        hovertemplate="%{text}<extra></extra>",
        row=row, col=1,
    )  # fmt: skip


def _caption(data: StudyData, bests: list[Moment], course: list[Moment]) -> str:
    last = next(m for m in bests if m.best_tokens_per_s == bests[-1].best_tokens_per_s)
    total, lost = len(course), sum(m.trial.tokens_per_s is None for m in course)
    return (
        f"The best of {total:,} trials came as number {last.num_finished:,} of them, after "
        f"{number(last.device_hours)} of {number(course[-1].device_hours)} "
        f"{'simulated ' if data.is_simulated else ''}device-hours; {lost:,} gave no number."
    )
