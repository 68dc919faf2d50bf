"""Exhaustive sweep of the candidates."""

from collections.abc import Sequence
from typing import Literal

import numpy as np

from tuner.searchers.base import CandidateSearcher, SearcherOptions


class GridOptions(SearcherOptions):
    """In which order: drawn from the seed, predicted step time, or as enumerated."""

    order: Literal["shuffled", "predicted", "enumerated"] = "shuffled"


class GridSearcher(CandidateSearcher):
    """Every candidate once; `order="predicted"` puts the shortest predicted step time first."""

    name = "grid"
    lookahead = 8192
    options_model = GridOptions
    _options: GridOptions

    def _choose(self, untried: list[int], count: int) -> Sequence[int]:
        return sorted(untried, key=self._sort_keys().__getitem__)[:count]

    def _sort_keys(self) -> list[float]:
        if self._options.order == "predicted":
            times = (candidate.step_time_s for candidate in self._candidates)
            return [float("inf") if time is None else time for time in times]
        rows = np.arange(len(self._candidates))
        if self._options.order == "shuffled":
            rows = np.random.default_rng(self._seed).permutation(len(rows))
        return [float(position) for position in rows]
