"""`Study`: a stored study, open for reading."""

import json
from collections.abc import Collection, Iterator
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Self

from results_db import queries
from results_db.frames import to_frame, view_frame
from results_db.records import (
    FailureRow,
    PredictionRow,
    RankRow,
    StepRow,
    StudyRecord,
    StudyStatus,
    TrialStatus,
    UntriedRow,
)
from results_db.store import Store
from search_spaces.cluster_spec import ClusterSpec
from search_spaces.model_spec import ModelSpec
from search_spaces.parallel_config import ParallelConfig
from search_spaces.training_spec import TrainingSpec
from tuner import registry
from tuner.api.ranking import Ranked, by_objective, by_speed
from tuner.config import StudyConfig, default_store_url, parse_study_text
from tuner.custom import Objective, ObjectiveFunction, objective_of
from tuner.errors import ConfigError, NothingFeasibleError
from tuner.ports import Export, Exporter, ExportRequest
from tuner.study import find_study, open_store
from tuner.trial import Trial, trial_of

if TYPE_CHECKING:
    import pandas as pd

BY_SPEED = "tokens_per_s"
_COUNT = "num_parameters"  # the store's own; it follows from the shape
ObjectiveChoice = ObjectiveFunction | str | None


class Study:
    """A study in a results database; iterating over it gives its trials by number.

    It shows the database as it is now: trials that end while it is open appear at the next call.
    Close it, or use it in a `with`.
    """

    def __init__(
        self, store: Store, record: StudyRecord, objective: ObjectiveChoice = None
    ) -> None:
        self._store = store
        self._id = record.id or 0
        self._given = objective

    @classmethod
    def open(
        cls,
        name: str | None = None,
        *,
        store: str | Path | None = None,
        objective: ObjectiveChoice = None,
    ) -> Self:
        """Open a stored study for reading.

        Args:
            name: its name or number; the newest one when left out.
            store: SQLAlchemy URL or path of a SQLite file; left out: `TUNER_STORE` or
                `tuner_runs/results.db`.
            objective: ranks the trials in place of the objective that the study names;
                `"tokens_per_s"` ranks by speed whatever it names.

        Raises:
            ConfigError: no such study.
            StorageProblem: the database cannot be read.
        """
        opened = open_store(str(store or default_store_url()), read_only=True)
        try:
            return cls(opened, find_study(opened, name), objective)
        except BaseException:
            opened.close()
            raise

    @property
    def record(self) -> StudyRecord:
        """Its row: status, model, cluster, recipe, provenance, as stored now."""
        return self._store.get_study(self._id)

    @property
    def name(self) -> str:
        """Its unique name."""
        return self.record.name

    @property
    def status(self) -> StudyStatus:
        """Running, interrupted or completed."""
        return self.record.status

    @property
    def store(self) -> Store:
        """The open database, for what this class has no method for."""
        return self._store

    @cached_property
    def config(self) -> StudyConfig:
        """The resolved study file."""
        record = self.record
        return parse_study_text(record.resolved_config, f"the stored study {record.name!r}")

    @cached_property
    def objective(self) -> Objective | None:
        """What ranks its trials; none for tokens a second.

        Raises:
            ConfigError: the study names a function that cannot be loaded here.
        """
        given = self._given
        if isinstance(given, str):
            if given == BY_SPEED:
                return None
            raise ConfigError(f"objective {given!r} is not a function", hint=f"or say {BY_SPEED!r}")
        # a foreign tool's study has a config of its own, which names no objective
        if given is None and self.record.objective_metric == BY_SPEED:
            return None
        try:
            return objective_of(self.config, given)
        except ConfigError as error:
            hint = f"open the study with objective=..., or with objective={BY_SPEED!r}"
            raise ConfigError(error.message, hint) from error

    def __iter__(self) -> Iterator[Trial]:
        """Its trials by number, whatever became of them."""
        return iter(self.trials())

    def __len__(self) -> int:
        """Number of its trials."""
        return len(self._store.trials(self._id))

    def trials(self, statuses: Collection[TrialStatus | str] | None = None) -> list[Trial]:
        """Trials by number, all or those of some statuses (`["completed"]`).

        Raises:
            ConfigError: there is no such status.
        """
        if statuses is None:
            return [trial_of(row) for row in self._store.trials(self._id)]
        known = [status.value for status in TrialStatus]
        for status in statuses:
            if status not in known:
                raise ConfigError(
                    f"a trial is never {str(status)!r}", hint=f"it is {', '.join(known)}"
                )
        chosen = [TrialStatus(status) for status in statuses]
        return [trial_of(row) for row in self._store.trials(self._id, chosen)]

    def trial(self, number: int) -> Trial:
        """One trial by its number; raises `NotFound`."""
        return trial_of(self._store.trial(self._id, number))

    def leaderboard(self, top: int | None = None) -> list[Ranked]:
        """Configurations with a number, the best first; all, or the `top` of them.

        Raises:
            ConfigError: the study's objective cannot be loaded, or failed for one of the trials.
        """
        rows = queries.leaderboard(self._store, self._id)
        objective = self.objective
        if objective is None:
            return by_speed(rows)[:top]
        return by_objective(rows, self.trials([TrialStatus.COMPLETED]), objective)[:top]

    @property
    def best(self) -> Ranked | None:
        """The first of the leaderboard; none while no trial gave a number."""
        rows = self.leaderboard(1)
        return rows[0] if rows else None

    @property
    def baseline(self) -> Ranked | None:
        """The configuration that the study was told to compare with, if it has one that ran."""
        keys = {trial.config for trial in self if trial.purpose == "baseline"}
        return next((row for row in self.leaderboard() if row.config in keys), None)

    @property
    def speedup(self) -> float | None:
        """Tokens a second of the best over those of the baseline; none without both."""
        best, baseline = self.best, self.baseline
        return best.tokens_per_s / baseline.tokens_per_s if best and baseline else None

    def untried(self) -> list[UntriedRow]:
        """Legal points that were not run, with the rule and the reason.

        Those that the user's constraint refused are there from the start, the others once the
        study has ended.
        """
        return self._store.untried(self._id)

    def predictions(self) -> list[PredictionRow]:
        """What the cost model said of every configuration before it ran."""
        return self._store.predictions(self._id)

    def steps(self, trial: Trial | int) -> list[StepRow]:
        """Steps of a trial in order, warm-up included."""
        return self._store.steps(self._key(trial))

    def ranks(self, trial: Trial | int) -> list[RankRow]:
        """Ranks of a trial in order: place, layers, memory, time by part."""
        return self._store.ranks(self._key(trial))

    def failures(self, trial: Trial | int) -> list[FailureRow]:
        """Failures of a trial, the cause first."""
        return self._store.failures(self._key(trial))

    def _key(self, trial: Trial | int) -> int:
        found = self.trial(trial) if isinstance(trial, int) else trial
        assert found.id is not None  # noqa: S101 -- it was read from the store
        return found.id

    def to_frame(self, what: str = "trials") -> "pd.DataFrame":
        """A pandas frame: `trials` with their knobs and numbers, or a view of the database.

        Args:
            what: `trials`, or a view such as `leaderboard`, `trial_summary`, `knob_effects`,
                `pareto`, `failures` or `predicted_vs_measured`.

        Raises:
            NotFound: there is no such view.
        """
        if what == "trials":
            return to_frame(self._store.trials(self._id))
        return view_frame(self._store, what, self.name)

    @cached_property
    def model(self) -> ModelSpec:
        """What is trained."""
        values = {key: value for key, value in self.record.model.items() if key != _COUNT}
        return ModelSpec.model_validate_json(json.dumps(values))

    @cached_property
    def training(self) -> TrainingSpec:
        """The recipe."""
        return TrainingSpec.model_validate_json(json.dumps(dict(self.record.training)))

    @cached_property
    def cluster(self) -> ClusterSpec:
        """The machines."""
        return ClusterSpec.model_validate_json(json.dumps(dict(self.record.cluster)))

    def export(
        self,
        to: str,
        which: Trial | Ranked | ParallelConfig | None = None,
        *,
        nearest: bool = False,
    ) -> Export:
        """A configuration in the words of a trainer: files by name, and notes.

        Args:
            to: an exporter's name (`tuner export --list`).
            which: the configuration; left out: the best one.
            nearest: change what the trainer cannot express to the nearest that it can.

        Raises:
            NotExpressible: the trainer has no words for it.
            NothingFeasibleError: no trial of the study gave a number.
        """
        exporter: Exporter = registry.load("exporters", to)()
        chosen = self.best if which is None else which
        if chosen is None:
            raise NothingFeasibleError(f"no trial of study {self.name!r} gave a number")
        request = ExportRequest(
            model=self.model,
            training=self.training,
            cluster=self.cluster,
            config=chosen if isinstance(chosen, ParallelConfig) else chosen.config,
            origin=f"From study {self.name}.",
        )
        return exporter.export(exporter.nearest(request).request if nearest else request)

    def close(self) -> None:
        """Give up the database's connections."""
        self._store.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *exception: object) -> None:
        self.close()

    def __repr__(self) -> str:
        record = self.record
        return f"<Study {record.name!r}: {record.status.value}, {len(self)} trials>"

    def _repr_html_(self) -> str:
        """The leaderboard, as notebooks show it."""
        import pandas as pd

        rows = [
            {
                "#": row.position,
                "configuration": row.label,
                "score": row.score,
                "tokens/s": row.tokens_per_s,
                "step, s": row.step_time_s,
                "memory, GiB": row.peak_memory_bytes / 2**30,
                "trial": row.trial_number,
            }
            for row in self.leaderboard(10)
        ]
        return str(pd.DataFrame(rows).to_html(index=False, float_format="{:.4g}".format))
