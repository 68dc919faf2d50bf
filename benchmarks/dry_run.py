"""Dry run against measured peaks and against the memory formula; and its time for a large model.

Trials of a small GPT-2 run on real gloo ranks of this machine, which measure the peak of resident
memory of a warm step (the largest rank's counts). The dry run builds the same ranks in one process
on fake tensors; nothing in it is fitted. The formula is the cost model's: as it comes, and
corrected by a refit on every other row of the measured peaks. Last, GPT-2 22B on 64 ranks.
"""

import multiprocessing
import os
import statistics
import tempfile
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from benchmarks.harness import finish, parse_args
from benchmarks.kernel_peer import model_of, training_of
from benchmarks.peers import Shape
from search_spaces.cluster_spec import ClusterSpec
from search_spaces.cost_models.analytic import AnalyticCostModel
from search_spaces.cost_models.calibrate import Observation, refit
from search_spaces.model_io import load_model_spec
from search_spaces.parallel_config import ParallelConfig
from search_spaces.training_spec import TrainingSpec
from trainer.contract import JOB_FILE, MeasureSpec, TrialJob, read_output
from trainer.dry_run import dry_run
from trainer.worker import run_rank

FULL = Shape(num_layers=8, hidden_size=384, num_heads=6, vocab_size=4096, batch_size=4)
QUICK = Shape(num_layers=4, hidden_size=256, num_heads=4, vocab_size=4096, batch_size=4)
CONFIGS: tuple[dict[str, Any], ...] = (
    {"dp": 2},
    {"tp": 2, "sequence_parallel": True},
    {"pp": 2},
    {"dp": 2, "zero_stage": 3},
    {"dp": 2, "zero_stage": 1},
    {"dp": 2, "zero_stage": 2},
    {"dp": 2, "recompute": "selective"},
    {"dp": 2, "zero_stage": 3, "recompute": "full"},
    {"tp": 2},
    {"tp": 2, "dtype": "bf16"},
    {"pp": 2, "virtual_stages": 2, "pipeline_schedule": "interleaved"},
    {"pp": 2, "pipeline_schedule": "zero_bubble"},
    {"pp": 2, "recompute": "full"},
    {"cp": 2},
    {"pp": 2, "dp": 2, "zero_stage": 1, "dtype": "bf16"},
    {"tp": 2, "pp": 2},
    {"tp": 2, "dp": 2, "zero_stage": 2},
    {"tp": 4, "tp_layout": "2d", "micro_batch_size": 2},
)
NUM_QUICK = 4
LARGE: dict[str, Any] = {"tp": 8, "pp": 4, "dp": 2, "zero_stage": 1, "dtype": "bf16"}


@dataclass(frozen=True)
class Row:
    """Peaks in bytes of one configuration, of its largest rank."""

    config: ParallelConfig
    measured: float
    dry: float
    libraries: float
    """What of the dry run is code that a library compiles."""
    formula: float
    """Without what libraries allocate."""
    step_time_s: float

    @property
    def tensors(self) -> float:
        """The dry run without that code."""
        return self.dry - self.libraries


def measure(job: TrialJob) -> tuple[int, float]:
    """Largest peak over the ranks of a real trial, and its step time in seconds."""
    context = multiprocessing.get_context("forkserver")
    context.set_forkserver_preload(["trainer.worker"])
    size = job.config.world_size
    with tempfile.TemporaryDirectory(prefix="dry-run-") as name:
        folder = Path(name)
        (folder / JOB_FILE).write_text(job.model_dump_json())
        start = (folder / "rendezvous").as_uri()
        ranks = [
            context.Process(target=run_rank, args=(name, rank, size, rank, start))
            for rank in range(size)
        ]
        for process in ranks:
            process.start()
        for process in ranks:
            process.join()
        output = read_output(folder)
    if output.result is None:
        failures = [failure.message for failure in output.failures]
        raise SystemExit(f"{job.config.short()}: {failures}")
    peak = max(rank.peak_memory_bytes for rank in output.ranks)
    return peak, output.result.step_time_s


def small_rows(shape: Shape, configs: tuple[dict[str, Any], ...]) -> list[Row]:
    """Measure, dry-run and estimate each configuration; one printed line each."""
    model, training = model_of(shape), training_of(shape)
    formula = AnalyticCostModel(model, training, ClusterSpec(devices_per_node=4))
    print(f"{shape}; MiB of the largest rank")
    print(f"{'configuration':44s} measured  dry run   error library  formula  run s  dry s")
    rows = []
    for knobs in configs:
        config = ParallelConfig(**knobs)
        job = TrialJob(
            trial_id="dry-run", model=model, training=training, config=config,
            measure=MeasureSpec(warmup_steps=2, measured_steps=1, deadline_s=600),
        )  # fmt: skip
        marks = [time.perf_counter()]
        measured, step_time_s = measure(job)
        marks.append(time.perf_counter())
        found = dry_run(job)
        dry, libraries = found.peak_memory_bytes, found.parts_bytes["libraries"]
        marks.append(time.perf_counter())
        told = formula.estimate(config)
        estimate = told.peak_memory_bytes - told.memory_parts_bytes["runtime"]
        rows.append(Row(config, measured, dry, libraries, estimate, step_time_s))
        print(
            f"{config.short():44s} {measured / 2**20:8.1f} {dry / 2**20:8.1f} "
            f"{dry / measured - 1:+7.1%} {libraries / 2**20:8.1f} {estimate / 2**20:8.1f} "
            f"{marks[1] - marks[0]:6.1f} {marks[2] - marks[1]:6.1f}",
            flush=True,
        )
    return rows


def corrected(shape: Shape, rows: list[Row], *, has_runtime: bool = False) -> list[float]:
    """The formula's peaks after a refit on every other row; the rows between are unseen.

    Without what libraries allocate, most of which a dry run cannot know, where `has_runtime` is
    false.
    """
    model = AnalyticCostModel(model_of(shape), training_of(shape), ClusterSpec(devices_per_node=4))
    seen: list[Observation] = [(row.config, row.step_time_s, row.measured) for row in rows[::2]]
    fitted = refit(model, seen)
    estimates = fitted.estimate_many([row.config for row in rows])
    left_out = 0.0 if has_runtime else 1.0
    return [e.peak_memory_bytes - left_out * e.memory_parts_bytes["runtime"] for e in estimates]


def time_large() -> tuple[float, float]:
    """Seconds, and GiB of the first rank, of a dry run of GPT-2 22B on 64 ranks."""
    job = TrialJob(
        trial_id="22b",
        model=load_model_spec("frontier-22b"),
        training=TrainingSpec(sequence_length=2048, global_batch_size=32),
        config=ParallelConfig(**LARGE),
    )
    start_s = time.perf_counter()
    peak = dry_run(job, rank=0).peak_memory_bytes
    return time.perf_counter() - start_s, peak / 2**30


def errors(values: list[float], truth: list[float]) -> list[float]:
    """Relative distances."""
    return [abs(value / true - 1) for value, true in zip(values, truth, strict=True)]


def main() -> None:
    """Print the table and the figures."""
    args = parse_args(__doc__)
    os.environ.setdefault("OMP_NUM_THREADS", "1")
    shape = QUICK if args.quick else FULL
    rows = small_rows(shape, CONFIGS[:NUM_QUICK] if args.quick else CONFIGS)
    dry, measured = [row.dry for row in rows], [row.measured for row in rows]
    tensors = [row.tensors for row in rows]
    by_measured = corrected(shape, rows)
    print(f"\n{'without libraries':44s}  dry run  formula   error")
    for row, told in zip(rows, by_measured, strict=True):
        print(
            f"{row.config.short():44s} {row.tensors / 2**20:8.1f} {told / 2**20:8.1f} "
            f"{row.tensors / told - 1:+7.1%}"
        )
    with_runtime = corrected(shape, rows, has_runtime=True)
    seconds, gib = time_large()
    finish(
        args,
        {
            "num_configs": len(rows),
            "num_within_10_percent_of_measured": sum(e <= 0.10 for e in errors(dry, measured)),
            "num_within_3_percent_of_formula": sum(e <= 0.03 for e in errors(tensors, by_measured)),
            "dry_vs_measured_max_error": max(errors(dry, measured)),
            "dry_vs_measured_median_error": statistics.median(errors(dry, measured)),
            "dry_vs_formula_max_error": max(errors(tensors, by_measured)),
            "dry_vs_formula_median_error": statistics.median(errors(tensors, by_measured)),
            "dry_vs_formula_unseen_max_error": max(errors(tensors[1::2], by_measured[1::2])),
            "dry_vs_formula_prior_max_error": max(errors(tensors, [r.formula for r in rows])),
            "formula_vs_measured_max_error": max(errors(with_runtime, measured)),
            "dry_22b_64_ranks_s": seconds,
            "dry_22b_rank_0_gib": gib,
        },
    )


if __name__ == "__main__":
    main()
