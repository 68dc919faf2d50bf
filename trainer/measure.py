"""Measuring a trial: timed steps, counts that must be right, and the figures of the report."""

import math
import socket
import statistics
import sys
from dataclasses import dataclass, field

import torch
import torch.distributed as dist

from search_spaces.counts import hardware_flops_per_step, model_flops_per_step, num_parameters
from trainer.contract import RankReport, StepRecord, TrialJob, TrialReport
from trainer.engine import Engine, StepCounts
from trainer.errors import DivergedError, ImplausibleError
from trainer.memory import MemoryMeter
from trainer.timing import SharedClock, Span

_PARTS = {"F": "forward", "B": "backward", "I": "backward", "W": "backward"}


@dataclass
class Recording:
    """What the measured steps left behind."""

    step_times_s: list[float] = field(default_factory=list)
    breakdowns: list[dict[str, float]] = field(default_factory=list)
    counts: StepCounts | None = None
    collectives: dict[str, dict[str, float]] = field(default_factory=dict)
    timeline: list[Span] = field(default_factory=list)


class Stopwatch:
    """Times steps over all ranks on one clock: from a common barrier to the last rank's end."""

    def __init__(self, engine: Engine) -> None:
        self._engine, self._world = engine, engine.world
        self._clock = SharedClock(engine.world, _hostnames(engine.world.size))

    def step(self, step: int) -> tuple[StepCounts, float]:
        """Run one step; its counts, and the seconds between the first start and the last end."""
        self._engine.synchronize()
        if self._world.size > 1:
            dist.barrier()
        start = self._clock.now()
        counts = self._engine.step(step)
        self._engine.synchronize()
        end = self._clock.now()
        # the latest end and the earliest start, by one maximum
        times = torch.tensor([end, -start], dtype=torch.float64, device=self._engine.device)
        if self._world.size > 1:
            dist.all_reduce(times, dist.ReduceOp.MAX)
        last_end, minus_first_start = times.tolist()
        return counts, last_end + minus_first_start


def _hostnames(world_size: int) -> list[str]:
    if world_size == 1:
        return [socket.gethostname()]
    names: list[str] = [""] * world_size
    dist.all_gather_object(names, socket.gethostname())
    return names


# -------------------------------------------------------------------- checks
def check_counts(engine: Engine, counts: StepCounts) -> None:
    """Compare what ran with what the job asks for.

    Raises:
        DivergedError: the loss is not a finite number.
        ImplausibleError: micro-batches, tokens or layers run differ.
    """
    if not math.isfinite(counts.loss):
        raise DivergedError(f"the loss is {counts.loss}", hint="try a lower learning rate or bf16")
    config, model = engine.config, engine.model
    runs = engine.num_micro_batches * config.dp * config.cp
    expected = {
        "tokens": (counts.tokens, engine.training.tokens_per_step),
        "layer passes": (counts.layer_runs, model.num_layers * runs),
        "forward passes of stages": (counts.forward_runs, config.num_stages * runs),
    }
    if engine.is_training:
        expected["backward passes of stages"] = (counts.backward_runs, config.num_stages * runs)
    for what, (found, wanted) in expected.items():
        if found != wanted:
            raise ImplausibleError(f"a step ran {found} {what}, but the job means {wanted}")


def take_census(engine: Engine) -> tuple[int, int]:
    """Distinct parameters and layers held by all ranks together.

    Raises:
        ImplausibleError: they are not those of the model.
    """
    model = engine.model
    census = torch.zeros(1 + model.num_layers, dtype=torch.float64)
    census[0] = engine.num_distinct_parameters()
    if not any(engine.coordinates[axis] for axis in ("tp", "cp", "dp")):
        census[[1 + index for index in engine.layer_indices]] = 1
    census = census.to(engine.device)
    engine.world.all_reduce(census).wait()
    found, wanted = int(census[0].item()), num_parameters(model)
    if found != wanted:
        raise ImplausibleError(f"the ranks hold {found} parameters, but the model has {wanted}")
    holders = census[1:].tolist()
    if any(count != 1 for count in holders):
        raise ImplausibleError(f"the stages hold the layers {holders} times instead of once each")
    return found, len(holders)


# -------------------------------------------------------------------- figures
def breakdown(spans: list[Span], step_time_s: float) -> dict[str, float]:
    """Seconds of one step by part; `bubble` is what no span covers: waiting for other stages."""
    parts: dict[str, float] = {}
    for name, _, _, start, end in spans:
        part = _PARTS.get(name, name)
        parts[part] = parts.get(part, 0.0) + end - start
    parts["bubble"] = max(0.0, step_time_s - sum(parts.values()))
    return parts


def rank_report(engine: Engine, recording: Recording, peak_memory_bytes: int) -> RankReport:
    """What this rank held and used."""
    names = sorted({name for parts in recording.breakdowns for name in parts})
    medians = {
        name: statistics.median(parts.get(name, 0.0) for parts in recording.breakdowns)
        for name in names
    }
    return RankReport(
        rank=engine.rank, hostname=socket.gethostname(), device=_device_name(engine.device),
        coordinates=engine.coordinates, stages=sorted(engine.stages), layers=engine.layer_indices,
        num_parameters=engine.num_held_parameters(), peak_memory_bytes=peak_memory_bytes,
        state_memory_bytes=engine.state_bytes(), breakdown_s=medians,
        collectives=recording.collectives,
        timeline=[span for span in recording.timeline if span[0] in _PARTS],
    )  # fmt: skip


def trial_report(
    job: TrialJob, engine: Engine, recording: Recording, census: tuple[int, int],
    peak_memory_bytes: int, startup_s: float,
) -> TrialReport:  # fmt: skip
    """The figures of the trial.

    Raises:
        ImplausibleError: the model FLOP/s exceed the device's peak.
    """
    times = recording.step_times_s
    median = statistics.median(times)
    world_size = engine.mesh.world_size
    model_flops = model_flops_per_step(job.model, job.training)
    hardware_flops = hardware_flops_per_step(job.model, job.training, job.config)
    per_device = model_flops / median / world_size
    mfu = per_device / job.peak_flops_per_s if job.peak_flops_per_s else None
    if mfu is not None and mfu > 1:
        raise ImplausibleError(
            f"an MFU of {mfu:.2f} is above what the device can do",
            hint="check peak_flops_per_s, or measure it with `python -m trainer.peak`",
        )
    counts = recording.counts
    assert counts is not None
    return TrialReport(
        step_time_s=median, step_time_iqr_s=_iqr(times), step_times_s=times,
        tokens_per_s=counts.tokens / median, tokens_per_step=counts.tokens,
        num_microbatches=counts.forward_runs
        // (job.config.num_stages * job.config.dp * job.config.cp),
        num_parameters=census[0], num_layers=census[1], model_flops_per_step=model_flops,
        hardware_flops_per_step=hardware_flops, model_flops_per_s_per_device=per_device,
        hardware_flops_per_s_per_device=hardware_flops / median / world_size, mfu=mfu,
        peak_memory_bytes=peak_memory_bytes,
        final_loss=counts.loss if engine.is_training else None, startup_s=startup_s,
        versions={"python": sys.version.split()[0], "torch": torch.__version__},
    )  # fmt: skip


def step_record(
    engine: Engine, step: int, counts: StepCounts, seconds: float, *, is_warmup: bool
) -> StepRecord:
    """The line of one step."""
    loss = counts.loss if engine.is_training else None
    return StepRecord(
        step=step, is_warmup=is_warmup, step_time_s=seconds, loss=loss, tokens=counts.tokens
    )


def largest_peak(engine: Engine, meter_peak: int) -> int:
    """Largest peak memory over all ranks."""
    peak = torch.tensor([meter_peak], dtype=torch.float64, device=engine.device)
    engine.world.all_reduce(peak, maximum=True).wait()
    return int(peak.item())


def _iqr(times: list[float]) -> float:
    if len(times) < 2:
        return 0.0
    first, _, third = statistics.quantiles(times, n=4, method="inclusive")
    return third - first


def _device_name(device: torch.device) -> str:
    return "cpu" if device.type == "cpu" else torch.cuda.get_device_name(device)


__all__ = [
    "MemoryMeter", "Recording", "Stopwatch", "breakdown", "check_counts", "largest_peak",
    "rank_report", "step_record", "take_census", "trial_report",
]  # fmt: skip
