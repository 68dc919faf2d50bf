"""The default searcher: DeepHyper's CBO with a surrogate that starts from the cost model.

Expected improvement (Jones et al. 1998) of a grey-box surrogate, times the probability of running,
less the price of a failure. Everything is rebuilt from what is told, so a resumed study goes on as
the interrupted one would have.
"""

import math
from collections.abc import Sequence
from typing import Any

import numpy as np
from pydantic import Field

from search_spaces.parallel_config import ParallelConfig
from trainer.contract import FailureKind
from tuner.ports import Candidate
from tuner.searchers.base import CandidateSearcher, SearcherOptions
from tuner.searchers.calibrated_model import CalibratedModel, Mixture
from tuner.searchers.feasibility import FeasibilityModel
from tuner.searchers.improvement import Shortlist, propose_improvement
from tuner.searchers.kernels import KnobKernel, Rows
from tuner.searchers.knobs import Floats
from tuner.searchers.objectives import ObjectiveName, Scalarisation, draw_weights
from tuner.searchers.parts import parts_prior
from tuner.searchers.threads import single_threaded

SHORTLIST = 1200
FIRST_GOAL = 0.2
"""Before any measurement: how far above the shortest prediction, in log, the goal is set."""
MIN_PROBABILITY = 0.02
FIRST_CAUTION = 10
"""Failures that the search behaves as if it had seen before anything ran: the first peak that is
measured corrects the memory's prediction, so a first risk is taken blindly."""
UNEXPLAINED = 4
"""How many failures one counts for that was not for want of memory: its like can't be foreseen."""


class CboOptions(SearcherOptions):
    """Options of `cbo`.

    `failure_cost`: what a failed trial costs, as a share of the step time, and `caution`: how much
    a risk discounts a gain; both rise with the failures among the last ten trials. `objectives`:
    what to minimise; with several, each proposal aims at another spot of the Pareto front.
    """

    failure_cost: float = Field(default=0.001, ge=0)
    caution: float = Field(default=0.5, ge=0)
    objectives: tuple[ObjectiveName, ...] = Field(default=("throughput",), min_length=1)


class CboSearcher(CandidateSearcher):
    """Prior-guided Bayesian optimisation on the list of legal points."""

    name = "cbo"
    options_model = CboOptions
    _options: CboOptions

    def __init__(self, candidates: Sequence[Candidate], *, seed: int, **options: Any) -> None:
        super().__init__(candidates, seed=seed, **options)
        configs = [candidate.config for candidate in self._candidates]
        if not configs:
            return
        kernel = KnobKernel(self._knobs, len(configs))
        time = parts_prior(
            [candidate.step_time_s for candidate in self._candidates],
            [candidate.step_time_parts_s for candidate in self._candidates],
        )
        memory = parts_prior(
            [candidate.peak_memory_bytes for candidate in self._candidates],
            [candidate.peak_memory_parts_bytes for candidate in self._candidates],
        )
        probabilities = np.array([candidate.probability_fits for candidate in self._candidates])
        self._step_time = CalibratedModel(kernel, time, has_hindsight=True)
        self._peak = CalibratedModel(kernel, memory)
        self._feasibility = FeasibilityModel(kernel, memory, probabilities)
        self._log_devices = np.log([config.world_size for config in configs])

    def chances(self, configs: Sequence[ParallelConfig]) -> Sequence[float]:
        """Probability that each of these candidates runs, by all that was told."""
        if not configs:
            return []
        with single_threaded():
            self._feasibility.fit(self._history)
            rows = np.array([self._rows[config] for config in configs], dtype=np.intp)
            return [float(chance) for chance in self._feasibility.predict(rows)]

    def _choose(self, untried: list[int], count: int) -> Sequence[int]:
        self._feasibility.fit(self._history)
        measured = self._history.measured
        costs = {row: known.cost for row, known in measured.items() if known.cost is not None}
        if "memory" in self._options.objectives:
            peaks = {r: k.peak_memory_bytes for r, k in measured.items() if k.peak_memory_bytes}
            self._peak.fit(peaks)
        pending = self._history.running
        free = np.array(untried, dtype=np.intp)
        chosen: list[int] = []
        for position in range(count):
            left = free[~np.isin(free, chosen)]
            told = self._with_lies(costs, [*pending, *chosen])
            chosen.append(self._best(left, told, position))
        return chosen

    def _with_lies(self, costs: dict[int, float], pending: list[int]) -> dict[int, float]:
        """Fit to the measurements, and to what they predict for trials under way.

        The lies narrow the belief around points that are being tried, so that parallel proposals
        spread out (kriging believer, Ginsbourger et al. 2010).
        """
        self._step_time.fit(costs)
        if not pending:
            return costs
        mean, _ = self._step_time.predict(np.array(pending, dtype=np.intp))
        lies = {row: math.exp(value) for row, value in zip(pending, mean, strict=True)}
        told = {**costs, **lies}
        if costs:
            self._step_time.fit(told)
        return told

    def _best(self, free: Rows, told: dict[int, float], position: int) -> int:
        """The most promising row of `free`."""
        rows, probability = self._likely(free)
        belief = self._step_time.belief(rows)
        costs = {row: math.log(cost) for row, cost in told.items()}
        if len(self._options.objectives) > 1:
            belief, costs = self._compromise(rows, belief, costs, position)
        if not self._history.measured:
            # Nothing is known of the level, which is common to all: only differences count.
            mean, _ = belief.moments()
            blank = Mixture.single(mean, np.full(len(rows), 0.05))
            likely = self._shortlist(rows, blank, probability)
            return int(rows[np.argmax(likely.log_improvement(float(mean.min()) + FIRST_GOAL))])
        shortlist = self._shortlist(rows, belief, probability)
        seed = self._seed * 100_003 + len(self._history.known)
        told_costs = list(costs.items())
        return propose_improvement(shortlist, told_costs, num_rows=len(self._candidates), seed=seed)

    def _shortlist(self, rows: Rows, belief: Mixture, odds: Floats) -> Shortlist:
        """The rows with their belief, and how much risk is worth at this point of the study."""
        latest = [known for known in self._history.known.values() if not known.is_running][-10:]
        failed = [known for known in latest if not known.is_measured]
        price = self._options.failure_cost * (1 + len(failed)) ** 2
        seen = sum(1 if known.failure is FailureKind.OOM else UNEXPLAINED for known in failed)
        if not self._history.measured:
            seen += FIRST_CAUTION
        aversion = 1 + self._options.caution * (1 + seen)
        return Shortlist(rows, belief, odds, aversion, price)

    def _likely(self, free: Rows) -> tuple[Rows, Floats]:
        """Of the fastest-looking rows those that may run; the likeliest one when none may."""
        if "memory" in self._options.objectives:
            rows = free[: 3 * SHORTLIST]
        else:
            expected = self._step_time.mean()[free]
            rows = free[np.argsort(expected, kind="stable")[: 3 * SHORTLIST]]
        probability = self._feasibility.predict(rows)
        keep = np.flatnonzero(probability > MIN_PROBABILITY)[:SHORTLIST]
        if len(keep) == 0:
            probability = self._feasibility.predict(free)
            rows, keep = free, np.array([probability.argmax()])
        return rows[keep], probability[keep]

    def _compromise(
        self, rows: Rows, belief: Mixture, costs: dict[int, float], position: int
    ) -> tuple[Mixture, dict[int, float]]:
        """Belief and results on a random scalarisation of the objectives (Knowles 2006, ParEGO)."""
        names = self._options.objectives
        entropy = [self._seed, len(self._history.known), position]
        weights = draw_weights(len(names), np.random.default_rng(entropy))
        every = np.concatenate([rows, np.array(list(costs), dtype=np.intp)])
        mean, spread = belief.moments()
        peak, peak_spread = self._peak.predict(every)
        time = np.r_[mean, np.array(list(costs.values()))]
        columns = {"throughput": time, "memory": peak, "cost": time + self._log_devices[every]}
        table = np.stack([columns[name] for name in names], axis=1)
        scalarisation = Scalarisation.of(table, weights)
        scalar = scalarisation.values(table)
        widths = [peak_spread[: len(rows)] if name == "memory" else spread for name in names]
        width = scalarisation.spread(np.stack(widths, axis=1))
        told = dict(zip(costs, scalar[len(rows) :].tolist(), strict=True))
        return Mixture.single(scalar[: len(rows)], width), told
