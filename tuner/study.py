"""Create a study, or open one to go on with: its inputs, legal points and place in the store."""

import datetime
import difflib
import json
import logging
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from itertools import islice
from pathlib import Path
from typing import Any

import results_db
from results_db.errors import ResultsDbError
from results_db.records import StudyRecord, UntriedRow
from results_db.store import Store
from search_spaces.cluster_spec import ClusterSpec
from search_spaces.cost_models.analytic import AnalyticCostModel
from search_spaces.counts import num_parameters
from search_spaces.model_spec import ModelSpec
from search_spaces.parallel_config import ParallelConfig
from search_spaces.space import SearchSpace
from search_spaces.training_spec import TrainingSpec
from search_spaces.untried import reason_untried, refusals
from tuner import provenance, registry
from tuner.config import StudyConfig, parse_study_text
from tuner.custom import Objective, UserConstraint, UserFunctions, constraint_of, objective_of
from tuner.errors import ConfigError, StorageProblem
from tuner.inputs import build_space, measured_peaks, resolve_cluster, resolve_model
from tuner.outcomes import observation_of
from tuner.paths import RUNS_FOLDER, StudyPaths, safe_name
from tuner.ports import Candidate, Launcher, Searcher
from tuner.searchers.prospects import Hopeless

log = logging.getLogger(__name__)


@dataclass
class Study:
    """A study that can be run: what was asked, the points that may answer it, where rows go."""

    record: StudyRecord
    config: StudyConfig
    model: ModelSpec
    training: TrainingSpec
    cluster: ClusterSpec
    space: SearchSpace
    candidates: list[Candidate]
    store: Store
    paths: StudyPaths
    objective: Objective | None = None
    """What ranks its trials; none for tokens a second."""
    by_key: dict[str, Candidate] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self.by_key = {candidate.config.config_key: candidate for candidate in self.candidates}

    @property
    def id(self) -> int:
        """The study's number in the database."""
        assert self.record.id is not None  # noqa: S101 -- given by the store
        return self.record.id

    @property
    def name(self) -> str:
        """The study's unique name."""
        return self.record.name

    @property
    def memory_limit_bytes(self) -> int | None:
        """What one rank may use on CPU, so that a trial cannot take the machine down."""
        if self.cluster.device_kind != "cpu":
            return None
        return self.config.launcher.memory_limit_bytes or self.cluster.memory_bytes

    @property
    def is_kernel(self) -> bool:
        """Whether trials run on the built-in kernel, and not on a trainer of the user's."""
        return self.config.trainer is None


def build_candidates(
    points: Sequence[ParallelConfig],
    model: ModelSpec,
    training: TrainingSpec,
    cluster: ClusterSpec,
    *,
    is_kernel: bool = True,
) -> list[Candidate]:
    """Every legal point with the cost model's word on it; none is dropped here.

    `is_kernel`: the built-in kernel runs them, and not a trainer of the user's.
    """
    cost_model = AnalyticCostModel(model, training, cluster, is_kernel=is_kernel)
    return [
        Candidate(
            config=point,
            step_time_s=estimate.step_time_s,
            step_time_low_s=estimate.step_time_low_s,
            step_time_high_s=estimate.step_time_high_s,
            step_time_parts_s=estimate.parts_s,
            peak_memory_bytes=estimate.peak_memory_bytes,
            peak_memory_parts_bytes=estimate.memory_parts_bytes,
            probability_fits=estimate.probability_fits(cluster.memory_bytes),
        )
        for point, estimate in zip(points, cost_model.estimate_many(points), strict=True)
    ]


def _new_name(model: ModelSpec, store: Store) -> str:
    stamp = datetime.datetime.now(datetime.UTC).strftime("%Y%m%d-%H%M%S")
    base = f"{safe_name(model.name)}-{stamp}"
    taken = {record.name for record in store.list_studies()}
    names = (base, *(f"{base}-{number}" for number in range(2, 1000)))
    return next(name for name in names if name not in taken)


def open_store(url: str, *, create: bool = False, read_only: bool = False) -> Store:
    """The results database at `url`; raises `StorageProblem` with the reason."""
    try:
        return results_db.open(url, create=create, read_only=read_only)
    except ResultsDbError as error:
        raise StorageProblem(error.message, error.hint) from error


def _check_baseline(config: StudyConfig, space: SearchSpace) -> None:
    baseline = config.search.baseline
    if baseline is None:
        return
    # what runs today may break the user's constraint, and is compared with all the same
    own = {rule.name for rule in space.setting.rules}
    if violations := [item for item in space.violations(baseline) if item.rule not in own]:
        raise ConfigError(f"search.baseline cannot run: {violations[0].message}")


@dataclass(frozen=True)
class Inputs:
    """What a study file comes to: specs in place of names, and the points that are legal."""

    config: StudyConfig
    model: ModelSpec
    cluster: ClusterSpec
    space: SearchSpace
    points: Sequence[ParallelConfig]
    objective: Objective | None
    refused: Sequence[UntriedRow]
    """The points that the user's constraint alone forbids."""


def resolve(config: StudyConfig, functions: UserFunctions | None = None) -> Inputs:
    """Look up everything that a study names and enumerate its space; stores nothing.

    `functions` are used in place of those that the config names.

    Raises:
        ConfigError: an input names something that does not exist.
        NothingFeasibleError: no point is legal.
    """
    functions = functions or UserFunctions()
    config = functions.named_in(config)
    model, cluster = resolve_model(config), resolve_cluster(config)
    config = config.with_device_defaults(cluster.device_kind, model.max_positions)
    return _enumerated(config, model, cluster, functions)


def _enumerated(
    config: StudyConfig, model: ModelSpec, cluster: ClusterSpec, functions: UserFunctions
) -> Inputs:
    objective = objective_of(config, functions.objective)
    constraint = constraint_of(config, functions.constraint)
    space, points = build_space(config, model, config.training, cluster, constraint)
    refused = [] if constraint is None else _refused_rows(constraint)
    return Inputs(config, model, cluster, space, points, objective, refused)


def _refused_rows(constraint: UserConstraint) -> list[UntriedRow]:
    return [
        UntriedRow(
            config_key=config.config_key,
            knobs=config.model_dump(mode="json"),
            rule=constraint.name,
            reason=reason,
        )
        for config, reason in constraint.refused.items()
    ]


def create_study(config: StudyConfig, functions: UserFunctions | None = None) -> Study:
    """Check everything, enumerate the space and write the study's row.

    `functions` are used in place of those that the config names.

    Raises:
        ConfigError: an input names something that does not exist.
        NothingFeasibleError: no point is legal.
        StorageProblem: the database cannot be used.
    """
    inputs = resolve(config, functions)
    _check_baseline(inputs.config, inputs.space)
    store = open_store(config.store.url, create=True)
    for name in config.search.warm_start:
        find_study(store, name)
    peaks = measured_peaks(inputs.cluster, {point.dtype for point in inputs.points})
    cluster = inputs.cluster.model_copy(update={"peak_flops_per_s": peaks})
    inputs = replace(inputs, cluster=cluster)
    record = _new_record(inputs, store)
    try:
        record = store.create_study(record)
    except ResultsDbError as error:
        raise ConfigError(error.message, error.hint) from error
    study = _assemble(record, inputs, store)
    store.add_untried(study.id, inputs.refused)
    return study


def _new_record(inputs: Inputs, store: Store) -> StudyRecord:
    config, model, cluster = inputs.config, inputs.model, inputs.cluster
    found = [asdict(item) for item in refusals(inputs.space)]
    return StudyRecord(
        name=config.name or _new_name(model, store),
        objective_metric=config.search.objective or "tokens_per_s",
        objective_direction=config.search.objective_direction,
        searcher=config.search.searcher,
        launcher=config.launcher.name,
        seed=config.search.seed,
        max_trials=config.search.max_trials,
        model=model.model_dump(mode="json") | {"num_parameters": num_parameters(model)},
        cluster=cluster.model_dump(mode="json"),
        training=config.training.model_dump(mode="json"),
        resolved_config=config.to_toml(),
        config_hash=config.config_hash(),
        num_legal_points=len(inputs.points),
        provenance=provenance.gather() | {"refusals": found},
    )


def _assemble(record: StudyRecord, inputs: Inputs, store: Store) -> Study:
    config, model, cluster = inputs.config, inputs.model, inputs.cluster
    return Study(
        record=record,
        config=config,
        model=model,
        training=config.training,
        cluster=cluster,
        space=inputs.space,
        candidates=build_candidates(
            inputs.points, model, config.training, cluster, is_kernel=config.trainer is None
        ),
        store=store,
        paths=StudyPaths.of(run_folder_of(config.store.url), record.name),
        objective=inputs.objective,
    )


def find_study(store: Store, name: str | None) -> StudyRecord:
    """The study called `name` (or of that number), or the newest one.

    Raises:
        ConfigError: there is no such study; the message lists those that exist.
    """
    records = store.list_studies()
    if not records:
        raise ConfigError("the database holds no study yet", hint="start one with `tuner run`")
    if name is None:
        return max(records, key=lambda record: record.id or 0)
    for record in records:
        if name in (record.name, str(record.id)):
            return record
    names = [record.name for record in records]
    close = difflib.get_close_matches(name, names, n=1)
    hint = f"did you mean {close[0]!r}? " if close else ""
    raise ConfigError(f"no study is called {name!r}", hint=f"{hint}known: {', '.join(names[-10:])}")


def _without(values: Mapping[str, Any], name: str) -> dict[str, Any]:
    return {key: value for key, value in values.items() if key != name}


def open_study(
    store_url: str, name: str | None = None, functions: UserFunctions | None = None
) -> Study:
    """Open a stored study to go on with it, on the inputs that were stored and no others.

    `functions` are used in place of those that the study names.

    Raises:
        ConfigError: no such study.
        StorageProblem: the database cannot be used.
    """
    store = open_store(store_url)
    record = find_study(store, name)
    config = parse_study_text(record.resolved_config, f"the stored study {record.name!r}")
    functions = functions or UserFunctions()
    config = functions.named_in(config)
    section = config.store.model_copy(update={"url": store_url})
    config = config.model_copy(update={"store": section})
    model = ModelSpec.model_validate_json(json.dumps(_without(record.model, "num_parameters")))
    cluster = ClusterSpec.model_validate_json(json.dumps(dict(record.cluster)))
    return _assemble(record, _enumerated(config, model, cluster, functions), store)


def untried_rows(
    study: Study,
    tried: Collection[str],
    reason: str,
    hopeless: Hopeless | None = None,
    at_once: int = 5000,
) -> Iterator[list[UntriedRow]]:
    """A row for every legal point that was not run, with the reason why; in lists of `at_once`.

    `hopeless`: the verdict that ended the study, if one did.
    """
    untried = (item for key, item in study.by_key.items() if key not in tried)
    left = hopeless.chances if hopeless else {}
    while some := list(islice(untried, at_once)):
        yield [_untried_row(study, item, reason, left.get(item.config.config_key)) for item in some]


def _untried_row(
    study: Study, candidate: Candidate, reason: str, chance: float | None
) -> UntriedRow:
    why = reason_untried(
        study.space,
        candidate.config,
        stop_reason=reason,
        chance=chance,
        peak_memory_bytes=candidate.peak_memory_bytes,
        probability_fits=candidate.probability_fits,
    )
    return UntriedRow(
        config_key=candidate.config.config_key,
        knobs=candidate.config.model_dump(mode="json"),
        rule=why.rule,
        reason=why.reason,
    )


def run_folder_of(store_url: str) -> Path:
    """Where trials write: beside a store that is a file, else under the current folder."""
    is_file = "://" not in store_url or store_url.startswith("sqlite:///")
    text = store_url.removeprefix("sqlite:///")
    if not is_file or text in ("", ":memory:") or text.startswith("file:"):
        return RUNS_FOLDER
    return Path(text).parent


def make_searcher(study: Study) -> Searcher:
    """The searcher that the study names, over its candidates."""
    search = study.config.search
    searcher: Searcher = registry.load("searchers", search.searcher)(
        warmed_candidates(study), seed=search.seed, **dict(search.options)
    )
    return searcher


def warmed_candidates(study: Study) -> list[Candidate]:
    """The study's candidates, their predictions corrected by the studies that it names for that.

    Raises:
        ConfigError: there is no study of that name in the database.
    """
    names = study.config.search.warm_start
    if not names:
        return study.candidates
    from tuner.searchers.warm_start import EarlierStudy, warm_start

    earlier = []
    for name in names:
        old = open_study(study.config.store.url, name)
        told = [observation_of(row) for row in old.store.trials(old.id)]
        old.store.close()
        earlier.append(EarlierStudy(old.candidates, told))
    return warm_start(study.candidates, earlier)


def make_launcher(study: Study) -> Launcher:
    """The launcher that the study names."""
    settings = study.config.launcher
    options = dict(settings.options)
    if settings.address:
        options["address"] = settings.address
    if settings.name == "simulated":
        options.setdefault("cluster", study.cluster)
    if settings.name == "ray":
        options.setdefault("device_kind", study.cluster.device_kind)
    if study.config.trainer is not None:
        options |= {**study.config.trainer.launcher_options(), "cluster": study.cluster}
    launcher: Launcher = registry.load("launchers", settings.name)(
        num_devices=study.cluster.num_devices, run_folder=study.paths.root.absolute(), **options
    )
    return launcher
