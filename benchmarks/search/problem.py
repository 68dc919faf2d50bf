"""A search problem whose truth is known, and the run of one searcher on it."""

import statistics
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np

from benchmarks.search.worlds import Floats
from trainer.contract import FailureKind
from tuner.ports import Candidate, Observation, ObservationState, Searcher

SearcherFactory = Callable[[Sequence[Candidate], int], Searcher]


@dataclass(frozen=True, kw_only=True)
class Problem:
    """Candidates with what a trial of each would give; an infinite step time is a failed trial."""

    name: str
    candidates: Sequence[Candidate]
    step_time_s: Floats
    peak_memory_bytes: Floats
    failure: FailureKind | None
    """What a failed trial tells; none where the table does not say."""
    run_noise: float = 0.0

    @property
    def best_s(self) -> float:
        """Shortest true step time."""
        return float(self.step_time_s.min())


@dataclass(frozen=True)
class Trace:
    """One run: regret of the best configuration found so far, and whether each trial failed."""

    regret: tuple[float, ...]
    failed: tuple[bool, ...]
    size: int
    """Points of the problem."""

    def trials_to(self, regret: float) -> float:
        """Trials until a configuration within `regret` of the best was run; infinite if never."""
        reached = (trial for trial, value in enumerate(self.regret, 1) if value <= regret)
        return next(reached, float("inf"))

    def regret_at(self, trials: int) -> float:
        """Regret after that many trials, or at the end of a run that was ended as decided."""
        return self.regret[min(trials, len(self.regret)) - 1]

    def failed_in_first(self, trials: int) -> int:
        """Failed trials among the first ones."""
        return sum(self.failed[:trials])


def run(problem: Problem, make: SearcherFactory, seed: int, num_trials: int) -> Trace:
    """Ask and tell one trial at a time; ends early once the best 1 % and 20 trials are reached."""
    searcher = make(problem.candidates, seed)
    rows = {candidate.config: row for row, candidate in enumerate(problem.candidates)}
    noise = np.random.default_rng([77, seed])
    told: list[Observation] = []
    regret: list[float] = []
    failed: list[bool] = []
    best = float("inf")
    while len(told) < num_trials:
        searcher.tell(told)
        proposed = searcher.ask(1)
        if not proposed:
            break
        row = rows[proposed[0]]
        factor = float(np.exp(problem.run_noise * noise.standard_normal()))
        told.append(observe(problem, row, factor))
        best = min(best, float(problem.step_time_s[row]))
        regret.append(best / problem.best_s - 1)
        failed.append(told[-1].state is not ObservationState.COMPLETED)
        if len(told) >= 20 and regret[-1] <= 0.01:
            break
    return Trace(tuple(regret), tuple(failed), len(problem.candidates))


def observe(problem: Problem, row: int, factor: float) -> Observation:
    """What a trial of `row` tells, its step time multiplied by `factor`."""
    config = problem.candidates[row].config
    time = float(problem.step_time_s[row])
    if not np.isfinite(time):
        return Observation(
            config=config, state=ObservationState.INFEASIBLE, failure=problem.failure
        )
    peak = float(problem.peak_memory_bytes[row])
    return Observation(
        config=config,
        state=ObservationState.COMPLETED,
        step_time_s=time * factor,
        peak_memory_bytes=int(peak) if np.isfinite(peak) else None,
    )


def summarise(traces: Sequence[Trace]) -> dict[str, float | None]:
    """Medians over runs, with quartiles of the trials; none stands for "not within the budget"."""
    figures: dict[str, float | None] = {}
    for percent in (3, 1):
        trials = sorted(trace.trials_to(percent / 100) for trace in traces)
        name = f"trials_to_{percent}_percent"
        figures[name] = _finite(statistics.median(trials))
        figures[f"{name}_q1"] = _finite(trials[len(trials) // 4])
        figures[f"{name}_q3"] = _finite(trials[(3 * len(trials)) // 4])
        reached = sum(np.isfinite(count) for count in trials)
        figures[f"reached_{percent}_percent"] = round(float(reached / len(trials)), 3)
    failed = [trace.failed_in_first(10) for trace in traces]
    figures["failed_in_first_10"] = float(statistics.median(failed))
    figures["failed_in_first_10_mean"] = round(statistics.fmean(failed), 2)
    for trials_done in (10, 20):
        regrets = [trace.regret_at(trials_done) for trace in traces]
        figures[f"regret_at_{trials_done}"] = _finite(round(statistics.median(regrets), 4))
    return figures


def _finite(value: float) -> float | None:
    return float(value) if np.isfinite(value) else None
