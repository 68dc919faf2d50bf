"""The search of the Frontier study (arXiv 2312.12705) on a simulated Frontier.

The study searched the layout of GPT-3 175B with DeepHyper's CBO over raw degrees; a point that
broke a rule or ran out of memory was a failed evaluation. Here the machine is the cost model with
other constants, random interactions of knobs and noise, a new one for each seed, so that the prior
is wrong about it. Every point does ten micro-batches of its own, as in the study's driver, so what
counts is the throughput of one GCD.

Knobs: `zero_stage`, `tp`, `micro_batch_size` and nodes as far as the paper is remembered, the ten
micro-batches and the search's settings from the study's driver
(github.com/sajal-vt/Megatron-DeepSpeed-ORNL, branch ISAAC_DEEPHYPER).
"""

import statistics
from collections import Counter, defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from itertools import product
from typing import Any

import numpy as np

from benchmarks.search.problem import Problem, SearcherFactory, observe
from benchmarks.search.worlds import Floats, interactions
from search_spaces.cluster_io import load_cluster_spec
from search_spaces.cost_models.analytic import AnalyticCostModel, CostEstimate
from search_spaces.counts import model_flops_per_step
from search_spaces.model_io import load_model_spec
from search_spaces.parallel_config import ParallelConfig
from search_spaces.training_spec import TrainingSpec
from trainer.contract import FailureKind
from tuner.config import SearchSection
from tuner.ports import Candidate, Observation, ObservationState
from tuner.searchers.prospects import hopeless
from tuner.searchers.sensitivity import importances_of

MODEL, MICRO_BATCHES, PER_NODE = "frontier-175b", 10, 8
TENSOR, PIPELINE = (4, 8), (1, 2, 4, 8, 12, 16)
MICRO_BATCH_SIZES, ZERO, NODES = tuple(range(4, 21)), (0, 1), (12, 16)
MARKS = (10, 20, 40, 100)
"""Trials at which the best so far is reported."""
STOP_BELOW = SearchSection().stop_below
CONSTANTS_SD, INTERACTIONS_SD, NOISE_SD, MEMORY_SD = 0.25, 0.03, 0.01, 0.08


@dataclass(frozen=True)
class Space:
    """All points of the study's space, the impossible ones too, with the cost model's word."""

    configs: tuple[ParallelConfig, ...]
    is_legal: tuple[bool, ...]
    estimates: Mapping[int, CostEstimate]
    sequences: Floats
    """Sequences of one step of each point."""

    @property
    def legal_rows(self) -> list[int]:
        """Rows of the points that break no rule."""
        return [row for row, legal in enumerate(self.is_legal) if legal]


@cache
def space() -> Space:
    """The study's points: degrees that do not fill the nodes stand for themselves, and fail."""
    found: dict[ParallelConfig, bool] = {}
    for nodes, tp, pp, micro, zero in product(NODES, TENSOR, PIPELINE, MICRO_BATCH_SIZES, ZERO):
        devices = nodes * PER_NODE
        if tp * pp > devices:
            continue  # the study's driver clips these
        is_legal = devices % (tp * pp) == 0
        # Replicas that can't be are rounded away from the other number of nodes.
        dp = devices // (tp * pp) + (not is_legal and nodes == max(NODES))
        config = ParallelConfig(
            tp=tp, pp=pp, dp=dp, micro_batch_size=micro, zero_stage=zero,
            recompute="full", dtype="fp16", reduce_dtype="fp32",
        )  # fmt: skip
        if zero and dp == 1:
            continue  # nothing to shard: the same run as without
        found[config] = is_legal
    configs = tuple(found)
    estimates = _estimates({row: c for row, c in enumerate(configs) if found[c]})
    sequences = np.array([MICRO_BATCHES * c.dp * c.micro_batch_size for c in configs], dtype=float)
    return Space(configs, tuple(found.values()), estimates, sequences)


def _training(batch: int) -> TrainingSpec:
    return TrainingSpec(sequence_length=2048, global_batch_size=batch, dtype="fp16")


def _estimates(configs: Mapping[int, ParallelConfig]) -> dict[int, CostEstimate]:
    model, cluster = load_model_spec(MODEL), load_cluster_spec("frontier")
    groups: dict[int, list[int]] = defaultdict(list)
    for row, config in configs.items():
        groups[MICRO_BATCHES * config.dp * config.micro_batch_size].append(row)
    found: dict[int, CostEstimate] = {}
    for batch, rows in groups.items():
        cost_model = AnalyticCostModel(model, _training(batch), cluster, is_kernel=False)
        found.update(
            zip(rows, cost_model.estimate_many([configs[row] for row in rows]), strict=True)
        )
    return found


def _per_sequence(row: int) -> float:
    """From seconds of a step to GCD-seconds of a sequence, which is what is minimised."""
    points = space()
    return float(points.configs[row].world_size / points.sequences[row])


def tflops_per_gcd(gcd_seconds: float) -> float:
    """Model TFLOP/s of one GCD at so many GCD-seconds a sequence."""
    return model_flops_per_step(load_model_spec(MODEL), _training(1)) / gcd_seconds / 1e12


def frontier_problem(seed: int, *, is_raw: bool) -> Problem:
    """The simulated Frontier of this seed.

    Args:
        seed: draws the machine.
        is_raw: keep the points that break a rule, which fail, as the study did.
    """
    points = space()
    rows = list(range(len(points.configs))) if is_raw else points.legal_rows
    costs, peaks = _truth(seed)
    limit = load_cluster_spec("frontier").memory_bytes
    runs = np.array(points.is_legal) & (peaks <= limit)
    return Problem(
        name=f"Frontier {seed}",
        candidates=[_candidate(row, limit) for row in rows],
        step_time_s=np.where(runs, costs, np.inf)[rows],
        peak_memory_bytes=peaks[rows],
        failure=FailureKind.OOM if not is_raw else None,
        run_noise=NOISE_SD,
    )


def _candidate(row: int, limit_bytes: float) -> Candidate:
    points = space()
    estimate = points.estimates.get(row)
    if estimate is None:
        return Candidate(config=points.configs[row])
    scale = _per_sequence(row)
    return Candidate(
        config=points.configs[row],
        step_time_s=scale * estimate.step_time_s,
        step_time_parts_s={name: scale * part for name, part in estimate.parts_s.items()},
        peak_memory_bytes=estimate.peak_memory_bytes,
        peak_memory_parts_bytes=estimate.memory_parts_bytes,
        probability_fits=estimate.probability_fits(limit_bytes),
    )


def _truth(seed: int) -> tuple[Floats, Floats]:
    """GCD-seconds a sequence and peak bytes of all points; impossible points cost nothing here."""
    points, rng = space(), np.random.default_rng([2312, seed])
    costs = np.full(len(points.configs), np.inf)
    peaks = np.zeros(len(points.configs))
    rows = points.legal_rows
    names = list(points.estimates[rows[0]].parts_s)
    weights = dict(zip(names, np.exp(CONSTANTS_SD * rng.standard_normal(len(names))), strict=True))
    for row in rows:
        estimate = points.estimates[row]
        seconds = sum(weights[name] * part for name, part in estimate.parts_s.items())
        costs[row] = _per_sequence(row) * seconds
        peaks[row] = estimate.peak_memory_bytes
    columns = [
        [float(getattr(config, name)) for config in points.configs]
        for name in ("tp", "pp", "dp", "micro_batch_size", "zero_stage")
    ]
    labels = np.array(columns).T
    costs = costs * np.exp(interactions(labels, INTERACTIONS_SD, rng))
    costs = costs * np.exp(NOISE_SD * rng.standard_normal(len(costs)))
    factor = np.exp(MEMORY_SD * rng.standard_normal())
    peaks = peaks * factor * np.exp(interactions(labels, 0.02, rng))
    return costs, peaks


@dataclass(frozen=True)
class _Run:
    best: tuple[float, ...]
    """Highest TFLOP/s of a GCD after each trial, as a share of the machine's best."""
    failed: tuple[bool, ...]
    """Of each trial; fewer than the budget where the study ended with nothing left to expect."""
    shares: Mapping[str, float]
    """Importance of each knob, by the trials of this search."""


def _search(problem: Problem, make: SearcherFactory, seed: int, num_trials: int) -> _Run:
    searcher = make(problem.candidates, seed)
    rows = {candidate.config: row for row, candidate in enumerate(problem.candidates)}
    noise = np.random.default_rng([78, seed])
    told: list[Observation] = []
    best, lowest = [], float("inf")
    while len(told) < num_trials:
        searcher.tell(told)
        if hopeless(searcher, told, problem.candidates, STOP_BELOW):
            break
        row = rows[searcher.ask(1)[0]]
        told.append(observe(problem, row, float(np.exp(NOISE_SD * noise.standard_normal()))))
        lowest = min(lowest, float(problem.step_time_s[row]))
        best.append(problem.best_s / lowest)
    done = [o for o in told if o.state is ObservationState.COMPLETED]
    ranking = importances_of([o.config for o in done], [o.step_time_s or 1.0 for o in done])
    shares = {item.knob: item.share for item in ranking}
    best += [best[-1]] * (num_trials - len(told))
    return _Run(tuple(best), tuple(o not in done for o in told), shares)


def frontier_figures(
    searchers: Mapping[str, SearcherFactory], seeds: Sequence[int], num_trials: int
) -> dict[str, Any]:
    """Best throughput and failures against trials, and which knobs mattered, of each searcher.

    `cbo-plain` also runs as the study ran it, on the raw points.
    """
    points = space()
    machines = [frontier_problem(seed, is_raw=False) for seed in seeds]
    peak = statistics.median(tflops_per_gcd(machine.best_s) for machine in machines)
    fitting = statistics.median(int(np.isfinite(m.step_time_s).sum()) for m in machines)
    print(
        f"GPT-3 175B on a simulated Frontier, {len(seeds)} machines: {len(points.configs)} raw"
        f" points, {len(points.legal_rows)} legal, {fitting:g} fit (median);"
        f" the best of a machine {peak:.1f} TFLOP/s a GCD (median)"
    )
    figures: dict[str, Any] = {
        "num_raw_points": len(points.configs),
        "num_legal_points": len(points.legal_rows),
        "num_fitting_points": fitting,
        "best_tflops_per_gcd": round(peak, 1),
    }
    cases = [(name, make, False) for name, make in searchers.items()]
    if "cbo-plain" in searchers:
        cases.insert(0, ("cbo-plain, raw points", searchers["cbo-plain"], True))
    for name, make, is_raw in cases:
        runs = [
            _search(frontier_problem(seed, is_raw=is_raw), make, seed, num_trials) for seed in seeds
        ]
        figures[name] = _summary(name, runs, num_trials)
    return figures


def _summary(name: str, runs: Sequence[_Run], num_trials: int) -> dict[str, Any]:
    marks = [mark for mark in MARKS if mark <= num_trials] or [num_trials]
    shares = {m: round(statistics.median(run.best[m - 1] for run in runs), 4) for m in marks}
    failed = {m: statistics.median(sum(run.failed[:m]) for run in runs) for m in marks}
    trials = statistics.median(len(run.failed) for run in runs)
    knobs = _mean_shares(runs)
    three, one = _trials_to(runs, 1 / 1.03), _trials_to(runs, 1 / 1.01)
    progress = ", ".join(f"{m}: {shares[m]:.1%} ({failed[m]:g} failed)" for m in marks)
    ranking = ", ".join(f"{knob} {share:.0%}" for knob, share in knobs.items())
    print(
        f"  {name:21s} best after {progress}; {trials:g} trials; 3 % in {three}, 1 % in {one};"
        f" {ranking}",
        flush=True,
    )
    return {
        "best_share": {str(mark): share for mark, share in shares.items()},
        "failed": {str(mark): count for mark, count in failed.items()},
        "num_trials": trials,
        "trials_to_3_percent": three,
        "trials_to_1_percent": one,
        "knobs": knobs,
    }


def _trials_to(runs: Sequence[_Run], share: float) -> float | None:
    """Median trials until the best reached this share; none when half of the runs did not."""
    counts = [
        next((trial for trial, best in enumerate(run.best, 1) if best >= share), float("inf"))
        for run in runs
    ]
    median = statistics.median(counts)
    return float(median) if np.isfinite(median) else None


def _mean_shares(runs: Sequence[_Run]) -> dict[str, float]:
    total: Counter[str] = Counter()
    for run in runs:
        total.update(run.shares)
    return {knob: round(share / len(runs), 3) for knob, share in total.most_common()}
