"""`local`: trials as plain processes of this machine, without Ray."""

import os
from collections.abc import Mapping, Sequence
from pathlib import Path

from trainer.contract import TrialJob, TrialOutput, read_output
from tuner.errors import LauncherError
from tuner.launchers.classification import with_failures
from tuner.launchers.network import rank_environment
from tuner.launchers.node import Node, RankPlan, rendezvous_file, write_job
from tuner.launchers.rank_processes import DEFAULT_ENTRY
from tuner.launchers.supervision import Cause, NodeResult, NodeTrial, Patience, patience_of
from tuner.ports import Clock


def num_usable_cores() -> int:
    """Cores that this process may run on."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


class LocalHandle:
    """A trial of the local launcher."""

    def __init__(
        self, job: TrialJob, folder: Path, trial: NodeTrial | NodeResult, devices: Sequence[int]
    ) -> None:
        self.job = job
        self.folder = folder
        self.devices = tuple(devices)
        self._trial = trial
        self._output: TrialOutput | None = None

    @property
    def is_done(self) -> bool:
        """Whether `poll` has given the output."""
        return self._output is not None

    def poll(self) -> TrialOutput | None:
        """The output once all ranks have ended and been cleaned up."""
        if self._output is None:
            trial = self._trial
            result = trial if isinstance(trial, NodeResult) else trial.poll()
            if result is not None:
                self._output = self.conclude(result)
        return self._output

    def conclude(self, result: NodeResult) -> TrialOutput:
        """The output of ranks that have ended, with the cause where they failed."""
        return with_failures(self.progress(), [result], self.job)

    def progress(self) -> TrialOutput:
        """What the ranks have written so far."""
        try:
            return read_output(self.folder)
        except OSError:
            return TrialOutput()

    def cancel(self) -> None:
        """End the ranks."""
        if isinstance(self._trial, NodeTrial):
            self._trial.cancel()


class LocalLauncher:
    """Forks the ranks of trials from a process of its own that has torch imported.

    Args:
        num_devices: Ranks that may run at one time; none = this process's CPU cores.
        run_folder: Parent of the trials' folders.
        entry: What a rank runs, `module:function`.
        start_method: `fork` or `spawn`.
        clock: Time for the supervision, for tests.
        patience: Waiting times of the supervision.
    """

    name = "local"

    def __init__(
        self,
        *,
        num_devices: int | None,
        run_folder: Path,
        entry: str = DEFAULT_ENTRY,
        start_method: str = "fork",
        clock: Clock | None = None,
        patience: Patience | Mapping[str, float] | None = None,
    ) -> None:
        self._num_devices = num_devices or num_usable_cores()
        self._run_folder = run_folder
        self._node = Node(
            entry=entry, start_method=start_method, clock=clock, patience=patience_of(patience)
        )
        self._running: list[LocalHandle] = []

    def open(self) -> None:
        """Start the process that trials are forked from."""
        self._node.open()

    def close(self) -> None:
        """End all trials."""
        self._node.close()

    def num_devices(self) -> int:
        """Devices in all."""
        return self._num_devices

    def has_room(self, num_devices: int) -> bool:
        """Whether so many devices are free."""
        return len(self._free()) >= num_devices

    def submit(self, job: TrialJob, folder: Path) -> LocalHandle:
        """Start a trial.

        Raises:
            LauncherError: More devices than exist or are free, or nothing can be started at all.
        """
        devices = self._reserve(job.config.world_size)
        try:
            write_job(job, folder)
            trial: NodeTrial | NodeResult = self._node.start(
                job, folder, _plan(job, folder, devices)
            )
        except OSError as error:  # a full or read-only disk: this trial's failure
            trial = NodeResult(cause=Cause.START_FAILED, message=f"{folder}: {error.strerror}")
        handle = LocalHandle(job, folder, trial, devices)
        self._running.append(handle)
        return handle

    def _free(self) -> list[int]:
        self._running = [handle for handle in self._running if not handle.is_done]
        taken = {device for handle in self._running for device in handle.devices}
        return [device for device in range(self._num_devices) if device not in taken]

    def _reserve(self, count: int) -> list[int]:
        if count > self._num_devices:
            raise LauncherError(
                f"a trial of {count} ranks cannot run on {self._num_devices} devices",
                "raise num_devices of the launcher or lower tp, pp, dp or cp",
            )
        free = self._free()
        if count > len(free):
            raise LauncherError(
                f"{count} devices are wanted and {len(free)} of {self._num_devices} are free"
            )
        return free[:count]


def _plan(job: TrialJob, folder: Path, devices: Sequence[int]) -> RankPlan:
    return RankPlan(
        ranks=range(job.config.world_size),
        world_size=job.config.world_size,
        init_method=rendezvous_file(folder),
        environment=rank_environment(job, interface="lo", device_ids=devices),
    )
