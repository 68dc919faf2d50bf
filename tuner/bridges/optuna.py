"""Optuna: our search as a sampler, and a stored study as a study of Optuna's.

```python
import optuna, tuner
from tuner.bridges.optuna import TunerSampler, to_optuna

sampler = TunerSampler(tuner.candidates("gpt2-124m", devices=8))

def objective(trial):
    config = sampler.suggest(trial)          # a legal tuner.ParallelConfig
    return measure(config)                   # tokens a second

optuna.create_study(sampler=sampler, direction="maximize").optimize(objective, n_trials=20)

to_optuna(tuner.Study.open("my-study"), "sqlite:///optuna.db")   # optuna-dashboard opens it
```
"""

from collections.abc import Callable, Sequence
from typing import Any

import optuna
from optuna.distributions import BaseDistribution, CategoricalDistribution
from optuna.samplers import BaseSampler, RandomSampler
from optuna.study import StudyDirection
from optuna.trial import FrozenTrial, TrialState

from results_db.records import TrialStatus
from search_spaces.constraints.base import value_text
from search_spaces.parallel_config import KNOBS, ParallelConfig
from tuner import registry
from tuner.api.study import Study
from tuner.bridges import observing
from tuner.errors import ConfigError
from tuner.ports import Candidate, Observation, Searcher
from tuner.trial import Trial

_STATES = {
    TrialStatus.COMPLETED: TrialState.COMPLETE,
    TrialStatus.PRUNED: TrialState.PRUNED,
    TrialStatus.INFEASIBLE: TrialState.FAIL,
    TrialStatus.FAILED: TrialState.FAIL,
    TrialStatus.CANCELLED: TrialState.FAIL,
}
_ALWAYS_SHOWN = ("dp", "tp", "pp", "micro_batch_size", "zero_stage")


class TunerSampler(BaseSampler):
    """Samples legal configurations, each once; ends the study when none is left.

    Args:
        candidates: the points (`tuner.candidates`).
        searcher: the name of a searcher (`tuner spaces` lists them), or a class like them.
        seed: of the search, and of parameters that the objective asks for besides the knobs.
        **options: of the searcher.

    The objective must be positive. A trial that fails, or is pruned, is told as failed; one with
    the user attribute `failure = "oom"` as infeasible.
    """

    def __init__(
        self,
        candidates: Sequence[Candidate],
        *,
        searcher: str | Callable[..., Searcher] = "cbo",
        seed: int = 0,
        **options: Any,
    ) -> None:
        factory = registry.load("searchers", searcher) if isinstance(searcher, str) else searcher
        self._searcher: Searcher = factory(candidates, seed=seed, **options)
        configs = list(dict.fromkeys(candidate.config for candidate in candidates))
        if not configs:
            raise ConfigError("there is no candidate to sample")
        self._knobs = shown_knobs(configs)
        self._space = distributions_of(configs, self._knobs)
        self._by_params = {self._key(params_of(item, self._knobs)): item for item in configs}
        self._others = RandomSampler(seed=seed)

    def suggest(self, trial: optuna.Trial) -> ParallelConfig:
        """The configuration that an objective is to measure; sets the trial's parameters."""
        params = {
            knob: trial.suggest_categorical(knob, list(self._space[knob].choices))
            for knob in self._knobs
        }
        found = self._by_params.get(self._key(params))
        if found is None:  # a trial that the user enqueued with parameters of his own
            raise optuna.TrialPruned(f"{params} is no legal configuration")
        return found

    def infer_relative_search_space(
        self, study: optuna.Study, trial: FrozenTrial
    ) -> dict[str, BaseDistribution]:
        """The knobs that vary."""
        return dict(self._space)

    def sample_relative(
        self, study: optuna.Study, trial: FrozenTrial, search_space: dict[str, BaseDistribution]
    ) -> dict[str, Any]:
        """The knobs of the next point; of a random one once every point was tried."""
        self._searcher.tell(self._observations(study, besides=trial.number))
        found = self._searcher.ask(1)
        return params_of(found[0], self._knobs) if found else {}

    def sample_independent(
        self,
        study: optuna.Study,
        trial: FrozenTrial,
        param_name: str,
        param_distribution: BaseDistribution,
    ) -> Any:
        """A random value for a parameter that is no knob."""
        return self._others.sample_independent(study, trial, param_name, param_distribution)

    def after_trial(
        self,
        study: optuna.Study,
        trial: FrozenTrial,
        state: TrialState,
        values: Sequence[float] | None,
    ) -> None:
        """End the study with its last point."""
        tried = {item.config for item in self._observations(study, besides=-1)}
        if tried.issuperset(self._by_params.values()):
            study.stop()

    def _observations(self, study: optuna.Study, besides: int) -> list[Observation]:
        is_max = study.direction is StudyDirection.MAXIMIZE
        found = []
        for trial in study.get_trials(deepcopy=False):
            config = self._by_params.get(self._key(trial.params))
            if config is None or trial.number == besides:
                continue
            if trial.state is TrialState.COMPLETE and trial.value is not None:
                found.append(observing.completed(config, trial.value, maximize=is_max))
            elif trial.state.is_finished():
                found.append(observing.failed(config, trial.user_attrs))
            else:
                found.append(observing.running(config))
        return found

    def _key(self, params: dict[str, Any]) -> tuple[Any, ...]:
        return tuple(params.get(knob) for knob in self._knobs)


def to_optuna(
    study: Study, storage: str | optuna.storages.BaseStorage, *, name: str | None = None
) -> optuna.Study:
    """Write a stored study into a storage of Optuna's, for its plots and optuna-dashboard.

    Knobs become categorical parameters, the study's objective the value; step times are the
    intermediate values, and memory, MFU and failures user attributes. Repeats are trials of their
    own. Trials that have not ended are left out.

    Args:
        study: the study, open.
        storage: a URL (`sqlite:///optuna.db`) or a storage.
        name: of the new study; left out: that of the old one.

    Raises:
        ConfigError: the storage holds a study of that name.
    """
    name = name or study.name
    objective = study.objective
    direction = "maximize" if objective is None else objective.direction
    trials = [trial for trial in study if trial.status in _STATES]
    try:
        made = optuna.create_study(storage=storage, study_name=name, direction=direction)
    except optuna.exceptions.DuplicatedStudyError as error:
        raise ConfigError(
            f"the storage holds a study {name!r}", hint="pass name=... for another"
        ) from error
    made.set_user_attr("tuner", {"study": study.name, "store": study.store.url})
    made.set_user_attr("objective", objective.reference if objective else "tokens_per_s")
    if not trials:
        return made
    configs = [trial.config for trial in trials]
    knobs = shown_knobs(configs)
    space = distributions_of(configs, knobs)
    made.add_trials([_frozen(study, trial, knobs, space) for trial in trials])
    return made


def shown_knobs(configs: Sequence[ParallelConfig]) -> list[str]:
    """Knobs that vary or differ from their defaults, and those that everybody asks for."""
    neutral = ParallelConfig()
    return [
        knob
        for knob in KNOBS
        if knob in _ALWAYS_SHOWN
        or any(getattr(config, knob) != getattr(neutral, knob) for config in configs)
    ]


def params_of(config: ParallelConfig, knobs: Sequence[str]) -> dict[str, Any]:
    """The knobs as Optuna's categorical values: numbers, flags and words."""
    return {knob: _choice(getattr(config, knob), knob) for knob in knobs}


def distributions_of(
    configs: Sequence[ParallelConfig], knobs: Sequence[str]
) -> dict[str, CategoricalDistribution]:
    """The values that occur, in order."""
    found = {}
    for knob in knobs:
        values = {_choice(getattr(config, knob), knob) for config in configs}
        order = sorted(values, key=lambda value: (isinstance(value, str), value))
        found[knob] = CategoricalDistribution(order)
    return found


def _choice(value: Any, knob: str) -> bool | int | str:
    return value if isinstance(value, bool | int | str) else value_text(value, knob)


def _frozen(
    study: Study, trial: Trial, knobs: Sequence[str], space: dict[str, CategoricalDistribution]
) -> FrozenTrial:
    state = _STATES[trial.status]
    objective = study.objective
    score = trial.tokens_per_s if objective is None else objective.score(trial)
    steps = [step for step in study.steps(trial) if not step.is_warmup]
    made = optuna.trial.create_trial(
        state=state,
        value=score if state is TrialState.COMPLETE else None,
        params=params_of(trial.config, knobs),
        distributions=dict(space),
        user_attrs=_attributes(trial),
        intermediate_values={step.step: step.step_time_s for step in steps},
    )
    # Optuna keeps the local time of its machine, without a zone
    if trial.started_at and trial.finished_at:
        made.datetime_start = trial.started_at.astimezone().replace(tzinfo=None)
        made.datetime_complete = trial.finished_at.astimezone().replace(tzinfo=None)
    return made


def _attributes(trial: Trial) -> dict[str, Any]:
    found: dict[str, Any] = {
        "trial": trial.number,
        "configuration": trial.label,
        "purpose": trial.purpose.value,
        "tokens_per_s": trial.tokens_per_s,
        "step_time_s": trial.step_time_s,
        "peak_memory_bytes": trial.peak_memory_bytes,
        "mfu": trial.mfu,
    }
    if trial.failure is not None:
        found |= {"failure": trial.failure.kind, "message": trial.failure.message}
    return {name: value for name, value in found.items() if value is not None}
