"""The list of a study's trials: filters and order live in the address."""

from dataclasses import dataclass
from typing import Any

from starlette.requests import Request
from starlette.responses import Response

from results_db import study_facts
from results_db.knobs import KNOBS
from results_db.records import Purpose, TrialStatus
from results_db.trial_lists import count_trials, trial_page
from tuner.web.app.dashboard import Dashboard, dashboard_of, id_of
from tuner.web.app.rendering import is_fragment, page
from tuner.web.app.studies import is_running
from tuner.web.app.trial_query import TrialQuery, knob_text, read_query

PAGE_SIZE = 50
COLUMNS = (
    ("number", "trial", "number"),
    ("status", "status", "text"),
    ("tokens_per_s", "throughput (tokens/s)", "number"),
    ("step_time_s", "step time", "number"),
    ("mfu", "MFU", "number"),
    ("peak_memory_bytes", "peak memory", "number"),
    ("wall_s", "wall clock", "number"),
    ("config", "configuration", "text"),
)
"""Sort key, heading and kind of the columns."""


@dataclass(frozen=True)
class Choice:
    """One filter with the values that it may take."""

    name: str
    label: str
    help: str
    values: list[tuple[str, str]]
    """As they stand in the address, and in words."""


def trials(request: Request) -> Response:
    """A page of trials; for htmx the table alone."""
    dashboard = dashboard_of(request)
    study = dashboard.study(id_of(request))
    query = read_query(study.id or 0, request.query_params)
    found = trial_page(dashboard.store, query.wanted, query.order, query.cursor, PAGE_SIZE)
    context: dict[str, Any] = {
        "study": study,
        "query": query,
        "found": found,
        "total": count_trials(dashboard.store, query.wanted),
        "columns": COLUMNS,
        "has_failures": any(line.failure_kind for line in found.lines),
        "is_running": is_running(study),
        "best": max((line.tokens_per_s or 0.0 for line in found.lines), default=0.0) or 1.0,
    }
    if is_fragment(request):
        return page(request, "_trials.html", **context)
    return page(request, "trials.html", **context, choices=_choices(dashboard, query))


def _choices(dashboard: Dashboard, query: TrialQuery) -> list[Choice]:
    """The filters that can tell this study's trials apart, and those that are set."""
    study_id = query.wanted.study_id
    counts = dashboard.pulse(study_id).counts
    statuses = [status.value for status in TrialStatus if status.value in counts]
    kinds = study_facts.failure_kinds(dashboard.store, study_id)
    found = [
        _plain("status", "status", "What became of the trial", statuses, query),
        _plain("purpose", "purpose", "Why it was run", [item.value for item in Purpose], query),
        _plain("failure", "failure", "Kind of the failure that ended it", kinds, query),
    ]
    values = dashboard.knob_values(study_id, sum(counts.values()))
    for knob in KNOBS:
        known = values.get(knob.name, [])
        # a value of the address that no trial has stays visible, or it could not be taken back
        texts = [knob_text(value) for value in known]
        texts += [text for text in query.values(knob.name) if text not in texts]
        if texts:
            pairs = [(text, _in_words(text)) for text in texts]
            found.append(Choice(knob.name, knob.name, knob.doc, pairs))
    return [choice for choice in found if choice.values]


def _plain(name: str, label: str, about: str, words: list[str], query: TrialQuery) -> Choice:
    words = words + [word for word in query.values(name) if word not in words]
    return Choice(name, label, about, [(word, word) for word in words])


def _in_words(text: str) -> str:
    return {"true": "yes", "false": "no", "none": "default"}.get(text, text)
