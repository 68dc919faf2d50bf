"""Trials of any studies side by side, with what differs marked."""

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any
from urllib.parse import urlencode

from starlette.requests import Request
from starlette.responses import RedirectResponse, Response

from results_db.errors import NotFound
from results_db.knobs import KNOBS
from results_db.records import StudyRecord, TrialSummary
from results_db.trial_lists import trials_by_id
from tuner import formats
from tuner.web.app.dashboard import Dashboard, PageProblem, dashboard_of
from tuner.web.app.rendering import moment, page, value
from tuner.web.app.trial_detail import label_of

MOST = 8
"""Trials that fit beside each other."""


@dataclass(frozen=True)
class Column:
    """One of the compared trials."""

    summary: TrialSummary
    study: StudyRecord
    label: str
    without: str
    """Address of the comparison without this trial."""


@dataclass(frozen=True)
class Row:
    """One quantity of all compared trials."""

    label: str
    about: str
    cells: Sequence[str]
    differs: bool
    best: frozenset[int]
    """Places of the best cells, where the quantity has a better and a worse."""


@dataclass(frozen=True)
class Quantity:
    """A quantity that a trial may have: how to read it, show it, and which end is better."""

    label: str
    about: str
    read: Callable[[Column], Any]
    show: Callable[[Any], str]
    sign: int = 0
    """1 when more is better, -1 when less is, 0 when neither."""
    counts_absent: bool = False
    """Whether having no value differs from having one: a trial that failed has no numbers."""


def _measured(name: str) -> Callable[[Column], Any]:
    return lambda column: getattr(column.summary.measurement, name, None)


def _trial(name: str) -> Callable[[Column], Any]:
    return lambda column: getattr(column.summary.trial, name)


def _failure(column: Column) -> str | None:
    failure = column.summary.failure
    return f"{failure.kind}: {' '.join(failure.message.split())[:300]}" if failure else None


def _loss(number: float | None) -> str:
    return formats.UNKNOWN if number is None else f"{number:.4f}"


RESULTS = (
    Quantity("status", "", lambda column: column.summary.trial.status.value, value),
    Quantity("throughput (tokens/s)", "median over the measured steps", _measured("tokens_per_s"),
             formats.throughput, 1),
    Quantity("step time", "median over the measured steps", _measured("step_time_s"),
             formats.step_time, -1),
    Quantity("step time, spread", "interquartile range", _measured("step_time_iqr_s"),
             formats.step_time, -1),
    Quantity("MFU", "model FLOP utilisation", _measured("mfu"), formats.percent, 1),
    Quantity("peak memory", "of the fullest rank", _measured("peak_memory_bytes"), formats.memory,
             -1),
    Quantity("model FLOP/s a device", "", _measured("model_flops_per_s_per_device"),
             formats.flops, 1),
    Quantity("micro-batches a step", "of each replica", _measured("num_microbatches"),
             formats.count),
    Quantity("tokens a step", "", _measured("tokens_per_step"), formats.count),
    Quantity("final loss", "", _measured("final_loss"), _loss),
    Quantity("start-up", "before the first step", _measured("startup_s"), formats.step_time, -1),
    Quantity("failure", "in the first failing rank's words", _failure, value, counts_absent=True),
)  # fmt: skip
RUNS = (
    Quantity("purpose", "", lambda column: column.summary.trial.purpose.value, value),
    Quantity("proposed by", "", _trial("source"), value),
    Quantity("repeat", "", _trial("repeat"), formats.count),
    Quantity("attempt", "", _trial("attempt"), formats.count),
    Quantity("seed", "", _trial("seed"), value),
    Quantity("started (UTC)", "", _trial("started_at"), moment),
    Quantity("finished (UTC)", "", _trial("finished_at"), moment),
)
CONTEXT = (
    Quantity("model", "", lambda column: column.study.model.get("name"), value),
    Quantity("cluster", "", lambda column: column.study.cluster.get("name"), value),
    Quantity("sequence length", "tokens", lambda column: column.study.training.get(
        "sequence_length"), value),
    Quantity("global batch size", "sequences a step", lambda column: column.study.training.get(
        "global_batch_size"), value),
)  # fmt: skip


def compare(request: Request) -> Response:
    """The comparison that the address names by trial ids; more can be added to it."""
    dashboard = dashboard_of(request)
    params = request.query_params
    ids = _ids(params.getlist("id"))
    if params.get("add_number"):
        return _with_one_more(dashboard, ids, params.get("add_study", ""), params["add_number"])
    columns = _columns(dashboard, ids)
    only = params.get("only") == "differences"
    groups = [
        ("Result", [_row(item, columns) for item in RESULTS]),
        ("Configuration", [_row(item, columns) for item in _knobs()]),
        ("Study", [_row(item, columns) for item in CONTEXT]),
        ("Run", [_row(item, columns) for item in RUNS]),
    ]
    if only:
        groups = [(name, [row for row in rows if row.differs]) for name, rows in groups]
    return page(
        request,
        "compare.html",
        columns=columns,
        groups=[(name, rows) for name, rows in groups if rows],
        ids=[column.summary.trial.id for column in columns],
        num_missing=len(ids) - len(columns),
        only=only,
        studies=[(study.id, study.name) for study in reversed(dashboard.store.list_studies())],
        most=MOST,
    )


def _ids(texts: Sequence[str]) -> list[int]:
    ids = []
    for text in dict.fromkeys(texts):
        if not (text.isascii() and text.isdigit() and len(text) < 19):
            raise PageProblem(400, f"{text!r} is no trial's id", "choose trials in a list of them")
        ids.append(int(text))
    if len(ids) > MOST:
        raise PageProblem(400, f"{len(ids)} trials do not fit side by side", f"{MOST} do")
    return ids


def _with_one_more(dashboard: Dashboard, ids: list[int], study: str, number: str) -> Response:
    """The address of the comparison with a trial that was named by study and number."""
    study_id, trial_number = _ids([study, number])[0], _ids([number])[0]
    try:
        found = dashboard.store.trial(study_id, trial_number)
    except NotFound as error:
        raise PageProblem(404, f"The study has no trial {trial_number}", error.hint) from None
    more = list(dict.fromkeys([*ids, found.trial.id]))
    return RedirectResponse(f"/compare?{urlencode([('id', key) for key in more])}", 303)


def _columns(dashboard: Dashboard, ids: list[int]) -> list[Column]:
    studies: dict[int, StudyRecord] = {}
    columns = []
    for summary in trials_by_id(dashboard.store, ids):
        key = summary.trial.study_id
        if key not in studies:
            studies[key] = dashboard.study(key)
        others = [("id", other) for other in ids if other != summary.trial.id]
        columns.append(
            Column(summary, studies[key], label_of(summary), f"/compare?{urlencode(others)}")
        )
    return columns


def _knobs() -> list[Quantity]:
    def reader(name: str) -> Callable[[Column], Any]:
        return lambda column: column.summary.trial.knobs.get(name)

    return [
        Quantity(knob.name, knob.doc, reader(knob.name), value, counts_absent=True)
        for knob in KNOBS
    ]


def _row(quantity: Quantity, columns: Sequence[Column]) -> Row:
    found = [quantity.read(column) for column in columns]
    numbers = [
        quantity.sign * item
        for item in found
        if quantity.sign and isinstance(item, int | float) and math.isfinite(item)
    ]
    best = max(numbers) if len(set(numbers)) > 1 else None
    return Row(
        label=quantity.label,
        about=quantity.about,
        cells=[quantity.show(item) for item in found],
        differs=len({repr(item) for item in found if quantity.counts_absent or item is not None})
        > 1,
        best=frozenset(
            place
            for place, item in enumerate(found)
            if best is not None and item is not None and quantity.sign * item == best
        ),
    )
