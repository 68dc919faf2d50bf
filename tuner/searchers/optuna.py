"""Optuna's TPE on the list of legal points, for comparison; needs the `optuna` extra."""

import math
import warnings
from collections.abc import Sequence
from typing import Any

import numpy as np
from pydantic import Field

from tuner.errors import EnvironmentProblem
from tuner.searchers.base import CandidateSearcher, SearcherOptions
from tuner.searchers.knobs import Knob, encode, rows_by_values

MAX_SAMPLES = 10
"""Samples of TPE per proposal before the candidate nearest to the first one is taken."""


class OptunaOptions(SearcherOptions):
    """As in `optuna.samplers.TPESampler`."""

    startup_trials: int = Field(default=10, ge=1)
    multivariate: bool = True


class OptunaSearcher(CandidateSearcher):
    """Tree-structured Parzen estimator (Bergstra et al. 2011).

    TPE samples knob by knob and knows no list, so the first of its samples that is an untried
    candidate is taken, or the untried candidate nearest to the first sample. Failed trials are
    told as pruned, which TPE ranks after all completed ones; running ones as running.
    """

    name = "optuna"
    options_model = OptunaOptions
    _options: OptunaOptions

    def _choose(self, untried: list[int], count: int) -> Sequence[int]:
        optuna = _import_optuna()
        knobs = self._knobs
        if not knobs:
            return untried[:count]
        rng = np.random.default_rng([self._seed, len(self._history.known)])
        chosen: list[int] = []
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # about arguments that Optuna calls experimental
            study = self._study(optuna, knobs, int(rng.integers(2**31)))
            for _ in range(count):
                free = [row for row in untried if row not in chosen]
                chosen.append(_sample(optuna, study, knobs, free))
        return chosen

    def _study(self, optuna: Any, knobs: Sequence[Knob], seed: int) -> Any:
        sampler = optuna.samplers.TPESampler(
            seed=seed,
            n_startup_trials=self._options.startup_trials,
            multivariate=self._options.multivariate,
            constant_liar=True,
        )
        study = optuna.create_study(sampler=sampler, direction="minimize")
        domains = _domains(optuna, knobs)
        state = optuna.trial.TrialState
        for row, known in self._history.known.items():
            params = {knob.name: knob.values[row] for knob in knobs}
            if known.cost is not None:
                told = {"state": state.COMPLETE, "value": math.log(known.cost)}
            else:
                told = {"state": state.RUNNING if known.is_running else state.PRUNED}
            study.add_trial(optuna.trial.create_trial(params=params, distributions=domains, **told))
        return study


def _sample(optuna: Any, study: Any, knobs: Sequence[Knob], untried: list[int]) -> int:
    row_of = rows_by_values(knobs, untried)
    domains = _domains(optuna, knobs)
    first: tuple[float | str, ...] = ()
    for _ in range(MAX_SAMPLES):
        trial = study.ask(domains)
        point = tuple(trial.params[knob.name] for knob in knobs)
        if point in row_of:
            return row_of[point]
        study.tell(trial, state=optuna.trial.TrialState.FAIL)
        first = first or point
    return _nearest(knobs, first, untried)


def _nearest(knobs: Sequence[Knob], point: tuple[float | str, ...], untried: list[int]) -> int:
    """The untried row with the smallest scaled distance to a point that is not on the list."""
    extended = [
        Knob(knob.name, (*knob.values, value)) for knob, value in zip(knobs, point, strict=True)
    ]
    features = encode(extended)
    scaled = features / np.maximum(np.ptp(features, axis=0), 1e-9)
    distance = np.abs(scaled[untried] - scaled[-1]).sum(axis=1)
    return untried[int(distance.argmin())]


def _domains(optuna: Any, knobs: Sequence[Knob]) -> dict[str, Any]:
    return {knob.name: optuna.distributions.CategoricalDistribution(knob.levels) for knob in knobs}


def _import_optuna() -> Any:
    try:
        import optuna
    except ImportError:
        raise EnvironmentProblem(
            "the searcher 'optuna' needs the package optuna, which is not installed",
            hint="pip install 'parallel-tuner[optuna]', or use the searcher 'cbo'",
        ) from None
    optuna.logging.set_verbosity(optuna.logging.ERROR)
    return optuna
