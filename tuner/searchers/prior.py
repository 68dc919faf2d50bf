"""Candidates in the order of their predicted speed: what the cost model alone is worth."""

from collections.abc import Sequence

from pydantic import Field

from tuner.searchers.base import CandidateSearcher, SearcherOptions
from tuner.searchers.random import RandomSearcher


class PriorOptions(SearcherOptions):
    """`min_probability_fits`: points less likely to fit in memory are left to the end."""

    min_probability_fits: float = Field(default=0.5, ge=0, le=1)


class PriorSearcher(CandidateSearcher):
    """Shortest predicted step time first among the points that are thought to fit.

    Without predictions the order is random. What is measured changes nothing.
    """

    name = "prior"
    options_model = PriorOptions
    _options: PriorOptions

    def _choose(self, untried: list[int], count: int) -> Sequence[int]:
        shuffled = RandomSearcher(self._candidates, seed=self._seed)
        order = shuffled._choose(untried, len(untried))
        return sorted(order, key=self._sort_key)[:count]

    def _sort_key(self, row: int) -> tuple[bool, float, float]:
        candidate = self._candidates[row]
        probability = candidate.probability_fits
        is_risky = probability < self._options.min_probability_fits
        time = float("inf") if candidate.step_time_s is None else candidate.step_time_s
        return is_risky, -probability if is_risky else 0.0, time
