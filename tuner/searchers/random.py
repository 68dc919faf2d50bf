"""Uniform random search without repetition: the yardstick of every other searcher."""

from collections.abc import Sequence

import numpy as np

from tuner.searchers.base import CandidateSearcher


class RandomSearcher(CandidateSearcher):
    """Candidates in an order drawn once from the seed."""

    name = "random"
    lookahead = 8192

    def _choose(self, untried: list[int], count: int) -> Sequence[int]:
        order = np.random.default_rng(self._seed).permutation(len(self._candidates)).tolist()
        free = set(untried)
        return [row for row in order if row in free][:count]
