"""What an earlier study is worth: trials with and without its results.

On published runs: the same model on half as many devices, and a smaller model on as many, each
searched before with an uncalibrated cost model. On emulated machines: another
machine with other constants and interactions under the same wrong prior.
"""

from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks.search.emulated import emulated_problem
from benchmarks.search.problem import Problem, SearcherFactory, Trace, observe, run, summarise
from benchmarks.search.tables import Group, Weights, problem_of, read_groups
from benchmarks.search.worlds import draw_world
from tuner.ports import Observation
from tuner.searchers.warm_start import EarlierStudy, warm_start

NUM_EARLIER = 20
"""Trials of the earlier study."""


def earlier_study(problem: Problem, make: SearcherFactory, seed: int) -> EarlierStudy:
    """What a study of `NUM_EARLIER` trials on `problem` leaves behind."""
    rows = {candidate.config: row for row, candidate in enumerate(problem.candidates)}
    searcher = make(problem.candidates, seed)
    told: list[Observation] = []
    for _ in range(min(NUM_EARLIER, len(problem.candidates))):
        searcher.tell(told)
        told.append(observe(problem, rows[searcher.ask(1)[0]], 1.0))
    return EarlierStudy(problem.candidates, told)


def table_pairs(groups: Sequence[Group]) -> dict[str, list[tuple[Group, Group]]]:
    """(new, earlier) groups by what differs between them: devices, or the model's size."""
    sizes = {g.name: g.model.num_layers * g.model.hidden_size**2 for g in groups}
    pairs: dict[str, list[tuple[Group, Group]]] = {"half the devices": [], "smaller model": []}
    for new in groups:
        for old in groups:
            devices = (new.cluster.num_devices, old.cluster.num_devices)
            is_same_model = new.model.name == old.model.name
            if is_same_model and devices[0] == 2 * devices[1]:
                pairs["half the devices"].append((new, old))
            if devices[0] == devices[1] and sizes[old.name] < sizes[new.name]:
                pairs["smaller model"].append((new, old))
    return pairs


def _compare(
    name: str, cases: Sequence[Callable[[], tuple[Problem, EarlierStudy, int]]],
    make: SearcherFactory, num_trials: int,
) -> dict[str, Any]:  # fmt: skip
    cold: list[Trace] = []
    warm: list[Trace] = []
    for case in cases:
        problem, earlier, seed = case()
        warmed = replace(problem, candidates=warm_start(problem.candidates, [earlier]))
        cold.append(run(problem, make, seed, num_trials))
        warm.append(run(warmed, make, seed, num_trials))
    figures = {"cold": summarise(cold), "warm": summarise(warm), "num_cases": len(cases)}
    print(f"{name}: {len(cases)} cases, without and with {NUM_EARLIER} trials of the earlier study")
    for which, traces in (("cold", cold), ("warm", warm)):
        each = summarise(traces)
        print(
            f"  {which}: 3 % in {each['trials_to_3_percent']}, 1 % in"
            f" {each['trials_to_1_percent']}; failed in the first 10:"
            f" {each['failed_in_first_10_mean']} (mean); regret at 10:"
            f" {each['regret_at_10']}",
            flush=True,
        )
    return figures


def warm_start_figures(
    make: SearcherFactory, seeds: Sequence[int], num_trials: int, table: Path | None = None
) -> dict[str, Any]:
    """Compare cold and warm searches; with a table, on its groups too."""
    figures: dict[str, Any] = {}
    if table is not None:
        for name, pairs in table_pairs(read_groups(table)).items():
            cases = [partial(_table_case, new, old, make) for new, old in pairs]
            if cases:
                figures[name] = _compare(f"{table.name}, {name}", cases, make, num_trials)
    worlds = [partial(_emulated_case, seed, make) for seed in seeds]
    figures["another machine"] = _compare("another machine, bad prior", worlds, make, num_trials)
    return figures


def _table_case(new: Group, old: Group, make: SearcherFactory) -> tuple[Problem, EarlierStudy, int]:
    uncalibrated = Weights({}, {})
    earlier = earlier_study(problem_of(old, uncalibrated), make, 0)
    return problem_of(new, uncalibrated), earlier, 0


def _emulated_case(seed: int, make: SearcherFactory) -> tuple[Problem, EarlierStudy, int]:
    problem = emulated_problem("bad", seed)
    other = draw_world(1000 + seed)
    study = replace(
        problem,
        name="earlier",
        step_time_s=np.where(other.fits, other.step_time_s, np.inf),
        peak_memory_bytes=other.memory_bytes,
        run_noise=0.0,
    )
    return problem, earlier_study(study, make, seed), seed
