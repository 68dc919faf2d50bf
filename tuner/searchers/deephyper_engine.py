"""The one place that speaks DeepHyper: a finite table of points, one stateless proposal at a time.

DeepHyper 0.13 maximises and writes a failure as a string that begins with "F". Its optimizer is
built anew for every proposal, because its restart loses rows and its duplicate filter knows only
points that it asked for itself. A `sampling_fn` that returns the whole list of untried points,
together with `acq_optimizer="sampling"`, makes the acquisition an exact argmax over that list.
"""

import logging
import tempfile
import warnings
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

from tuner.searchers.knobs import Knob, rows_by_values

FAILED = "F"

Objective = float | tuple[float, ...] | str
"""To be maximised; several objectives as a tuple; `FAILED` for none."""


@dataclass(frozen=True, kw_only=True)
class EngineSettings:
    """Arguments of `deephyper.hpo.CBO`."""

    surrogate_model: Any = "ET"
    acq_func: str = "UCBd"
    acq_func_kwargs: Mapping[str, Any] = field(default_factory=dict)
    multi_point_strategy: str = "cl_max"
    num_initial_points: int | None = None
    objective_scaler: str = "minmax"
    failures: str = "min"
    outliers_iqr_factor: float = 1.5


@contextmanager
def quiet_deephyper() -> Iterator[str]:
    """Silence DeepHyper's logging and warnings; gives a log folder that is removed at the end.

    The warnings are about third parties' internals (ConfigSpace, scikit-learn, pandas), nothing
    that a user could act on.
    """
    logger = logging.getLogger("deephyper")
    level = logger.level
    logger.setLevel(logging.ERROR)
    try:
        with warnings.catch_warnings(), tempfile.TemporaryDirectory(prefix="tuner-cbo-") as folder:
            warnings.simplefilter("ignore")
            yield folder
    finally:
        logger.setLevel(level)


def propose(
    knobs: Sequence[Knob],
    untried: Sequence[int],
    told: Sequence[tuple[int, Objective]],
    *,
    count: int,
    seed: int,
    settings: EngineSettings,
) -> list[int]:
    """Rows of `untried` that a fresh CBO proposes after being told `told`, most promising first.

    Args:
        knobs: the dimensions; each has a value for every row.
        untried: rows to choose among. While fewer results are told than `num_initial_points`, they
            are taken in the order given.
        told: row and objective of each known point.
        count: how many distinct rows, at most `len(untried)`.
        seed: of the surrogate's randomness.
        settings: of DeepHyper's CBO.
    """
    with quiet_deephyper() as folder:
        return _propose(knobs, untried, told, count, seed, settings, folder)


def _propose(
    knobs: Sequence[Knob],
    untried: Sequence[int],
    told: Sequence[tuple[int, Objective]],
    count: int,
    seed: int,
    settings: EngineSettings,
    folder: str,
) -> list[int]:
    names = [f"k{position:02d}_{knob.name}" for position, knob in enumerate(knobs)]
    search = _build(names, knobs, untried, seed, settings, folder)
    if told:
        search.tell([(_point(names, knobs, row), objective) for row, objective in told])
    proposed = search.ask(count)
    row_of = rows_by_values(knobs, untried)
    rows = [row_of[tuple(point[name] for name in names)] for point in proposed]
    distinct = list(dict.fromkeys(rows))
    spare = (row for row in untried if row not in set(distinct))
    return distinct + [row for row, _ in zip(spare, range(count - len(distinct)), strict=False)]


def _build(
    names: Sequence[str],
    knobs: Sequence[Knob],
    untried: Sequence[int],
    seed: int,
    settings: EngineSettings,
    folder: str,
) -> Any:
    import pandas as pd
    from deephyper.hpo import CBO, HpProblem

    problem = HpProblem()
    for name, knob in zip(names, knobs, strict=True):
        problem.add_hyperparameter(knob.levels, name)
    columns = {
        name: [knob.values[row] for row in untried] for name, knob in zip(names, knobs, strict=True)
    }
    pool = pd.DataFrame(columns)
    problem.set_sampling_fn(lambda _size: pool)
    return CBO(
        problem,
        random_state=seed % 2**31,
        log_dir=folder,
        checkpoint_history_to_csv=False,
        surrogate_model=settings.surrogate_model,
        acq_func=settings.acq_func,
        acq_func_kwargs=dict(settings.acq_func_kwargs),
        acq_optimizer="sampling",
        acq_optimizer_kwargs={
            "max_total_failures": -1,  # the default of 100 failures ends the search
            "filter_failures": settings.failures,
            "outliers_iqr_factor": settings.outliers_iqr_factor,
        },
        multi_point_strategy=settings.multi_point_strategy,
        n_initial_points=settings.num_initial_points,
        objective_scaler=settings.objective_scaler,
    )


def _values(knobs: Sequence[Knob], row: int) -> tuple[float | str, ...]:
    return tuple(knob.values[row] for knob in knobs)


def _point(names: Sequence[str], knobs: Sequence[Knob], row: int) -> dict[str, float | str]:
    return dict(zip(names, _values(knobs, row), strict=True))
