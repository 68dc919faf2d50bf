"""Probability that a candidate runs, moved by every failure, success and measured peak.

Two reasons are kept apart. Memory: a measured peak is an observation of the predicted one's error,
an out-of-memory says that it is above the limit, a success without a peak that it is below.
Everything else (rules that only the trainer knows, crashes): a Gaussian process classifier over the
knobs.
"""

import math

import numpy as np
from scipy.special import ndtr

from trainer.contract import FailureKind
from tuner.searchers.history import History, Known
from tuner.searchers.kernels import KnobKernel, Rows
from tuner.searchers.knobs import Floats
from tuner.searchers.latent_process import Evidence, LatentProcess
from tuner.searchers.memory_belief import SHORTFALLS, MemoryBelief, shortfall_belief
from tuner.searchers.parts import PartsPrior

_CERTAIN = 1e-9
BLAMED = 0.8
"""Probability of fitting below which an unexplained failure is put down to memory."""
_INFERRED = 1.0
"""Noise of evidence of memory: a placeholder, for the belief infers it."""


class FeasibilityModel:
    """Probability of running for all candidates.

    Args:
        kernel: over the knobs.
        memory: predicted peak of every candidate as parts; uninformative where unknown.
        probabilities: of fitting, as the cost model gave them.
    """

    def __init__(self, kernel: KnobKernel, memory: PartsPrior, probabilities: Floats) -> None:
        self._num_rows = len(probabilities)
        self._is_uncertain = bool((probabilities < 1 - _CERTAIN).any())
        self._memory = MemoryBelief(kernel, memory, probabilities)
        self._other = LatentProcess(
            kernel,
            np.full(self._num_rows, 1.9),
            np.zeros((self._num_rows, 0)),
            scale=1.0,
            offset=0.5,
            mix=(0.3, 0.3, 0.4, 0.0, 0.0),
        )
        self.fit(History({}))

    def fit(self, history: History) -> None:
        """Condition on a study's outcomes."""
        known = {row: each for row, each in history.known.items() if not each.is_running}
        memory, unclear = [], []
        for row, each in known.items():
            if each.is_infeasible and each.failure is None and not each.is_measured:
                unclear.append(row)
            else:
                memory += self._memory_evidence(row, each)
        measured = [item for item in memory if item.sign >= 0]
        self._shortfall = shortfall_belief([item.value for item in measured if item.sign == 0])
        self._memory.fit(_thinned(measured))
        blamed = [item.row for item in memory if item.sign < 0]
        blamed += self._blame_memory(unclear)
        if blamed:
            self._learn_shortfall(blamed, measured)
            typical = float(self._shortfall @ SHORTFALLS)
            memory = measured + [Evidence(row, -1, _INFERRED, typical) for row in blamed]
            self._memory.fit(_thinned(memory))
        other = [item for row, each in known.items() for item in _other_evidence(row, each)]
        other += [Evidence(row, -1, 0.5) for row in unclear if row not in blamed]
        self._other.fit(_thinned(other))
        self._has_other = any(item.sign < 0 for item in other)

    def _learn_shortfall(self, rows: list[int], measured: list[Evidence]) -> None:
        """Move the belief in the shortfall by points that ran out of memory.

        Says something only where peaks were measured: without, a shortfall and a wrong prediction
        are the same thing.
        """
        if not any(item.sign == 0 for item in measured):
            return
        runs = self._memory.above(np.array(rows, dtype=np.intp), SHORTFALLS)
        fails = np.log(np.maximum(1 - runs, 1e-12)).sum(axis=0)
        weights = self._shortfall * np.exp(fails - fails.max())
        self._shortfall = weights / weights.sum()

    def _blame_memory(self, rows: list[int]) -> list[int]:
        """Of points that failed without a reason given, those that likely ran out of memory."""
        if not rows or not self._is_uncertain:
            return []
        fits = self._fits(np.array(rows, dtype=np.intp))
        return [row for row, probability in zip(rows, fits, strict=True) if probability < BLAMED]

    def _memory_evidence(self, row: int, known: Known) -> list[Evidence]:
        if not self._is_uncertain and known.failure is not FailureKind.OOM:
            return []
        if known.is_measured:
            if self._memory.scale is not None and known.peak_memory_bytes:
                margin = self._memory.scale.log_limit - math.log(known.peak_memory_bytes)
                return [Evidence(row, 0, _INFERRED, margin)]
            return [Evidence(row, 1, _INFERRED)]
        return [Evidence(row, -1, _INFERRED)] if known.failure is FailureKind.OOM else []

    def _fits(self, rows: Rows) -> Floats:
        return np.asarray(self._memory.above(rows, SHORTFALLS) @ self._shortfall)

    def predict(self, rows: Rows) -> Floats:
        """Probability that each of `rows` runs."""
        fits = self._fits(rows)
        if not self._has_other:
            return fits
        mean, spread = self._other.predict(rows)
        return np.asarray(fits * ndtr(mean / np.hypot(spread, 1.0)))


def _other_evidence(row: int, known: Known) -> list[Evidence]:
    """What an outcome with a known reason says of failures that are not the memory's."""
    if known.is_measured:
        return [Evidence(row, 1, 0.5)]
    if known.failure is FailureKind.OOM or (known.is_infeasible and known.failure is None):
        return []
    # A transient failure says little of the point, a broken rule much.
    return [Evidence(row, -1, 0.5 if known.is_infeasible else 1.5)]


def _thinned(evidence: list[Evidence], limit: int = 128) -> list[Evidence]:
    """At most `limit` items, the latest half and an even spread over the earlier ones."""
    if len(evidence) <= limit:
        return evidence
    half = limit // 2
    picks = np.linspace(0, len(evidence) - half - 1, limit - half).round().astype(int)
    return [evidence[index] for index in picks] + evidence[-half:]
