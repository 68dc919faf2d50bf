"""The default searcher: DeepHyper's CBO with a surrogate that starts from the cost model."""

import math
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from pydantic import Field

from tuner.ports import Candidate
from tuner.searchers.base import CandidateSearcher, SearcherOptions
from tuner.searchers.feasibility import FeasibilityModel
from tuner.searchers.improvement import Shortlist, propose_improvement
from tuner.searchers.kernels import KnobKernel, Rows
from tuner.searchers.knobs import varying_knobs
from tuner.searchers.parts import parts_prior
from tuner.searchers.step_time_model import StepTimeModel

SHORTLIST = 1200
import os

FIRST=float(os.environ.get('FIRST','.3'))


class CboOptions(SearcherOptions):
    """`risk_aversion`: exponent of the probability of running in the acquisition."""

    risk_aversion: float = Field(default=float(__import__("os").environ.get("G","1")), ge=0)


class CboSearcher(CandidateSearcher):
    """Expected improvement over the best step time, times the probability of running."""

    name = "cbo"
    options_model = CboOptions
    _options: CboOptions

    def __init__(self, candidates: Sequence[Candidate], *, seed: int, **options: Any) -> None:
        super().__init__(candidates, seed=seed, **options)
        configs = [candidate.config for candidate in self._candidates]
        self._kernel = KnobKernel(varying_knobs(configs), len(configs))
        if not configs:
            return
        self._step_time = StepTimeModel(self._kernel, parts_prior(
            [c.step_time_s for c in self._candidates],
            [c.step_time_parts_s for c in self._candidates],
        ))
        memory = parts_prior(
            [c.peak_memory_bytes for c in self._candidates],
            [c.peak_memory_parts_bytes for c in self._candidates],
        )
        probabilities = np.array([c.probability_fits for c in self._candidates])
        self._feasibility = FeasibilityModel(self._kernel, memory, probabilities)

    def _choose(self, untried: list[int], count: int) -> Sequence[int]:
        self._feasibility.fit(self._history)
        costs = {row: k.cost for row, k in self._history.measured.items() if k.cost is not None}
        self._step_time.fit(costs)
        lies = list(self._history.running)
        chosen: list[int] = []
        free = np.array(untried, dtype=np.intp)
        for _ in range(count):
            told = self._with_lies(costs, lies + chosen)
            row = self._best(free[~np.isin(free, chosen)], told)
            chosen.append(row)
        return chosen

    def _with_lies(self, costs: Mapping[int, float], rows: Sequence[int]) -> dict[int, float]:
        if not rows:
            return dict(costs)
        self._step_time.fit(costs)
        mean, _ = self._step_time.predict(np.array(rows, dtype=np.intp))
        told = {**costs, **{row: math.exp(value) for row, value in zip(rows, mean, strict=True)}}
        self._step_time.fit(told)
        return told

    def _best(self, free: Rows, costs: Mapping[int, float]) -> int:
        expected = self._step_time.mean()[free]
        order = np.argsort(expected + 0.0, kind="stable")
        probability = np.zeros(0)
        short = free[order[: 3 * SHORTLIST]]
        probability = self._feasibility.predict(short)
        keep = np.flatnonzero(probability > 0.02)[:SHORTLIST]
        if len(keep) == 0:
            return int(short[np.argmax(probability)])
        short, probability = short[keep], probability[keep]
        mean, spread = self._step_time.predict(short)
        if not costs: spread = np.full(len(mean), 0.05)
        shortlist = Shortlist(short, mean, spread, probability**self._options.risk_aversion)
        if not costs:
            goal = float(mean.min()) + FIRST
            return int(short[np.argmax(shortlist.log_improvement(goal))])
        told = [(row, math.log(cost)) for row, cost in costs.items()]
        seed = self._seed * 100_003 + len(self._history.known)
        return propose_improvement(shortlist, told, num_rows=len(self._candidates), seed=seed)
