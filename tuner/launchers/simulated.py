"""`simulated`: a cost model answers in place of machines, with noise and failures.

For search studies on thousands of devices from a laptop, and for tests of everything above
launchers. The same seed gives the same answers, whatever the order of the trials.
"""

import math
import random
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property, lru_cache
from pathlib import Path
from typing import Any

from search_spaces.cluster_io import load_cluster_spec
from search_spaces.cluster_spec import ClusterSpec
from search_spaces.cost_models.analytic import AnalyticCostModel, CostEstimate
from search_spaces.counts import hardware_flops_per_step, model_flops_per_step, num_parameters
from search_spaces.errors import SearchSpaceError
from search_spaces.model_spec import ModelSpec
from search_spaces.parallel_config import ParallelConfig
from search_spaces.training_spec import TrainingSpec
from trainer.contract import (
    FailureKind,
    FailureReport,
    Phase,
    StepRecord,
    TrialJob,
    TrialOutput,
    TrialReport,
)
from tuner.clock import SystemClock
from tuner.errors import LauncherError
from tuner.ports import Clock

_TRANSIENT = (
    FailureKind.COMM,
    FailureKind.CRASH,
    FailureKind.HANG,
    FailureKind.LAUNCH,
    FailureKind.PREEMPTED,
    FailureKind.TIMEOUT,
)
_INJECTED = {
    "oom": FailureKind.OOM,
    "crash": FailureKind.CRASH,
    "hang": FailureKind.HANG,
    "sigkill": FailureKind.CRASH,
    "exit_zero": FailureKind.CRASH,
    "diverge": FailureKind.DIVERGED,
}
_WARMUP_SLOWNESS = 1.5


@dataclass(frozen=True, kw_only=True)
class _Script:
    """How a simulated trial goes, decided when it starts."""

    step_times_s: tuple[float, ...]
    peak_memory_bytes: int
    failure: FailureReport | None


class SimulatedHandle:
    """A trial that exists on paper alone: its folder is not made.

    `script` gives how it goes; asked for when it is first looked at, so that the cost model can
    answer for all trials that were started together.
    """

    def __init__(
        self,
        job: TrialJob,
        folder: Path,
        script: Callable[["SimulatedHandle"], _Script],
        time_scale: float,
        clock: Clock,
    ) -> None:
        self.job = job
        self.folder = folder
        self._find_script = script
        self._time_scale = time_scale
        self._clock = clock
        self._started_s = clock.monotonic_s()
        self._output: TrialOutput | None = None

    @property
    def is_done(self) -> bool:
        """Whether the trial has ended."""
        return self._output is not None

    @cached_property
    def _script(self) -> _Script:
        return self._find_script(self)

    def poll(self) -> TrialOutput | None:
        """The output once the simulated steps are over."""
        if self._output is None and self._num_done() == len(self._script.step_times_s):
            steps = self._steps(len(self._script.step_times_s))
            if self._script.failure is not None:
                self._output = TrialOutput(steps=steps, failures=[self._script.failure])
            else:
                self._output = TrialOutput(steps=steps, result=_result(self.job, self._script))
        return self._output

    def progress(self) -> TrialOutput:
        """The steps so far."""
        return self._output or TrialOutput(steps=self._steps(self._num_done()))

    def cancel(self) -> None:
        """End the trial."""
        if self._output is None:
            self._output = self.progress()

    def _num_done(self) -> int:
        if self._time_scale <= 0:
            return len(self._script.step_times_s)
        left_s = (self._clock.monotonic_s() - self._started_s) / self._time_scale
        for index, step_time_s in enumerate(self._script.step_times_s):
            left_s -= step_time_s
            if left_s < 0:
                return index
        return len(self._script.step_times_s)

    def _steps(self, count: int) -> list[StepRecord]:
        warmup = self.job.measure.warmup_steps
        return [
            StepRecord(
                step=step, is_warmup=step < warmup, step_time_s=step_time_s, loss=None,
                tokens=self.job.training.tokens_per_step,
            )
            for step, step_time_s in enumerate(self._script.step_times_s[:count])
        ]  # fmt: skip


class SimulatedLauncher:
    """Answers from the analytic cost model.

    Args:
        num_devices: Devices that trials share; none = those of `cluster`.
        run_folder: Not used: nothing is written.
        cluster: Machines to simulate: a `ClusterSpec`, a preset's name, a file, or its fields.
        time_scale: Wall-clock seconds per simulated second; 0 = a trial ends at once.
        noise: Standard deviation of the logarithm of one step's time.
        idiosyncrasy: The same between configurations: how far the truth is from the cost model.
        memory_noise: The same of the peak memory. Above the cluster's memory a trial is out of it.
        failure_rate: Probability that a trial fails for a reason that may pass.
        seed: Of all of these.
        clock: Time, for tests.
    """

    name = "simulated"

    def __init__(
        self,
        *,
        num_devices: int | None,
        run_folder: Path,
        cluster: ClusterSpec | str | Mapping[str, Any] | None = None,
        time_scale: float = 0.0,
        noise: float = 0.01,
        idiosyncrasy: float = 0.03,
        memory_noise: float = 0.02,
        failure_rate: float = 0.0,
        seed: int = 0,
        clock: Clock | None = None,
    ) -> None:
        del run_folder
        if not 0.0 <= failure_rate <= 1.0:
            raise LauncherError(f"failure_rate {failure_rate} is not between 0 and 1")
        self._cluster = _cluster(cluster, num_devices)
        self._num_devices = num_devices or self._cluster.num_devices
        self._time_scale = time_scale
        self._noise, self._idiosyncrasy = noise, idiosyncrasy
        self._memory_noise, self._failure_rate = memory_noise, failure_rate
        self._seed = seed
        self._clock = clock or SystemClock()
        self._running: list[SimulatedHandle] = []
        self._unwritten: list[SimulatedHandle] = []
        self._scripts: dict[SimulatedHandle, _Script] = {}
        self._cost_model = lru_cache(maxsize=16)(self._cost_model_uncached)

    def open(self) -> None:
        """Nothing is needed."""

    def close(self) -> None:
        """End all trials."""
        for handle in self._running:
            handle.cancel()
        self._running, self._unwritten, self._scripts = [], [], {}

    def num_devices(self) -> int:
        """Simulated devices."""
        return self._num_devices

    def has_room(self, num_devices: int) -> bool:
        """Whether so many are free."""
        return self._num_free() >= num_devices

    def _num_free(self) -> int:
        self._running = [handle for handle in self._running if not handle.is_done]
        return self._num_devices - sum(h.job.config.world_size for h in self._running)

    def submit(self, job: TrialJob, folder: Path) -> SimulatedHandle:
        """Start a simulated trial.

        Raises:
            LauncherError: More devices than there are, or than are free.
        """
        wanted = job.config.world_size
        if wanted > self._num_devices:
            raise LauncherError(
                f"a trial of {wanted} ranks cannot run on {self._num_devices} simulated devices",
                "raise the cluster's nodes or lower tp, pp, dp or cp",
            )
        if wanted > (free := self._num_free()):
            raise LauncherError(f"{wanted} devices are wanted and {free} are free")
        handle = SimulatedHandle(job, folder, self._script_of, self._time_scale, self._clock)
        self._running.append(handle)
        self._unwritten.append(handle)
        return handle

    def _script_of(self, handle: SimulatedHandle) -> _Script:
        """The script of a trial; those of all that were started since the last time are written."""
        for fresh, estimate in zip(
            self._unwritten, self._estimates([h.job for h in self._unwritten]), strict=True
        ):
            self._scripts[fresh] = self._write_script(fresh.job, estimate)
        self._unwritten = []
        return self._scripts.pop(handle)

    def _estimates(self, jobs: Sequence[TrialJob]) -> list[CostEstimate]:
        """The cost model's answers, asked at once for the jobs of one model and training."""
        wanted: dict[tuple[ModelSpec, TrainingSpec], list[ParallelConfig]] = {}
        for job in jobs:
            wanted.setdefault((job.model, job.training), []).append(job.config)
        answers = {
            (inputs, config): estimate
            for inputs, configs in wanted.items()
            for config, estimate in zip(
                configs, self._cost_model(*inputs).estimate_many(configs), strict=True
            )
        }
        return [answers[(job.model, job.training), job.config] for job in jobs]

    def _cost_model_uncached(self, model: ModelSpec, training: TrainingSpec) -> AnalyticCostModel:
        return AnalyticCostModel(model, training, self._cluster)

    def _write_script(self, job: TrialJob, estimate: CostEstimate) -> _Script:
        # Of the configuration: equal in every trial of it. Of the trial: new each time.
        fixed = random.Random(f"{self._seed}/{job.config.config_key}")
        fresh = random.Random(f"{self._seed}/{job.trial_id}/{job.config.config_key}/{job.seed}")
        step_time_s = estimate.step_time_s * math.exp(fixed.gauss(0.0, self._idiosyncrasy))
        peak = estimate.peak_memory_bytes * math.exp(fixed.gauss(0.0, self._memory_noise))
        measure = job.measure
        times = tuple(
            step_time_s
            * math.exp(fresh.gauss(0.0, self._noise))
            * (_WARMUP_SLOWNESS if step < measure.warmup_steps else 1.0)
            for step in range(measure.warmup_steps + measure.measured_steps)
        )
        failure = self._failure(job, int(peak), fresh)
        if failure is None and (total_s := sum(times)) > measure.deadline_s:
            message = f"would take {total_s:.0f} s, above its deadline of {measure.deadline_s:g} s"
            failure = _failure_report(FailureKind.TIMEOUT, Phase.MEASURE, message)
        if failure is not None:
            num_steps = 0 if failure.failure is FailureKind.OOM else fresh.randrange(len(times))
            times = times[:num_steps]
        return _Script(step_times_s=times, peak_memory_bytes=int(peak), failure=failure)

    def _failure(self, job: TrialJob, peak: int, source: random.Random) -> FailureReport | None:
        if (fault := job.fault) is not None:
            message = f"simulated {fault.kind}"
            kind = _INJECTED[fault.kind]
            return _failure_report(kind, fault.phase, message, rank=fault.rank, step=fault.step)
        limit = self._cluster.memory_bytes
        if peak > limit:
            message = f"simulated: {peak} bytes are needed on a device of {limit}"
            report = _failure_report(FailureKind.OOM, Phase.BACKWARD, message, step=0)
            return report.model_copy(update={"peak_memory_bytes": peak})
        if source.random() < self._failure_rate:
            kind = source.choice(_TRANSIENT)
            rank = source.randrange(job.config.world_size)
            return _failure_report(kind, Phase.FORWARD, f"simulated {kind.value}", rank=rank)
        return None


def _cluster(
    cluster: ClusterSpec | str | Mapping[str, Any] | None, num_devices: int | None
) -> ClusterSpec:
    try:
        if cluster is None:
            return ClusterSpec(name="simulated", devices_per_node=num_devices or 8)
        if isinstance(cluster, str):
            return load_cluster_spec(cluster)
        if isinstance(cluster, ClusterSpec):
            return cluster
        return ClusterSpec.model_validate(dict(cluster))
    except (SearchSpaceError, ValueError) as error:
        raise LauncherError(f"the cluster to simulate cannot be used: {error}") from error


def _failure_report(
    kind: FailureKind,
    phase: Phase,
    message: str,
    *,
    rank: int | None = None,
    step: int | None = None,
) -> FailureReport:
    return FailureReport(
        failure=kind, phase=phase, rank=rank, step=step, message=message, time_s=time.time()
    )


def _result(job: TrialJob, script: _Script) -> TrialReport:
    measured = sorted(script.step_times_s[job.measure.warmup_steps :])
    middle = len(measured) // 2
    step_time_s = (measured[middle] + measured[-middle - 1]) / 2
    iqr_s = measured[(3 * len(measured)) // 4] - measured[len(measured) // 4]
    flops = model_flops_per_step(job.model, job.training)
    hardware = hardware_flops_per_step(job.model, job.training, job.config)
    rate = flops / step_time_s / job.config.world_size
    peak = job.peak_flops_per_s
    return TrialReport(
        step_time_s=step_time_s,
        step_time_iqr_s=iqr_s,
        step_times_s=list(script.step_times_s[job.measure.warmup_steps :]),
        tokens_per_s=job.training.tokens_per_step / step_time_s,
        tokens_per_step=job.training.tokens_per_step,
        num_microbatches=job.num_microbatches,
        num_parameters=num_parameters(job.model),
        num_layers=job.model.num_layers,
        model_flops_per_step=flops,
        hardware_flops_per_step=hardware,
        model_flops_per_s_per_device=rate,
        hardware_flops_per_s_per_device=hardware / step_time_s / job.config.world_size,
        mfu=rate / peak if peak else None,
        peak_memory_bytes=script.peak_memory_bytes,
        final_loss=None,
        startup_s=0.0,
        versions={"launcher": "simulated"},
    )
