"""Run studies from a program: `run`, `resume`, and the points that a study would search."""

import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any, Unpack, cast

from tuner.api.observers import as_observer
from tuner.api.options import RunOptions, StudyOptions, describe
from tuner.api.study import Study
from tuner.config import StudyConfig, default_store_url
from tuner.controller import run_study
from tuner.custom import ConstraintFunction, ObjectiveFunction, UserFunctions
from tuner.parts import check_launcher, check_searcher
from tuner.ports import Candidate, Launcher, Searcher, StudyObserver
from tuner.study import Study as RunnableStudy
from tuner.study import build_candidates, create_study, open_study, resolve

SearcherFactory = Callable[..., Searcher]
"""Called as `factory(candidates, seed=..., **searcher_options)`, as the searchers' classes are."""

Observer = StudyObserver | Callable[[str], object] | None
"""An observer, or a function such as `print` that is given a line for every trial that ends."""


def run(
    model: str | Path | StudyConfig | None = None,
    *,
    study_file: str | Path | None = None,
    objective: ObjectiveFunction | None = None,
    constraint: ConstraintFunction | None = None,
    searcher: str | SearcherFactory | None = None,
    launcher: str | Launcher | None = None,
    observer: Observer = None,
    stop: threading.Event | None = None,
    **options: Unpack[RunOptions],
) -> Study:
    """Search the fastest configuration of a model, and give the stored study.

    Blocks until the budget or the space is used up, or `stop` is set. Where no trial gave a
    number, the study's `best` is none and its trials say why.

    Args:
        model: a preset's name, the path of a Hugging Face `config.json`, or what `describe` gave.
        study_file: a TOML study file that the other arguments change.
        objective: what trials are ranked by and the search is after, in place of tokens a second:
            a function of a measured `Trial` that gives a positive number. Switches early stopping
            off, since the first steps of a trial say nothing of it.
        constraint: refuses legal configurations: a function of a `ParallelConfig` and its `Setting`
            that gives the reason, or none. The reasons are stored with the points (`untried`).
        searcher: what proposes configurations: a name, or a class such as the searchers are.
        launcher: what runs trials: a name, or an object with the methods of `Launcher`.
        observer: is shown what happens; `print` prints a line for every trial that ends.
        stop: set it from another thread to stop in good order; `resume` goes on.
        **options: as in `RunOptions`.

    Raises:
        ConfigError: an argument is wrong; one sentence says which.
        NothingFeasibleError: no configuration is legal.
        EnvironmentProblem: trials cannot be run on this machine.
        StorageProblem: the database cannot be used.
    """
    named = cast("StudyOptions", {**options})
    if searcher is not None:
        named["searcher"] = _name_of(searcher)
    if launcher is not None:
        named["launcher"] = _name_of(launcher)
    config = describe(model, study_file=study_file, **named)
    if searcher is None or isinstance(searcher, str):
        check_searcher(config)
    if launcher is None or isinstance(launcher, str):
        check_launcher(config)
    study = create_study(config, UserFunctions(objective, constraint))
    return _carry_out(study, objective, searcher, launcher, observer, stop)


def resume(
    name: str | None = None,
    *,
    store: str | Path | None = None,
    max_trials: int | None = None,
    objective: ObjectiveFunction | None = None,
    constraint: ConstraintFunction | None = None,
    searcher: SearcherFactory | None = None,
    launcher: Launcher | None = None,
    observer: Observer = None,
    stop: threading.Event | None = None,
) -> Study:
    """Go on with a stored study; what has finished is never run again.

    Args:
        name: its name or number; the newest one when left out.
        store: SQLAlchemy URL or path of a SQLite file; left out: `TUNER_STORE` or the default.
        max_trials: a new budget of configurations.
        objective: the function that `run` was given, where the study cannot load it by its name.
        constraint: likewise.
        searcher: likewise, the class that `run` was given.
        launcher: likewise, an object as `run` was given.
        observer: as in `run`.
        stop: as in `run`.

    Raises:
        ConfigError: no such study, or a function of it has to be passed again.
    """
    functions = UserFunctions(objective, constraint)
    study = open_study(str(store or default_store_url()), name, functions)
    if max_trials is not None:
        search = study.config.search.model_copy(update={"max_trials": max_trials})
        study.config = study.config.model_copy(update={"search": search})
    return _carry_out(study, objective, searcher, launcher, observer, stop)


def candidates(
    model: str | Path | StudyConfig | None = None,
    *,
    study_file: str | Path | None = None,
    constraint: ConstraintFunction | None = None,
    **options: Unpack[StudyOptions],
) -> list[Candidate]:
    """The legal points of a study with the cost model's word on each; runs and stores nothing.

    Args:
        model: as in `run`.
        study_file: as in `run`.
        constraint: as in `run`.
        **options: as in `StudyOptions`.

    Raises:
        ConfigError: an argument is wrong.
        NothingFeasibleError: no configuration is legal.
    """
    config = describe(model, study_file=study_file, **options)
    inputs = resolve(config, UserFunctions(None, constraint))
    return build_candidates(
        inputs.points, inputs.model, inputs.config.training, inputs.cluster,
        is_kernel=inputs.config.trainer is None,
    )  # fmt: skip


def _name_of(part: Any) -> str:
    """The name that a study stores for a searcher or launcher."""
    return part if isinstance(part, str) else str(getattr(part, "name", type(part).__name__))


def _carry_out(
    study: RunnableStudy,
    objective: ObjectiveFunction | None,
    searcher: str | SearcherFactory | None,
    launcher: str | Launcher | None,
    observer: Observer,
    stop: threading.Event | None,
) -> Study:
    search = study.config.search
    proposer = None
    if searcher is not None and not isinstance(searcher, str):
        proposer = searcher(study.candidates, seed=search.seed, **dict(search.options))
    runner = None if isinstance(launcher, str) else launcher
    try:
        run_study(study, as_observer(observer), stop, searcher=proposer, launcher=runner)
    except BaseException:
        study.store.close()
        raise
    return Study(study.store, study.record, objective)
