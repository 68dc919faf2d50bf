"""The page of one trial: configuration, measurement, failures, steps, ranks."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from starlette.requests import Request
from starlette.responses import RedirectResponse, Response

from results_db import study_facts
from results_db.errors import NotFound
from results_db.knobs import KNOBS
from results_db.records import PredictionRow, RankRow, StepRow, TrialSummary
from results_db.trial_lists import trials_by_id
from tuner.web.app.dashboard import Dashboard, PageProblem, dashboard_of, id_of
from tuner.web.app.rendering import page
from tuner.web.app.studies import export_command, is_running

MOST_ROWS = 256
"""Ranks and steps that a page shows; the SQL page has all."""


@dataclass(frozen=True)
class KnobLine:
    """A knob of the trial's configuration."""

    name: str
    value: Any
    about: str
    is_default: bool


@dataclass(frozen=True)
class Bar:
    """One step in the picture of all steps, in parts of the picture's size."""

    x: float
    y: float
    width: float
    height: float
    is_warmup: bool
    title: str


def by_number(request: Request) -> Response:
    """The address of a trial by its number in its study."""
    dashboard = dashboard_of(request)
    study = dashboard.study(id_of(request))
    number = id_of(request, "number")
    try:
        found = dashboard.store.trial(study.id or 0, number)
    except NotFound:
        raise PageProblem(404, f"Study {study.name!r} has no trial {number}") from None
    return RedirectResponse(f"/trials/{found.trial.id}", 303)


def trial(request: Request) -> Response:
    """Everything that is known of one trial."""
    dashboard = dashboard_of(request)
    trial_id = id_of(request)
    found = trials_by_id(dashboard.store, [trial_id])
    if not found:
        raise PageProblem(404, f"There is no trial with the id {trial_id}")
    summary = found[0]
    study = dashboard.study(summary.trial.study_id)
    steps = dashboard.store.steps(trial_id)
    ranks = dashboard.store.ranks(trial_id)
    return page(
        request,
        "trial.html",
        study=study,
        trial=summary.trial,
        label=label_of(summary),
        measured=summary.measurement,
        failures=dashboard.store.failures(trial_id),
        prediction=_prediction(dashboard, summary),
        knobs=knob_lines(summary),
        steps=steps[:MOST_ROWS],
        num_steps=len(steps),
        bars=step_bars(steps[:MOST_ROWS]),
        ranks=ranks[:MOST_ROWS],
        num_ranks=len(ranks),
        parts=parts_of(ranks),
        spans=spans,
        export_command=export_command(dashboard, study, str(summary.trial.number)),
        is_running=is_running(study),
        neighbours=_neighbours(dashboard, summary),
    )


def label_of(summary: TrialSummary) -> str:
    """The configuration on one line, as the database labels it."""
    from results_db import knobs

    return str(knobs.to_columns(summary.trial.knobs)["label"])


def knob_lines(summary: TrialSummary) -> list[KnobLine]:
    """All knobs in the table's order."""
    values = summary.trial.knobs
    return [
        KnobLine(knob.name, values.get(knob.name), knob.doc, values.get(knob.name) == knob.default)
        for knob in KNOBS
    ]


def _prediction(dashboard: Dashboard, summary: TrialSummary) -> PredictionRow | None:
    trial = summary.trial
    rows = study_facts.predictions_of(dashboard.store, trial.study_id, trial.config_key)
    return rows[0] if rows else None


def _neighbours(dashboard: Dashboard, summary: TrialSummary) -> tuple[int | None, int | None]:
    """Numbers of the trial before and after it, where there are such."""
    number = summary.trial.number or 0
    last = dashboard.pulse(summary.trial.study_id).num_trials
    return (number - 1 if number > 1 else None, number + 1 if number < last else None)


def step_bars(steps: Sequence[StepRow]) -> list[Bar]:
    """Bars of the steps' times in a picture of 100 by 100, the slowest full height."""
    slowest = max((step.step_time_s for step in steps), default=0.0)
    if len(steps) < 2 or slowest <= 0:
        return []
    width = 100 / len(steps)
    return [
        Bar(
            x=round(place * width + 0.1 * width, 3),
            y=round(100 - 100 * step.step_time_s / slowest, 3),
            width=round(0.8 * width, 3),
            height=round(100 * step.step_time_s / slowest, 3),
            is_warmup=step.is_warmup,
            title=f"step {step.step + 1}",
        )
        for place, step in enumerate(steps)
    ]


def parts_of(ranks: Sequence[RankRow]) -> list[str]:
    """Parts of a step that any rank reported, the longest first."""
    longest: dict[str, float] = {}
    for rank in ranks:
        for part, time_s in rank.breakdown_s.items():
            longest[part] = max(longest.get(part, 0.0), time_s or 0.0)
    return sorted(longest, key=lambda part: -longest[part])


def spans(numbers: Sequence[int]) -> str:
    """Numbers with runs of neighbours as `0-5`."""
    found: list[list[int]] = []
    for number in sorted(numbers):
        if found and number == found[-1][1] + 1:
            found[-1][1] = number
        else:
            found.append([number, number])
    return ", ".join(str(a) if a == b else f"{a}-{b}" for a, b in found)
