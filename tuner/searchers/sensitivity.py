"""Which knobs mattered in a study: importance of each knob for the measured step time.

As the Frontier study did (arXiv 2312.12705, section on hyperparameter sensitivity): a surrogate is
fitted to the finished trials and asked how much each knob moves its prediction.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np

from search_spaces.parallel_config import ParallelConfig
from tuner.errors import ConfigError
from tuner.ports import Observation
from tuner.searchers.history import History
from tuner.searchers.knobs import Floats, Knob, encode, varying_knobs

Method = Literal["permutation", "shapley"]
MIN_MEASURED = 5
"""Fewest measured points of which a ranking is made."""


@dataclass(frozen=True, kw_only=True)
class KnobImportance:
    """How much one knob matters; `share` sums to 1 over all knobs of a study.

    `effect` is in log step time: 0.1 means that the knob moves the prediction by about 10 %.
    """

    knob: str
    effect: float
    spread: float
    share: float


def knob_importances(
    observations: Sequence[Observation], *, seed: int = 0, method: Method = "permutation"
) -> list[KnobImportance]:
    """Knobs by importance, the largest first; empty when fewer than 5 points were measured.

    Args:
        observations: of one study; trials without a number are left out.
        seed: of the surrogate and the permutations.
        method: "permutation" (shuffled knobs) or "shapley" (mean absolute Shapley value of the
            surrogate, sampled).

    Raises:
        ConfigError: the method is unknown.
    """
    if method not in ("permutation", "shapley"):
        raise ConfigError(f"unknown method {method!r}", hint="legal: permutation, shapley")
    configs = list(dict.fromkeys(observation.config for observation in observations))
    known = History.of(observations, {config: row for row, config in enumerate(configs)}).measured
    if len(known) < MIN_MEASURED:
        return []
    knobs = varying_knobs([configs[row] for row in known])
    if not knobs:
        return []
    target = np.log(np.array([point.cost for point in known.values()], dtype=float))
    features = encode(knobs)
    model = _surrogate(features, target, seed)
    measure = _shapley if method == "shapley" else _permutation
    return _ranked(knobs, *measure(model, features, target, _groups(knobs), seed))


def _surrogate(features: Floats, target: Floats, seed: int) -> Any:
    from sklearn.ensemble import ExtraTreesRegressor

    kind: Any = ExtraTreesRegressor
    model = kind(n_estimators=200, min_samples_leaf=2, random_state=seed)
    return model.fit(features, target)


def _groups(knobs: Sequence[Knob]) -> list[list[int]]:
    """Columns of `encode` that belong to each knob."""
    groups: list[list[int]] = []
    start = 0
    for knob in knobs:
        width = encode([knob]).shape[1]
        groups.append(list(range(start, start + width)))
        start += width
    return groups


def _permutation(
    model: Any, features: Floats, target: Floats, groups: list[list[int]], seed: int
) -> tuple[Floats, Floats]:
    """Root mean square change of the prediction when a knob's values are shuffled among trials.

    All columns of a knob are shuffled together, which scikit-learn's function can't do.
    """
    rng = np.random.default_rng(seed)
    base = model.predict(features)
    effects = np.zeros((len(groups), 20))
    for index, columns in enumerate(groups):
        for repeat in range(effects.shape[1]):
            shuffled = features.copy()
            order = rng.permutation(len(features))
            shuffled[:, columns] = features[order][:, columns]
            change = model.predict(shuffled) - base
            effects[index, repeat] = math.sqrt(float((change**2).mean()))
    return effects.mean(axis=1), effects.std(axis=1)


def _shapley(
    model: Any, features: Floats, target: Floats, groups: list[list[int]], seed: int
) -> tuple[Floats, Floats]:
    """Mean absolute Shapley value of each knob over the trials, by sampled orders of the knobs.

    Castro, Gomez and Tejada, "Polynomial calculation of the Shapley value based on sampling"
    (2009): a trial's knobs replace those of another trial one by one in a random order; the change
    of the prediction at a knob's turn is a sample of its value. All columns of a knob go together.
    """
    rng = np.random.default_rng(seed)
    explained = rng.permutation(len(features))[:_MAX_EXPLAINED]
    own = np.tile(features[explained], (_NUM_ORDERS, 1))
    others = features[rng.integers(len(features), size=len(own))]
    orders = rng.permuted(np.tile(np.arange(len(groups)), (len(own), 1)), axis=1)
    changes = _turns(model, own, others, orders, groups)
    values = changes.reshape(len(groups), _NUM_ORDERS, len(explained)).mean(axis=1)
    size = np.abs(values)
    return size.mean(axis=1), size.std(axis=1) / math.sqrt(len(explained))


_MAX_EXPLAINED = 64
_NUM_ORDERS = 16


def _turns(model: Any, own: Floats, others: Floats, orders: Any, groups: list[list[int]]) -> Floats:
    """Change of every row's prediction at each knob's turn: (knobs, rows)."""
    mixed = others.copy()
    stages = [mixed.copy()]
    for turn in range(len(groups)):
        for row, knob in enumerate(orders[:, turn]):
            columns = groups[knob]
            mixed[row, columns] = own[row, columns]
        stages.append(mixed.copy())
    predicted = model.predict(np.concatenate(stages)).reshape(len(stages), len(own))
    changes = np.zeros((len(groups), len(own)))
    rows = np.arange(len(own))
    for turn in range(len(groups)):
        changes[orders[:, turn], rows] = predicted[turn + 1] - predicted[turn]
    return changes


def _ranked(knobs: Sequence[Knob], effect: Floats, spread: Floats) -> list[KnobImportance]:
    total = max(float(effect.sum()), 1e-12)
    found = [
        KnobImportance(
            knob=knob.name,
            effect=float(effect[index]),
            spread=float(spread[index]),
            share=float(effect[index]) / total,
        )
        for index, knob in enumerate(knobs)
    ]
    return sorted(found, key=lambda importance: (-importance.effect, importance.knob))


def importances_of(
    configs: Sequence[ParallelConfig], step_times_s: Sequence[float], **options: Any
) -> list[KnobImportance]:
    """`knob_importances` of plain columns, as a database query gives them."""
    from tuner.ports import ObservationState

    observations = [
        Observation(config=config, state=ObservationState.COMPLETED, step_time_s=time)
        for config, time in zip(configs, step_times_s, strict=True)
    ]
    return knob_importances(observations, **options)
