"""A searcher: `CandidateSearcher` keeps the books, we only choose among what is untried."""

from collections.abc import Sequence

from tuner.searchers.base import CandidateSearcher


class FrugalSearcher(CandidateSearcher):
    """Proposes what needs the least memory first.

    A class of its own with `name`, `lookahead`, `tell` and `ask` would do as well
    (`tuner.Searcher`).
    """

    name = "frugal"

    def _choose(self, untried: list[int], count: int) -> Sequence[int]:
        return sorted(untried, key=self._memory_bytes)[:count]

    def _memory_bytes(self, row: int) -> float:
        return self._candidates[row].peak_memory_bytes or 0.0
