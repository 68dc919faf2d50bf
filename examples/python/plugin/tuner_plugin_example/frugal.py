"""A searcher: it needs a name, `tell` and `ask`, and keeps no state that it is not told."""

from collections.abc import Sequence

import tuner


class FrugalSearcher:
    """Proposes what needs the least memory first, and nothing twice."""

    name = "frugal"
    lookahead = 1

    def __init__(self, candidates: Sequence[tuner.Candidate], *, seed: int) -> None:
        del seed  # nothing is random
        self._order = sorted(candidates, key=lambda point: point.peak_memory_bytes or 0.0)
        self._known: set[tuner.ParallelConfig] = set()

    def tell(self, observations: Sequence[tuner.Observation]) -> None:
        """All that is known of the study, every time."""
        self._known = {observation.config for observation in observations}

    def ask(self, count: int) -> list[tuner.ParallelConfig]:
        """Up to `count` new points; fewer, down to none, when they are used up."""
        free = [point.config for point in self._order if point.config not in self._known]
        return free[:count]
