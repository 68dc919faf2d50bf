"""DeepHyper's CBO over raw knobs, as the Frontier study ran it: for comparison.

That study (arXiv 2312.12705) used `CBO(acq_func="UCB", multi_point_strategy="cl_min")` with the
default extremely randomised trees over raw degrees, no cost model, failures told as "F".
"""

from collections.abc import Sequence
from typing import Literal

import numpy as np
from pydantic import Field

from tuner.searchers.base import CandidateSearcher, SearcherOptions
from tuner.searchers.deephyper_engine import FAILED, EngineSettings, Objective, propose
from tuner.searchers.history import Known


class CboPlainOptions(SearcherOptions):
    """As in `deephyper.hpo.CBO`; no `initial_points` means twice the knobs plus one."""

    surrogate: Literal["ET", "RF", "TB", "GP"] = "ET"
    acquisition: Literal["UCB", "EI"] = "UCB"
    multi_point_strategy: Literal["cl_min", "cl_mean", "cl_max"] = "cl_min"
    initial_points: int | None = Field(default=None, ge=1)


class CboPlainSearcher(CandidateSearcher):
    """Plain constrained Bayesian optimisation on the list of legal points, without a prior."""

    name = "cbo-plain"
    options_model = CboPlainOptions
    _options: CboPlainOptions

    def _choose(self, untried: list[int], count: int) -> Sequence[int]:
        knobs = self._knobs
        rng = np.random.default_rng([self._seed, len(self._history.known)])
        pool: list[int] = rng.permutation(untried).tolist()
        if not knobs:
            return pool[:count]
        settings = EngineSettings(
            surrogate_model=self._options.surrogate,
            acq_func=self._options.acquisition,
            multi_point_strategy=self._options.multi_point_strategy,
            num_initial_points=self._options.initial_points,
        )
        told = self._told()
        seed = int(rng.integers(2**31))
        return propose(knobs, pool, told, count=count, seed=seed, settings=settings)

    def _told(self) -> list[tuple[int, Objective]]:
        """Throughputs, failures, and for each running trial the worst one seen as a lie."""
        known = self._history.known
        values = {row: 1 / k.cost for row, k in known.items() if k.cost is not None}
        if not values:
            return []
        scale = max(values.values())
        lie = min(values.values()) / scale

        def objective(row: int, point: Known) -> Objective:
            if row in values:
                return values[row] / scale
            return lie if point.is_running else FAILED

        return [(row, objective(row, point)) for row, point in known.items()]
