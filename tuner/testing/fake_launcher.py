"""A launcher whose trials end when and as a test says."""

from collections.abc import Callable
from pathlib import Path

from trainer.contract import FailureKind, FailureReport, Phase, TrialJob, TrialOutput
from tuner.errors import LauncherError
from tuner.testing.fake_trainer import fake_result

Answer = TrialOutput | Callable[[TrialJob], TrialOutput]


def completed(job: TrialJob, step_time_s: float = 0.01) -> TrialOutput:
    """The output of a trial that went well."""
    return TrialOutput(result=fake_result(job, step_time_s))


def failed(kind: FailureKind, message: str = "it was told to") -> TrialOutput:
    """The output of a trial that failed."""
    report = FailureReport(failure=kind, phase=Phase.FORWARD, rank=0, message=message)
    return TrialOutput(failures=[report])


class FakeHandle:
    """A trial that waits for `finish`, or for as many polls as the launcher was told."""

    def __init__(self, job: TrialJob, folder: Path, answer: Answer, num_polls: int) -> None:
        self.job = job
        self.folder = folder
        self.is_cancelled = False
        self._answer = answer
        self._num_polls_left = num_polls
        self._output: TrialOutput | None = None

    @property
    def is_done(self) -> bool:
        """Whether the trial has ended."""
        return self._output is not None

    def finish(self, answer: Answer | None = None) -> None:
        """End the trial now, with another answer if one is given."""
        chosen = self._answer if answer is None else answer
        self._output = chosen(self.job) if callable(chosen) else chosen

    def poll(self) -> TrialOutput | None:
        """Count down to the end."""
        if self._output is None and not self.is_cancelled:
            self._num_polls_left -= 1
            if self._num_polls_left < 0:
                self.finish()
        return self._output

    def progress(self) -> TrialOutput:
        """Nothing before the end."""
        return self._output or TrialOutput()

    def cancel(self) -> None:
        """End the trial without a result."""
        self.is_cancelled = True
        self._output = self._output or TrialOutput()


class FakeLauncher:
    """Starts `FakeHandle`s.

    Args:
        num_devices: Devices that trials share.
        run_folder: Not used.
        answer: What a trial gives: an output, or a function of the job. None: it goes well.
        num_polls: Polls that give nothing before a trial ends by itself.
        error: If set, `submit` raises it.
    """

    name = "fake"

    def __init__(
        self,
        *,
        num_devices: int | None = 8,
        run_folder: Path | None = None,
        answer: Answer | None = None,
        num_polls: int = 0,
        error: LauncherError | None = None,
    ) -> None:
        del run_folder
        self.handles: list[FakeHandle] = []
        self.is_open = False
        self.error = error
        self._num_devices = num_devices or 8
        self._answer: Answer = completed if answer is None else answer
        self._num_polls = num_polls

    def open(self) -> None:
        """Remember that it was called."""
        self.is_open = True

    def close(self) -> None:
        """End all trials."""
        self.is_open = False
        for handle in self.handles:
            handle.cancel()

    def num_devices(self) -> int:
        """Devices in all."""
        return self._num_devices

    def has_room(self, num_devices: int) -> bool:
        """Whether so many are free."""
        busy = sum(h.job.config.world_size for h in self.handles if not h.is_done)
        return self._num_devices - busy >= num_devices

    def submit(self, job: TrialJob, folder: Path) -> FakeHandle:
        """Start a trial; raises `error`, or `LauncherError` when it cannot fit."""
        if self.error is not None:
            raise self.error
        wanted = job.config.world_size
        if wanted > self._num_devices or not self.has_room(wanted):
            raise LauncherError(f"{wanted} devices are wanted of {self._num_devices}")
        handle = FakeHandle(job, folder, self._answer, self._num_polls)
        self.handles.append(handle)
        return handle
