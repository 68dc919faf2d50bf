"""A small model on this machine's cores: an exhaustive sweep, then live searches against it.

The sweep measures every legal point several times. Each measurement is a line of the sweep's file,
so a sweep that was cut off goes on where it stopped. A live search measures each of its proposals
anew; it has won when the fastest of them, as measured, lies by the sweep's medians within the noise
of the sweep's best. At the end the leaders are measured again in turns, as a study does.
"""

import argparse
import json
import statistics
import tempfile
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks.search.problem import SearcherFactory
from search_spaces.cluster_detect import detect_local_cluster
from search_spaces.model_io import load_model_spec
from search_spaces.parallel_config import ParallelConfig
from search_spaces.space import SearchSpace, default_domains
from search_spaces.training_spec import TrainingSpec
from trainer.contract import MeasureSpec, TrialJob
from tuner.launchers.local import LocalLauncher
from tuner.ports import Candidate, Observation, ObservationState
from tuner.study import build_candidates

MODEL, RANKS = "gpt2-mini", 4
TRAINING = TrainingSpec(sequence_length=64, global_batch_size=8)
KNOBS = ("dp", "tp", "pp", "micro_batch_size", "zero_stage", "pipeline_schedule")
"""Knobs whose default domains are searched; the others stay at their first value."""
LEADERS, REPEATS = 4, 2
"""Configurations that are measured again at the end, and how often."""


@dataclass
class Machine:
    """Measures configurations of the small model on this machine's cores."""

    launcher: LocalLauncher
    folder: Path
    num_measured: int = 0

    def measure(self, config: ParallelConfig) -> Observation:
        """One real trial."""
        self.num_measured += 1
        name = f"{self.num_measured:05d}"
        job = TrialJob(
            trial_id=name,
            model=load_model_spec(MODEL),
            training=TRAINING,
            config=config,
            measure=MeasureSpec(warmup_steps=1, measured_steps=5, deadline_s=120),
        )
        handle = self.launcher.submit(job, self.folder / name)
        while (output := handle.poll()) is None:
            time.sleep(0.01)
        if output.result is None:
            failure = output.failures[0].failure if output.failures else None
            return Observation(config=config, state=ObservationState.FAILED, failure=failure)
        return Observation(
            config=config,
            state=ObservationState.COMPLETED,
            step_time_s=output.result.step_time_s,
            tokens_per_s=output.result.tokens_per_s,
            peak_memory_bytes=output.result.peak_memory_bytes,
        )


def live_candidates() -> list[Candidate]:
    """All legal points of the small space with the cost model's predictions."""
    model, cluster = load_model_spec(MODEL), detect_local_cluster(RANKS, "cpu")
    domains = default_domains(model, TRAINING, cluster)
    narrow = {name: values if name in KNOBS else values[:1] for name, values in domains.items()}
    space = SearchSpace(model, TRAINING, cluster, narrow)
    return build_candidates(space.enumerate(), model, TRAINING, cluster)


def live_figures(
    options: argparse.Namespace, searchers: Mapping[str, SearcherFactory]
) -> dict[str, Any]:
    """Sweep unless `options.sweep` names a file that exists, then search with every searcher."""
    candidates = live_candidates()
    with tempfile.TemporaryDirectory(prefix="tuner-live-") as folder:
        launcher = LocalLauncher(num_devices=RANKS, run_folder=Path(folder))
        launcher.open()
        try:
            machine = Machine(launcher, Path(folder))
            repeats = 2 if options.quick else 3
            sweep = _sweep(machine, candidates, options.sweep, repeats)
            figures = _report_sweep(sweep)
            truth = {key: statistics.median(times) for key, times in sweep.times.items() if times}
            for name, make in searchers.items():
                seeds = range(min(options.seeds, 5))
                runs = [
                    _search(machine, candidates, make, seed, min(options.trials, 20), truth)
                    for seed in seeds
                ]
                figures[name] = _summary(name, runs, sweep.seconds, figures["noise"])
        finally:
            launcher.close()
    return figures


@dataclass
class Sweep:
    """Step times of each point by its key, and how long it took to measure them all."""

    times: dict[str, list[float]]
    seconds: float = 0.0

    def add(self, line: Mapping[str, Any]) -> None:
        """One measurement, as `_sweep` writes it; `step_time_s` is none where the trial failed."""
        self.seconds += line["seconds"]
        if line["step_time_s"] is not None:
            self.times[line["config"]].append(line["step_time_s"])


def _sweep(
    machine: Machine, candidates: Sequence[Candidate], path: Path | None, repeats: int
) -> Sweep:
    """Every point `repeats` times, the repeats of a point spread over the whole sweep.

    What `path` holds already is not measured again; each new measurement is added to it at once.
    """
    by_key = {candidate.config.config_key: candidate.config for candidate in candidates}
    sweep = Sweep({key: [] for key in by_key})
    done = set()
    for line in _lines(path):
        if line["config"] in by_key and line["repeat"] < repeats:
            sweep.add(line)
            done.add((line["repeat"], line["config"]))
    for repeat in range(repeats):
        for index in np.random.default_rng(repeat).permutation(len(candidates)):
            key = candidates[int(index)].config.config_key
            if (repeat, key) in done:
                continue
            start = time.monotonic()
            told = machine.measure(by_key[key])
            line = {
                "repeat": repeat,
                "config": key,
                "knobs": by_key[key].short(),
                "step_time_s": told.step_time_s,
                "failure": told.failure,
                "seconds": time.monotonic() - start,
            }
            sweep.add(line)
            if path is not None:
                with path.open("a") as file:
                    file.write(json.dumps(line) + "\n")
    return sweep


def _lines(path: Path | None) -> list[dict[str, Any]]:
    """Measurements of an earlier sweep; a last line that was cut off is left out, and ended."""
    if path is None or not path.exists():
        return []
    found = []
    whole = path.read_text()
    if whole and not whole.endswith("\n"):
        path.write_text(whole + "\n")
    for text in whole.splitlines():
        try:
            found.append(json.loads(text))
        except json.JSONDecodeError:
            continue
    return found


def _report_sweep(sweep: Sweep) -> dict[str, Any]:
    spreads = [max(t) / min(t) - 1 for t in sweep.times.values() if len(t) > 1]
    noise = statistics.median(spreads) if spreads else 0.0
    ran = sum(bool(times) for times in sweep.times.values())
    print(
        f"{MODEL} on {RANKS} CPU ranks: {len(sweep.times)} legal points, {ran} ran, swept in"
        f" {sweep.seconds:.0f} s, repeats of a point differ by {noise:.1%} (median)",
        flush=True,
    )
    return {
        "num_points": len(sweep.times),
        "num_ran": ran,
        "sweep_s": round(sweep.seconds, 1),
        "noise": round(noise, 4),
    }


def _search(
    machine: Machine,
    candidates: Sequence[Candidate],
    make: SearcherFactory,
    seed: int,
    num_trials: int,
    truth: Mapping[str, float],
) -> dict[str, Any]:
    """One live search: the sweep's regret of the best configuration as measured, trial by trial."""
    searcher = make(candidates, seed)
    told: list[Observation] = []
    regret: list[float] = []
    seconds: list[float] = []
    start, best = time.monotonic(), min(truth.values())
    for _ in range(num_trials):
        searcher.tell(told)
        proposed = searcher.ask(1)
        if not proposed:
            break
        told.append(machine.measure(proposed[0]))
        done = [o for o in told if o.step_time_s is not None]
        leader = min(done, key=lambda o: o.step_time_s or 0.0, default=None)
        known = truth.get(leader.config.config_key) if leader else None
        regret.append(known / best - 1 if known is not None else float("inf"))
        seconds.append(time.monotonic() - start)
    confirmed = _confirmed(machine, told)
    final = truth.get(confirmed.config_key) if confirmed else None
    return {
        "regret": regret,
        "seconds": seconds,
        "final_regret": final / best - 1 if final is not None else float("inf"),
        "total_s": time.monotonic() - start,
    }


def _confirmed(machine: Machine, told: Sequence[Observation]) -> ParallelConfig | None:
    """The fastest configuration after the leaders were measured again, in turns."""
    times = {o.config.config_key: [o.step_time_s] for o in told if o.step_time_s is not None}
    leaders = sorted(
        (o.config for o in told if o.config.config_key in times),
        key=lambda config: times[config.config_key][0],
    )[:LEADERS]
    for _ in range(REPEATS):
        for config in leaders:
            again = machine.measure(config).step_time_s
            if again is not None:
                times[config.config_key].append(again)
    return min(
        leaders, key=lambda config: statistics.median(times[config.config_key]), default=None
    )


def _summary(
    name: str, runs: Sequence[Mapping[str, Any]], sweep_s: float, noise: float
) -> dict[str, Any]:
    trials, spans = [], []
    for run in runs:
        within = [i for i, value in enumerate(run["regret"]) if value <= max(noise, 0.01)]
        trials.append(within[0] + 1 if within else None)
        spans.append(run["seconds"][within[0]] if within else None)
    reached = [count for count in trials if count is not None]
    seconds = [span for span in spans if span is not None]
    figures = {
        "trials_to_noise_of_best": statistics.median(reached) if reached else None,
        "reached": len(reached) / len(runs),
        "seconds": round(statistics.median(seconds), 1) if seconds else None,
        "regret_at_10": statistics.median(run["regret"][:10][-1] for run in runs),
        "regret_after_repeats": statistics.median(run["final_regret"] for run in runs),
        "total_s": round(statistics.median(run["total_s"] for run in runs), 1),
    }
    print(f"  {name}: {figures} (sweep {sweep_s:.0f} s)", flush=True)
    return figures
