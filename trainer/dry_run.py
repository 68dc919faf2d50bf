"""Dry run: one rank of a trial of any size, in one process, without data and without peers.

`python -m trainer.dry_run --job job.json [--rank N] [--exact] [--json]`

The trial's own engine is built and takes two steps on fake tensors, which have shapes but no
memory, with a process group whose collectives return at once. So the peak of live bytes and the
FLOPs are those of the code that would really run. Steps are linear in the layers per stage; a deep
model is run with 2 and with 3 layers per stage and extended, action by action, unless `exact`.
"""

import argparse
import json
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor
from torch._C._distributed_c10d import FakeWork
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.testing._internal.distributed.fake_pg import FakeStore

from search_spaces.layers import stage_layer_counts
from trainer.contract import Phase, TrialJob
from trainer.engine import Engine, StepCounts
from trainer.errors import TrainerError, UnsupportedConfigError
from trainer.live_memory import LiveMemory, storage_key
from trainer.mesh import ParallelMesh
from trainer.parallel.collectives import Communicator
from trainer.schedules import stages_of_rank
from trainer.worker import read_job

PARTS = ("parameters", "gradients", "optimizer", "activations", "libraries", "other")
_SHALLOW, _DEEPER = 4, 5  # layers per stage of the two runs that are extended
_NEAR_PEAK = 0.98  # parts are taken from the second step, once it is this near the first's peak


@dataclass(frozen=True)
class DryRun:
    """What one rank would use. `layers_per_stage_run` tells an extension from an exact run."""

    rank: int
    peak_memory_bytes: int
    parts_bytes: dict[str, int]
    """Addends of the peak: weights, gradients, optimizer (masters and moments), what a step makes
    besides, code that a library compiled, and what else lives between steps."""
    hardware_flops: float
    """Of one step of this rank; recomputation counted, attention as the full square."""
    seconds: float
    layers_per_stage_run: tuple[int, ...]


@dataclass(frozen=True)
class _Measurement:
    peaks: dict[str, int]
    parts: dict[str, int]
    flops: int


class _DryEngine(Engine):
    """An engine that has no peers to agree with on what was counted."""

    def _agree(self, loss: Tensor | None) -> StepCounts:
        return StepCounts(0.0, 0, 0, 0, 0)


def dry_run(job: TrialJob, rank: int | None = None, *, exact: bool = False) -> DryRun:
    """Run two steps of one rank without memory, and count.

    Args:
        job: the trial; its world size is its configuration's.
        rank: whose part to run; without, the first rank of every pipeline stage is run and the one
            with the highest peak returned.
        exact: build all layers, whatever time it takes.

    Raises:
        UnsupportedConfigError: the kernel cannot run the configuration, or the dry run cannot.
    """
    check(job, rank)
    if rank is not None:
        return _dry_run_rank(job, rank, exact=exact)
    size = job.config.world_size
    ranks = range(0, size, size // job.config.pp)
    return max((_dry_run_rank(job, r, exact=exact) for r in ranks), key=_peak)


def check(job: TrialJob, rank: int | None = None) -> None:
    """Refuse what a dry run cannot do.

    Raises:
        UnsupportedConfigError: with one sentence that says what.
    """
    config = job.config
    if job.model.num_experts:
        raise UnsupportedConfigError(
            "a dry run knows no data, on which the routing of a mixture of experts depends",
            hint="use a dense model",
        )
    if config.compile:
        raise UnsupportedConfigError(
            "a dry run cannot see what a compiler allocates", hint="set compile=false"
        )
    if config.optimizer_offload and job.device_kind != "cpu":
        raise UnsupportedConfigError(
            f"a dry run cannot tell host memory from that of {job.device_kind}",
            hint="set optimizer_offload=false",
        )
    if rank is not None and not 0 <= rank < config.world_size:
        raise UnsupportedConfigError(
            f"rank {rank} is not among 0..{config.world_size - 1}, the ranks of {config.short()}"
        )
    if dist.is_initialized():
        raise UnsupportedConfigError(
            "a dry run needs a process that has joined no process group", hint="start a new one"
        )


def _peak(result: DryRun) -> int:
    return result.peak_memory_bytes


def _dry_run_rank(job: TrialJob, rank: int, *, exact: bool) -> DryRun:
    start = time.perf_counter()
    depth = None if exact else _uniform_depth(job, rank)
    if depth is None or depth <= _DEEPER:
        found, depths = _measure(job, rank), tuple(_depths(job, rank))
    else:
        shallow, deeper = (_measure(_with_depth(job, d), rank) for d in (_SHALLOW, _DEEPER))
        found, depths = _extend(shallow, deeper, depth - _DEEPER), (_SHALLOW, _DEEPER)
    peak = max(found.peaks.values())
    return DryRun(
        rank, peak, _closed(found.parts, peak), float(found.flops),
        time.perf_counter() - start, depths,
    )  # fmt: skip


def _closed(parts: dict[str, int], peak: int) -> dict[str, int]:
    """Parts that sum to the peak: what is left over are activations."""
    held = sum(parts.values()) - parts["activations"]
    return {**parts, "activations": peak - held}


# -------------------------------------------------------------------- depth
def _depths(job: TrialJob, rank: int) -> list[int]:
    """Layers of each stage of a rank."""
    config = job.config
    counts = stage_layer_counts(job.model.num_layers, config)
    place = ParallelMesh(config, config.world_size).coordinates(rank)["pp"]
    stages = stages_of_rank(config.pipeline_schedule, place, config.pp, config.virtual_stages)
    return [counts[stage] for stage in stages]


def _uniform_depth(job: TrialJob, rank: int) -> int | None:
    """Layers of every stage of the rank, where memory is linear in them; else none."""
    depths = set(_depths(job, rank))
    if len(depths) > 1 or job.config.recompute_layers is not None:
        return None
    return depths.pop()


def _with_depth(job: TrialJob, depth: int) -> TrialJob:
    """The job with so many layers in every stage."""
    config = job.config.with_knobs(stage_layers=None)
    model = job.model.model_copy(update={"num_layers": depth * config.num_stages})
    return job.model_copy(update={"model": model, "config": config})


def _extend(shallow: _Measurement, deeper: _Measurement, num_more: int) -> _Measurement:
    """What `num_more` layers per stage above the deeper run's would give, section by section."""

    def line(low: int, high: int) -> int:
        return high + num_more * (high - low)

    return _Measurement(
        {name: line(shallow.peaks[name], deeper.peaks[name]) for name in deeper.peaks},
        {name: line(shallow.parts[name], deeper.parts[name]) for name in PARTS},
        line(shallow.flops, deeper.flops),
    )


# -------------------------------------------------------------------- one run
class _Observer:
    """Names the sections of a step after its phases, and takes the parts near the peak."""

    def __init__(self, job: TrialJob) -> None:
        self.memory = LiveMemory(as_resident=job.device_kind == "cpu", on_peak=self._at_peak)
        self.engine: Engine | None = None
        self.parts = dict.fromkeys(PARTS, 0)
        self._threshold: float | None = None
        self._num_sections = 0

    def enter_phase(self, phase: Phase, stage: int) -> None:
        """Start another section."""
        self._num_sections += 1
        self.memory.enter_section(f"{self._num_sections} {phase.value} {stage}")

    def begin_step(self, threshold: float | None) -> None:
        """Count from here; take parts where more than `threshold` bytes are alive."""
        self._threshold, self._num_sections = threshold, 0
        self.memory.start()
        self._between_steps = set(self.memory.sizes)
        self.memory.enter_section("0")

    def _at_peak(self, live_bytes: int) -> None:
        if self._threshold is not None and live_bytes >= self._threshold:
            self.parts = self._take_parts(live_bytes)

    def _take_parts(self, live_bytes: int) -> dict[str, int]:
        sizes, parts = dict(self.memory.sizes), dict.fromkeys(PARTS, 0)
        for name, buffers in _state_buffers(self.engine):
            parts[name] += sum(sizes.pop(storage_key(x), 0) for x in buffers)
        parts["libraries"] = self.memory.compiled_bytes
        parts["other"] = sum(sizes.get(key, 0) for key in self._between_steps)
        parts["activations"] = live_bytes - sum(parts.values())
        return parts


def _state_buffers(engine: Engine | None) -> Iterator[tuple[str, list[Tensor]]]:
    if engine is None:
        return
    for unit in engine.units:
        yield from unit.buffers.items()
    if engine.optimizer is not None:
        yield "optimizer", engine.optimizer.moments


def _measure(job: TrialJob, rank: int) -> _Measurement:
    """Two steps of all the layers that the job has; figures of the second."""
    observer = _Observer(job)
    with _fake_world(rank, job.config.world_size), FakeTensorMode(), observer.memory:
        engine = observer.engine = _build(job, rank, observer.enter_phase)
        observer.begin_step(None)
        engine.step(0)
        observer.begin_step(_NEAR_PEAK * observer.memory.peak_bytes)
        engine.step(1)
    memory = observer.memory
    return _Measurement(dict(memory.peaks), observer.parts, memory.flops)


def _build(job: TrialJob, rank: int, enter_phase: Callable[[Phase, int], None]) -> Engine:
    mesh = ParallelMesh(job.config, job.config.world_size)
    groups = Communicator(mesh, rank)
    groups.uses_gloo = job.device_kind == "cpu"  # the way that sums are made there
    engine = _DryEngine(
        job.model, job.training, job.config, mesh, rank, torch.device("cpu"),
        seed=job.seed, enter_phase=enter_phase, groups=groups,
    )  # fmt: skip
    engine.core.attends_in_blocks = job.device_kind == "cpu"
    return engine


@contextmanager
def _fake_world(rank: int, world_size: int) -> Iterator[None]:
    """A process group whose collectives do nothing, and addresses for tensors that have none."""

    def address(x: Tensor) -> int:
        return storage_key(x) + int(x.storage_offset()) * x.element_size()

    def is_completed(_: Any) -> bool:
        return True  # else what was sent would be held until the end of the step

    hook = sys.excepthook  # to which torch adds a prefix with every process group
    dist.init_process_group("fake", store=FakeStore(), rank=rank, world_size=world_size)
    original = torch.Tensor.data_ptr
    setattr(torch.Tensor, "data_ptr", address)  # noqa: B010 -- a method, which mypy protects
    setattr(FakeWork, "is_completed", is_completed)  # noqa: B010
    try:
        yield
    finally:
        setattr(torch.Tensor, "data_ptr", original)  # noqa: B010
        delattr(FakeWork, "is_completed")
        dist.destroy_process_group()
        sys.excepthook = hook


# -------------------------------------------------------------------- command line
def describe(result: DryRun) -> str:
    """A few lines for people."""
    gib = 2**30
    parts = ", ".join(f"{name} {size / gib:.3f}" for name, size in result.parts_bytes.items())
    return (
        f"rank {result.rank}: peak {result.peak_memory_bytes / gib:.3f} GiB ({parts})\n"
        f"{result.hardware_flops / 1e12:.4g} TFLOP a step; took {result.seconds:.1f} s with "
        f"{'/'.join(map(str, result.layers_per_stage_run))} layers per stage"
    )


def main(arguments: list[str] | None = None) -> int:
    """Command line; 0, or 1 after one sentence on what is wrong."""
    parser = argparse.ArgumentParser(prog="python -m trainer.dry_run", description=__doc__)
    parser.add_argument("--job", type=Path, required=True, help="job file (a TrialJob as JSON)")
    parser.add_argument("--rank", type=int, help="rank; without, the pipeline's fullest one")
    parser.add_argument("--exact", action="store_true", help="build all layers; slow when deep")
    parser.add_argument("--json", action="store_true", help="print one JSON object")
    options = parser.parse_args(arguments)
    try:
        result = dry_run(read_job(options.job), options.rank, exact=options.exact)
    except TrainerError as error:
        print(f"dry run: {error}", file=sys.stderr)  # noqa: T201 -- the answer
        return 1
    text = json.dumps(asdict(result)) if options.json else describe(result)
    print(text)  # noqa: T201 -- the result
    return 0


if __name__ == "__main__":
    sys.exit(main())
