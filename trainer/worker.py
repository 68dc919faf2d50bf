"""One rank of one trial: `python -m trainer.worker --job job.json`, or `run_rank` from a launcher.

By hand, on two ranks: `torchrun --nproc-per-node 2 -m trainer.worker --job job.json`. Reports go
to the job file's folder. Importing this module starts nothing, so a fork server can preload it.
"""

import argparse
import os
import sys
import time
from contextlib import suppress
from datetime import timedelta
from pathlib import Path

import torch
import torch.distributed as dist
from pydantic import ValidationError

from trainer.contract import CONTRACT_VERSION, JOB_FILE, Phase, TrialJob
from trainer.engine import Engine
from trainer.errors import JobError
from trainer.faults import FaultInjector
from trainer.measure import (
    Recording,
    Stopwatch,
    breakdown,
    check_counts,
    largest_peak,
    rank_report,
    step_record,
    take_census,
    trial_report,
)
from trainer.memory import MemoryMeter, keep_freed_memory, limit_memory, return_freed_memory
from trainer.mesh import ParallelMesh
from trainer.report import Progress, ReportWriter

_MAX_EXTRA_WARMUP = 20  # fp16 may skip steps until the loss scale fits


class RankRun:
    """The life of one rank: set up, warm up, measure, report."""

    def __init__(
        self, job: TrialJob, folder: Path, rank: int, world_size: int, local_rank: int
    ) -> None:
        self.job, self.folder = job, folder
        self.rank, self.world_size = rank, world_size
        self.start_s = time.monotonic()
        self.device = _device(job, local_rank)
        self.writer = ReportWriter(folder, rank)
        self.progress = Progress(rank)
        self.faults = FaultInjector(job.fault, rank, self.device)
        self.meter: MemoryMeter | None = None
        self.peak_bytes = 0

    def enter(self, phase: Phase, stage: int = -1) -> None:
        """Note where this rank is, and let a requested fault happen."""
        self.progress.phase = phase
        self.progress.stage = stage if stage >= 0 else None
        self.faults.enter(phase, self.progress.step)

    def run(self, init_method: str) -> None:
        """Everything from the process group to the report; raises what goes wrong."""
        self.enter(Phase.INIT)
        mesh = ParallelMesh(self.job.config, self.world_size)
        self._join(init_method)
        self.enter(Phase.BUILD)
        self.meter = MemoryMeter(self.device)
        if self.job.memory_limit_bytes is not None and self.device.type == "cpu":
            limit_memory(self.job.memory_limit_bytes)
        engine = Engine(
            self.job.model, self.job.training, self.job.config, mesh, self.rank, self.device,
            seed=self.job.seed, enter_phase=self.enter,
        )  # fmt: skip
        watch = Stopwatch(engine)
        census = take_census(engine)
        startup_s = time.monotonic() - self.start_s
        self._warm_up(engine, watch)
        recording = self._measure(engine, watch)
        if self.job.measure.profile:
            self._profile(engine)
        self._report(engine, recording, census, startup_s)

    def _join(self, init_method: str) -> None:
        torch.manual_seed(self.job.seed)
        torch.set_num_threads(self.job.threads_per_rank)
        if self.device.type == "cpu":
            return_freed_memory()
        else:
            torch.cuda.set_device(self.device)
        dist.init_process_group(
            "gloo" if self.device.type == "cpu" else "nccl", init_method=init_method,
            rank=self.rank, world_size=self.world_size,
            timeout=timedelta(seconds=self.job.measure.deadline_s),
        )  # fmt: skip

    def _step(self, engine: Engine, watch: Stopwatch, *, is_warmup: bool) -> float:
        self.progress.step = 0 if self.progress.step is None else self.progress.step + 1
        counts, seconds = watch.step(self.progress.step)
        self._last_counts = counts
        if self.rank == 0:
            self.writer.write(
                step_record(engine, self.progress.step, counts, seconds, is_warmup=is_warmup)
            )
        else:
            self.writer.touch()
        engine.is_poisoned = self.faults.poisons_loss
        check_counts(engine, counts)
        return seconds

    def _warm_up(self, engine: Engine, watch: Stopwatch) -> None:
        """Warm-up steps; the peak of memory is taken in the last of them."""
        self.enter(Phase.WARMUP)
        assert self.meter is not None
        engine.is_poisoned = self.faults.poisons_loss
        for left in reversed(range(self.job.measure.warmup_steps)):
            if left == 0:
                self.meter.reset()
            self._step(engine, watch, is_warmup=True)
        self.peak_bytes = self.meter.peak_bytes()
        for _ in range(_MAX_EXTRA_WARMUP):
            if engine.optimizer is None or engine.optimizer.num_steps:
                break
            self._step(engine, watch, is_warmup=True)

    def _measure(self, engine: Engine, watch: Stopwatch) -> Recording:
        self.enter(Phase.MEASURE)
        assert self.meter is not None
        engine.is_poisoned = self.faults.poisons_loss
        if self.device.type == "cpu":
            keep_freed_memory()
        else:
            self.meter.reset()
        recording = Recording()
        for _ in range(self.job.measure.measured_steps):
            seconds = self._step(engine, watch, is_warmup=False)
            recording.step_times_s.append(seconds)
            recording.timeline = engine.read_timeline()
            recording.breakdowns.append(breakdown(recording.timeline, seconds))
        recording.counts = self._last_counts
        recording.collectives = {name: dict(e) for name, e in engine.groups.log.totals.items()}
        if self.device.type != "cpu":
            self.peak_bytes = self.meter.peak_bytes()
        return recording

    def _profile(self, engine: Engine) -> None:
        """One more step under torch's profiler; the trace opens in Perfetto."""
        activities = [torch.profiler.ProfilerActivity.CPU]
        if self.device.type != "cpu":
            activities.append(torch.profiler.ProfilerActivity.CUDA)
        with torch.profiler.profile(activities=activities) as profiler:
            engine.step((self.progress.step or 0) + 1)
            engine.synchronize()
        profiler.export_chrome_trace(str(self.folder / f"trace.{self.rank}.json"))

    def _report(
        self, engine: Engine, recording: Recording, census: tuple[int, int], startup_s: float
    ) -> None:
        self.enter(Phase.REPORT)
        largest = largest_peak(engine, self.peak_bytes)
        report = trial_report(self.job, engine, recording, census, largest, startup_s)
        self.writer.write(rank_report(engine, recording, self.peak_bytes))
        if self.world_size > 1:
            dist.barrier()  # the result is complete only once every rank has written its report
        if self.rank == 0:
            self.writer.write(report)

    def fail(self, error: BaseException) -> None:
        """Write this rank's own words about what went wrong."""
        peak = None
        if self.meter is not None:
            with suppress(OSError, RuntimeError):
                peak = self.meter.peak_bytes()
        self.writer.write(self.progress.failure(error, peak))


def _device(job: TrialJob, local_rank: int) -> torch.device:
    return torch.device("cpu") if job.device_kind == "cpu" else torch.device("cuda", local_rank)


def read_job(path: Path) -> TrialJob:
    """Read a job file.

    Raises:
        JobError: it is missing, malformed, or speaks another version of the contract.
    """
    try:
        job = TrialJob.model_validate_json(path.read_text())
    except OSError as error:
        raise JobError(f"cannot read the job file {path}: {error.strerror}") from error
    except ValidationError as error:
        first = error.errors()[0]
        where = ".".join(str(part) for part in first["loc"]) or "the file"
        raise JobError(f"{path} is not a job: {where}: {first['msg']}") from error
    if job.contract_version != CONTRACT_VERSION:
        raise JobError(
            f"{path} has contract version {job.contract_version}, not {CONTRACT_VERSION}",
            hint="tuner and trainer must come from one installation",
        )
    return job


def run_rank(folder: str, rank: int, world_size: int, local_rank: int, init_method: str) -> int:
    """Run one rank of the job in `folder`; 0 if it went well, 1 with a failure report otherwise.

    Args:
        folder: the trial's folder, which holds `job.json` and receives the reports.
        rank: this process's place in the world.
        world_size: number of ranks.
        local_rank: place on this host; picks the accelerator.
        init_method: how ranks find each other, e.g. `file:///...`, `tcp://host:port` or `env://`.
    """
    job = read_job(Path(folder) / JOB_FILE)
    return _run(job, Path(folder), rank, world_size, local_rank, init_method)


def _run(
    job: TrialJob, folder: Path, rank: int, world_size: int, local_rank: int, init: str
) -> int:
    run = RankRun(job, folder, rank, world_size, local_rank)
    try:
        run.run(init)
    except Exception as error:  # whatever it is, it belongs in the report
        run.fail(error)
        return 1
    else:
        dist.destroy_process_group()
        return 0
    finally:
        run.writer.close()


def main(arguments: list[str] | None = None) -> int:
    """Command line; ranks, if several, come from torchrun's environment."""
    parser = argparse.ArgumentParser(prog="python -m trainer.worker", description=__doc__)
    parser.add_argument("--job", type=Path, required=True, help="job file (a TrialJob as JSON)")
    parser.add_argument("--profile", action="store_true", help="write trace.<rank>.json as well")
    options = parser.parse_args(arguments)
    try:
        job = read_job(options.job)
    except JobError as error:
        sys.stderr.write(f"error: {error}\n")
        return 2
    if options.profile:
        measure = job.measure.model_copy(update={"profile": True})
        job = job.model_copy(update={"measure": measure})
    rank, world_size = int(os.environ.get("RANK", 0)), int(os.environ.get("WORLD_SIZE", 1))
    local_rank = int(os.environ.get("LOCAL_RANK", 0))
    folder = options.job.resolve().parent
    init = "env://" if "MASTER_ADDR" in os.environ else f"file://{folder}/rendezvous.{os.getpid()}"
    return _run(job, folder, rank, world_size, local_rank, init)


if __name__ == "__main__":
    raise SystemExit(main())
