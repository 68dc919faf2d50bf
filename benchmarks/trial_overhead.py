"""Overhead of a trial: its wall clock less its warm-up and measured steps.

Trials of one small model run one after the other through a launcher, as a study runs them: fork
the ranks, rendezvous, build the model, step, report, tear down. The first trial also pays for
bringing the launcher up (`cold_start_s`); the others are warm. 2 and 4 ranks take turns, so that a
change of the machine's speed hits both.

    python -m benchmarks.trial_overhead [--launcher ray|local] [--model NAME] [--quick] [--json]
"""

import argparse
import statistics
import tempfile
import time
from pathlib import Path
from typing import Any

from benchmarks.harness import finish, parser
from search_spaces.model_io import load_model_spec
from search_spaces.parallel_config import ParallelConfig
from search_spaces.training_spec import TrainingSpec
from trainer.contract import MeasureSpec, TrialJob, TrialOutput
from tuner import registry
from tuner.ports import Launcher
from tuner.trial_life import judge

CONFIGS = {2: ParallelConfig(tp=2, micro_batch_size=2), 4: ParallelConfig(tp=2, pp=2)}


def run_trial(launcher: Launcher, job: TrialJob, folder: Path) -> tuple[float, TrialOutput]:
    """Wall clock of one trial in seconds, and what it wrote."""
    started_s = time.perf_counter()
    handle = launcher.submit(job, folder)
    while (output := handle.poll()) is None:
        time.sleep(0.005)
    elapsed_s = time.perf_counter() - started_s
    if output.result is None:
        raise SystemExit(f"the trial failed: {judge(output).failure}")
    return elapsed_s, output


def overhead_s(elapsed_s: float, output: TrialOutput) -> float:
    """Seconds of the trial that were neither warm-up nor measured steps."""
    return elapsed_s - sum(step.step_time_s for step in output.steps)


def make_job(options: argparse.Namespace, num_ranks: int, index: int) -> TrialJob:
    """A job of `num_ranks` ranks on the chosen model."""
    return TrialJob(
        trial_id=f"overhead-{num_ranks}-{index}",
        model=load_model_spec(options.model),
        training=TrainingSpec(sequence_length=64, global_batch_size=8),
        config=CONFIGS[num_ranks],
        measure=MeasureSpec(warmup_steps=1, measured_steps=3),
    )


def main() -> None:
    """Run the trials and print medians with their spread."""
    options_parser = parser(__doc__)
    options_parser.add_argument("--launcher", default="ray", choices=["ray", "local"])
    options_parser.add_argument("--model", default="gpt2-mini")
    options = options_parser.parse_args()
    repeats = 5 if options.quick else 11
    overheads: dict[int, list[float]] = {2: [], 4: []}
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        launcher: Launcher = registry.load("launchers", options.launcher)(
            num_devices=4, run_folder=folder
        )
        started_s = time.perf_counter()
        launcher.open()
        try:
            elapsed_s, output = run_trial(launcher, make_job(options, 2, 0), folder / "cold")
            cold_s = time.perf_counter() - started_s - (elapsed_s - overhead_s(elapsed_s, output))
            for index in range(repeats):
                for num_ranks in (2, 4):
                    job = make_job(options, num_ranks, index)
                    result = run_trial(launcher, job, folder / job.trial_id)
                    overheads[num_ranks].append(overhead_s(*result))
        finally:
            launcher.close()
    figures: dict[str, Any] = {"launcher": options.launcher, "model": options.model}
    for num_ranks, values in overheads.items():
        low, _, high = statistics.quantiles(values, n=4)
        figures[f"overhead_s_{num_ranks}_ranks"] = statistics.median(values)
        figures[f"overhead_iqr_s_{num_ranks}_ranks"] = high - low
    print(f"{repeats} warm trials each of 2 ranks (tp2) and 4 ranks (tp2 pp2), in turns")
    finish(options, figures | {"cold_start_s": cold_s, "warm_trials": repeats})


if __name__ == "__main__":
    main()
