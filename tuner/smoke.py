"""The smoke search: propose, run 2 ranks, measure, store and rank, all for real, in under a minute.

For other people's CI: it fails loudly, naming the link that is broken.
"""

import tempfile
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import TypeVar

from results_db import queries
from results_db.records import Purpose, StudyStatus, TrialStatus
from tuner.config import StudyConfig, study_config_from
from tuner.controller import run_study
from tuner.errors import TunerError
from tuner.ports import StudyObserver
from tuner.study import Study, create_study

Result = TypeVar("Result")
NUM_RANKS = 2
NUM_TRIALS = 3


class SmokeError(TunerError):
    """A link of the chain is broken; the message names it."""


@dataclass
class SmokeReport:
    """What each link did, in order, with the time it took."""

    links: list[tuple[str, float]] = field(default_factory=list)
    best: str = ""
    tokens_per_s: float = 0.0

    @property
    def total_s(self) -> float:
        """Wall clock of the whole chain."""
        return sum(seconds for _, seconds in self.links)


@dataclass(frozen=True, kw_only=True)
class SmokeOptions:
    """What a user may change of the smoke search."""

    launcher: str = "ray"
    searcher: str = "cbo"
    store: str | None = None
    """Database to keep the study in, for `tuner compare`; none: a temporary one."""
    name: str = "smoke"
    repeats: int = 0
    """Further measurements of each of the two leaders at most."""


def smoke_config(store: str, options: SmokeOptions) -> StudyConfig:
    """The study that the smoke search runs: a tiny model on two ranks."""
    return study_config_from(
        {
            "name": options.name,
            "model": {"source": "gpt2-tiny"},
            "training": {"sequence_length": 32, "global_batch_size": 8},
            "cluster": {"devices": NUM_RANKS},
            "search": {
                "searcher": options.searcher,
                "max_trials": NUM_TRIALS,
                "confirm_top": 2 if options.repeats else 0,
                "confirm_repeats": options.repeats,
                "check_drift": False,
                "early_stop": False,
            },
            "measure": {"warmup_steps": 1, "measured_steps": 3, "deadline_s": 40.0, "hang_s": 30.0},
            "launcher": {"name": options.launcher},
            "store": {"url": store},
        }
    )


def run_smoke(observer: StudyObserver, options: SmokeOptions | None = None) -> SmokeReport:
    """Run the chain in a temporary folder that is removed afterwards, or in a store that is kept.

    Raises:
        SmokeError: a link is broken; the message says which and why.
    """
    options = options or SmokeOptions()
    report = SmokeReport()
    with tempfile.TemporaryDirectory(prefix="tuner-smoke-") as name:
        store = options.store or f"sqlite:///{(Path(name) / 'smoke.db').as_posix()}"
        config = smoke_config(store, options)
        study = _timed(report, "propose", lambda: create_study(config))
        outcome = _timed(report, "run and measure", lambda: run_study(study, observer))
        if outcome.status is not StudyStatus.COMPLETED:
            raise SmokeError(f"the study did not finish: {outcome.reason}")
        _timed(report, "store", lambda: _check_rows(study))
        _timed(report, "rank", lambda: _check_ranking(study, report))
        study.store.close()
    return report


def _timed(report: SmokeReport, link: str, step: Callable[[], Result]) -> Result:
    started_s = time.perf_counter()
    try:
        result = step()
    except SmokeError:
        raise
    except TunerError as error:
        raise SmokeError(f"{link}: {error.message}", error.hint) from error
    report.links.append((link, time.perf_counter() - started_s))
    return result


def _check_rows(study: Study) -> None:
    rows = study.store.trials(study.id)
    searched = [row for row in rows if row.trial.purpose is Purpose.SEARCH]
    if len(searched) != NUM_TRIALS:
        raise SmokeError(f"store: {len(searched)} trials stored in place of {NUM_TRIALS}")
    for row in rows:
        if row.trial.status is not TrialStatus.COMPLETED or row.measurement is None:
            said = f"{row.failure.kind}: {row.failure.message}" if row.failure else "no reason"
            raise SmokeError(f"measure: trial {row.trial.number} is {row.trial.status}; {said}")
        if len(study.store.ranks(row.trial.id or 0)) != NUM_RANKS:
            raise SmokeError(f"measure: trial {row.trial.number} did not run on {NUM_RANKS} ranks")
        if not row.measurement.step_time_s > 0 or not row.measurement.tokens_per_s > 0:
            raise SmokeError(f"measure: trial {row.trial.number} has no positive speed")


def _check_ranking(study: Study, report: SmokeReport) -> None:
    rows = queries.leaderboard(study.store, study.id)
    order = [(row.position, -row.tokens_per_s) for row in rows]
    if len(rows) != NUM_TRIALS or order != sorted(order):
        speeds = [row.tokens_per_s for row in rows]
        raise SmokeError(f"rank: the leaderboard is not in order of speed: {speeds}")
    report.best, report.tokens_per_s = rows[0].config_key, rows[0].tokens_per_s
