"""Seconds that a searcher itself takes for one tell and ask."""

import statistics
import time
from collections.abc import Sequence

import numpy as np

from benchmarks.search.emulated import emulated_problem
from benchmarks.search.problem import Problem, SearcherFactory, observe


def ask_tell_ms(make: SearcherFactory, num_told: int, repeats: int = 5) -> float:
    """Median milliseconds of `tell` and `ask(1)` with `num_told` known of 12,687 candidates.

    As in a study: one result more each time, told to the same searcher.
    """
    problem = emulated_problem("good", 0)
    searcher = make(problem.candidates, 0)
    rows = np.random.default_rng(5).permutation(len(problem.candidates))
    rows = np.concatenate([_mostly_fitting(problem, rows, num_told), rows])
    told = [observe(problem, int(row), 1.0) for row in rows[:num_told]]
    searcher.tell(told)
    searcher.ask(1)  # imports and caches
    spans: list[float] = []
    for row in rows[num_told : num_told + repeats]:
        told = [*told, observe(problem, int(row), 1.0)]
        start = time.perf_counter()
        searcher.tell(told)
        searcher.ask(1)
        spans.append(1e3 * (time.perf_counter() - start))
    return round(statistics.median(spans), 1)


def _mostly_fitting(problem: Problem, rows: Sequence[int], count: int) -> list[int]:
    """Rows of which nine in ten run, as in a study under way."""
    fits = [row for row in rows if np.isfinite(problem.step_time_s[row])]
    fails = [row for row in rows if not np.isfinite(problem.step_time_s[row])]
    mixed = fits[: count - count // 10] + fails[: count // 10]
    return list(np.random.default_rng(6).permutation(mixed))
