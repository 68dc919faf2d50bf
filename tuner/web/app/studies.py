"""The pages of all studies and of one study."""

import hashlib
import shlex
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from typing import Any

from starlette.requests import Request
from starlette.responses import Response

from results_db import study_facts
from results_db.queries import LeaderboardRow, best, leaderboard
from results_db.records import StudyRecord, StudyStatus, TrialStatus
from results_db.study_facts import Pulse, Reference
from tuner import formats
from tuner.web.app.dashboard import Dashboard, dashboard_of, id_of
from tuner.web.app.rendering import is_fragment, page
from tuner.web.figures import FIGURES

TOP = 10
"""Rows of the leaderboard on a study's page."""
SILENT = timedelta(minutes=2)
"""A controller that gave no sign of life for so long is said to be silent."""
WIDE = frozenset({"parallel-coordinates", "timeline"})
"""Figures that take the whole width."""
BAR = ("completed", "pruned", "infeasible", "failed", "cancelled", "running", "queued")
"""Statuses in the order of the progress bar."""


@dataclass(frozen=True)
class StudyLine:
    """One study in the list of studies."""

    record: StudyRecord
    counts: dict[str, int]
    best: LeaderboardRow | None

    @property
    def num_trials(self) -> int:
        """Trials of any status."""
        return sum(self.counts.values())


def index(request: Request) -> Response:
    """All studies, newest first."""
    dashboard = dashboard_of(request)
    store = dashboard.store
    counts = study_facts.counts_by_study(store)
    records = reversed(store.list_studies())
    lines = [
        StudyLine(record, counts.get(record.id or 0, {}), best(store, record.id or 0))
        for record in records
    ]
    template = "_studies.html" if is_fragment(request) else "studies.html"
    is_live = any(is_running(line.record) for line in lines)
    return page(request, template, lines=lines, is_live=is_live, num_devices=num_devices)


def study(request: Request) -> Response:
    """One study: how far it is, its leaderboard, its figures."""
    dashboard = dashboard_of(request)
    record = dashboard.study(id_of(request))
    context: dict[str, Any] = live_context(dashboard, record)
    if is_fragment(request):
        return page(request, "_study_live.html", **context)
    return page(
        request,
        "study.html",
        **context,
        figures=FIGURES.values(),
        wide=WIDE,
        num_devices=num_devices(record),
        export_command=export_command(dashboard, record, "best"),
        provenance=provenance(record),
    )


def live_context(dashboard: Dashboard, record: StudyRecord) -> dict[str, Any]:
    """What changes on a study's page while it runs."""
    study_id = record.id or 0
    now = dashboard.pulse(study_id)
    board = leaderboard(dashboard.store, study_id, limit=TOP)
    compared = study_facts.reference(dashboard.store, study_id)
    return {
        "study": record,
        "pulse": now,
        "board": board,
        "reference": compared,
        "bar": progress_bar(record, now),
        "ties": {row.position for row in board if _shares(row, board)},
        "is_running": is_running(record),
        "is_silent": is_silent(record),
        "announcement": announcement(now, board, compared),
        "change": version_of(now),
    }


def _shares(row: LeaderboardRow, board: list[LeaderboardRow]) -> bool:
    return sum(other.position == row.position for other in board) > 1


def is_running(record: StudyRecord) -> bool:
    """Whether the study's controller has not said that it stopped."""
    return record.status is StudyStatus.RUNNING


def is_silent(record: StudyRecord) -> bool:
    """Whether a running study's controller has not been heard of lately."""
    if not is_running(record) or record.lease is None:
        return False
    return datetime.now(UTC) - record.lease.heartbeat_at > SILENT


def version_of(pulse: Pulse) -> str:
    """A short name of a study's state; equal while nothing changed."""
    return hashlib.sha256(repr(pulse).encode()).hexdigest()[:16]


@dataclass(frozen=True)
class Segment:
    """A part of the progress bar, in per cent of its width."""

    status: str
    count: int
    start: float
    width: float


def progress_bar(record: StudyRecord, pulse: Pulse) -> list[Segment]:
    """Trials by status against the study's budget, or against each other without one."""
    # repeats and retries come on top of the budget
    total = max(pulse.num_trials, record.max_trials or 0) or 1
    found, start = [], 0.0
    for status in BAR:
        count = pulse.counts.get(status, 0)
        if count:
            width = 100 * count / total
            found.append(Segment(status, count, round(start, 3), round(width, 3)))
            start += width
    return found


def announcement(pulse: Pulse, board: list[LeaderboardRow], reference: Reference) -> str:
    """One sentence on the state, for screen readers."""
    lost = sum(
        count
        for status, count in pulse.counts.items()
        if TrialStatus(status).is_terminal and status != "completed"
    )
    words = f"{pulse.num_finished:,} trials finished, {lost:,} of them without a number."
    if not board:
        return f"{words} No configuration is measured yet."
    return (
        f"{words} Best of {reference.num_configs:,} configurations: "
        f"{formats.throughput(board[0].tokens_per_s)} tokens per second with {board[0].label}."
    )


def num_devices(record: StudyRecord) -> int | None:
    """Devices of the study's cluster."""
    nodes = record.cluster.get("num_nodes", 1)
    each = record.cluster.get("devices_per_node", 1)
    return nodes * each if isinstance(nodes, int) and isinstance(each, int) else None


def export_command(dashboard: Dashboard, record: StudyRecord, trial: str) -> str:
    """The command that writes a trial's configuration in a trainer's words."""
    words = ["tuner", "export", trial, f"--study={record.name}"]
    if dashboard.store.database.is_sqlite:
        words.append(f"--store={dashboard.store.url}")
    return shlex.join([*words, "--to=megatron-lm"])


def provenance(record: StudyRecord) -> list[tuple[str, str, str]]:
    """Topic, name and value of what the study was run with."""
    found = []
    for topic, facts in sorted(record.provenance.items()):
        named = facts if isinstance(facts, dict) else {"": facts}
        found += [(topic, str(name), _words(item)) for name, item in sorted(named.items())]
    return found


def _words(item: Any) -> str:
    import json

    return item if isinstance(item, str) else json.dumps(item, default=str, sort_keys=True)
