"""What a report says besides its figures, as plain values: the same for HTML, Markdown and JSON."""

from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any

from results_db.queries import LeaderboardRow
from tuner import __version__
from tuner.searchers.sensitivity import KnobImportance
from tuner.web.figures.failures import cause_of
from tuner.web.figures.predictions import ModelError, comparisons, model_errors
from tuner.web.gains import Gain, gains_of
from tuner.web.importances import importances
from tuner.web.study_data import StudyData, TrialPoint, UntriedGroup

BOARD_ROWS = 15
_MOST_FAILURES = 12


@dataclass(frozen=True)
class FailureGroup:
    """Trials that ended for one cause in one phase."""

    cause: str
    phase: str
    count: int
    trial_number: int
    """The first of them."""
    label: str
    message: str
    """Of that one, in the rank's own words."""


@dataclass(frozen=True, kw_only=True)
class ReportFacts:
    """All tables and numbers of a report; `_s`, `_bytes` and tokens/s."""

    made_at: datetime
    tuner_version: str
    study: Mapping[str, str]
    """Facts for people by name, units in the words."""
    trials_by_status: Mapping[str, int]
    winner: LeaderboardRow | None
    winner_knobs: Mapping[str, Any]
    """Knobs of the winner that are not at their defaults."""
    num_tied: int
    """Configurations in the first position, the winner too."""
    gains: Sequence[Gain]
    board: Sequence[LeaderboardRow]
    num_configs: int
    baseline: LeaderboardRow | None
    median_tokens_per_s: float | None
    model_errors: Sequence[ModelError]
    importances: Sequence[KnobImportance]
    failures: Sequence[FailureGroup]
    untried: Sequence[UntriedGroup]
    provenance: Sequence[tuple[str, str]]
    resolved_config: str
    is_simulated: bool


def report_facts(data: StudyData) -> ReportFacts:
    """Everything that a report says of a study in words and tables."""
    statuses: dict[str, int] = defaultdict(int)
    for trial in data.trials:
        statuses[trial.status] += 1
    return ReportFacts(
        made_at=datetime.now(UTC),
        tuner_version=__version__,
        study=_study_facts(data),
        trials_by_status=dict(sorted(statuses.items())),
        winner=data.best,
        winner_knobs=_changed_knobs(data.best),
        num_tied=sum(row.position == 1 for row in data.leaderboard),
        gains=gains_of(data),
        board=data.leaderboard[:BOARD_ROWS],
        num_configs=len(data.leaderboard),
        baseline=data.baseline,
        median_tokens_per_s=data.median_tokens_per_s,
        model_errors=model_errors(comparisons(data)),
        importances=importances(data),
        failures=_failures(data),
        untried=data.untried,
        provenance=_flat(_without_refusals(data.study.provenance)),
        resolved_config=data.study.resolved_config,
        is_simulated=data.is_simulated,
    )


def _changed_knobs(row: LeaderboardRow | None) -> dict[str, Any]:
    from results_db.knobs import KNOBS

    if row is None:
        return {}
    return {k.name: row.knobs[k.name] for k in KNOBS if row.knobs[k.name] != k.default}


def _study_facts(data: StudyData) -> dict[str, str]:
    study = data.study
    model, cluster, training = study.model, study.cluster, study.training
    parameters = model.get("num_parameters")
    size = f", {parameters:,} parameters" if isinstance(parameters, int) else ""
    nodes, each = cluster.get("num_nodes"), cluster.get("devices_per_node")
    many = f", {nodes:,} x {each} devices" if nodes and each else ""
    limit = data.memory_limit_bytes
    facts = {
        "model": f"{model.get('name', '?')}{size}",
        "cluster": f"{cluster.get('name', '?')}{many}",
        "device": str(cluster.get("device_name") or cluster.get("device_kind") or ""),
        "memory limit of a rank": f"{limit / 2**30:,.3g} GiB" if limit else "",
        "sequence length": _with_unit(training.get("sequence_length"), "tokens"),
        "global batch": _with_unit(training.get("global_batch_size"), "sequences a step"),
        "precision": str(training.get("dtype", "")),
        "searcher": f"{study.searcher}, seed {study.seed}",
        "launcher": study.launcher,
        "legal points": _with_unit(study.num_legal_points, "configurations"),
        "status": study.status.value,
        "started": _time(study.created_at),
        "ended": _time(study.finished_at),
    }
    return {name: words for name, words in facts.items() if words}


def _with_unit(value: Any, unit: str) -> str:
    return f"{value:,} {unit}" if isinstance(value, int) else ""


def _time(moment: datetime | None) -> str:
    return "" if moment is None else moment.astimezone(UTC).strftime("%Y-%m-%d %H:%M UTC")


def _failures(data: StudyData) -> list[FailureGroup]:
    groups: dict[tuple[str, str], list[TrialPoint]] = defaultdict(list)
    for trial in data.trials:
        if trial.is_finished and trial.tokens_per_s is None:
            cause = cause_of(trial.failure_kind, trial.status)
            groups[cause, trial.failure_phase or ""].append(trial)
    found = [
        FailureGroup(
            cause, phase, len(trials), trials[0].number, data.label(trials[0].config_key),
            " ".join((trials[0].failure_message or "").split())[:400],
        )
        for (cause, phase), trials in groups.items()
    ]  # fmt: skip
    return sorted(found, key=lambda group: -group.count)[:_MOST_FAILURES]


def _without_refusals(facts: Mapping[str, Any]) -> dict[str, Any]:
    """Provenance less what has a section of its own."""
    return {name: value for name, value in facts.items() if name != "refusals"}


def _flat(facts: Mapping[str, Any], head: str = "") -> list[tuple[str, str]]:
    """Nested facts as lines of name and text."""
    lines: list[tuple[str, str]] = []
    for name, value in facts.items():
        title = f"{head}{name}"
        if isinstance(value, Mapping):
            lines += _flat(value, f"{title} ")
        elif isinstance(value, list | tuple):
            lines.append((title, " ".join(map(str, value))))
        elif value is not None:
            lines.append((title, str(value)))
    return [(name, text) for name, text in lines if text]
