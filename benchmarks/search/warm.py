"""What an earlier study is worth: trials with and without its results."""

from collections.abc import Sequence
from typing import Any

from benchmarks.search.emulated import emulated_problem
from benchmarks.search.problem import Problem, SearcherFactory, observe, run, summarise
from benchmarks.search.worlds import draw_world
from tuner.searchers.warm_start import EarlierStudy, warm_start


def warm_start_figures(
    make: SearcherFactory, seeds: Sequence[int], num_trials: int, num_earlier: int = 20
) -> dict[str, Any]:
    """Compare cold and warm searches on a machine with a wrong prior.

    The earlier study ran `num_earlier` trials on a machine with other constants and interactions
    (another world), under the same biased cost model.
    """
    cold, warm = [], []
    for seed in seeds:
        problem = emulated_problem("bad", seed)
        other = draw_world(1000 + seed)
        earlier = _earlier_trials(problem, other.step_time_s, make, seed, num_earlier)
        candidates = warm_start(problem.candidates, [earlier])
        warmed = Problem(
            name=problem.name,
            candidates=candidates,
            step_time_s=problem.step_time_s,
            peak_memory_bytes=problem.peak_memory_bytes,
            failure=problem.failure,
            run_noise=problem.run_noise,
        )
        cold.append(run(problem, make, seed, num_trials))
        warm.append(run(warmed, make, seed, num_trials))
    figures = {"cold": summarise(cold), "warm": summarise(warm)}
    print(
        f"{len(cold)} worlds, bad prior, without and with {num_earlier} trials of another machine"
    )
    for name, each in figures.items():
        print(
            f"  {name}: 3 % in {each['trials_to_3_percent']}, 1 % in {each['trials_to_1_percent']}"
        )
    return figures


def _earlier_trials(
    problem: Problem, step_time_s: Any, make: SearcherFactory, seed: int, count: int
) -> EarlierStudy:
    import numpy as np

    other = draw_world(1000 + seed)
    study = Problem(
        name="earlier",
        candidates=problem.candidates,
        step_time_s=np.where(other.fits, step_time_s, np.inf),
        peak_memory_bytes=other.memory_bytes,
        failure=problem.failure,
    )
    rows = {candidate.config: row for row, candidate in enumerate(study.candidates)}
    searcher = make(study.candidates, seed)
    told = []
    for _ in range(count):
        searcher.tell(told)
        told.append(observe(study, rows[searcher.ask(1)[0]], 1.0))
    return EarlierStudy(study.candidates, told)
