"""What every launcher must do, as a suite that outsiders can run on theirs too.

Subclass `LauncherContract` in a test module, with a name that pytest collects, and give it
`make(run_folder)`: a launcher of `NUM_DEVICES` devices whose ranks obey the fault in their job, as
those of `tuner.testing.fake_trainer` do.
"""

import time
from collections.abc import Iterator
from pathlib import Path
from typing import Literal

import pytest

from search_spaces.parallel_config import ParallelConfig
from trainer.contract import FailureKind, FaultSpec, Phase, TrialJob, TrialOutput
from tuner.errors import LauncherError
from tuner.ports import Launcher, TrialHandle
from tuner.testing.jobs import tiny_job

NUM_DEVICES = 4
END_TIMEOUT_S = 45.0
LONG_JOB_STEPS = 2_000


def require(condition: bool, message: str) -> None:
    """Raise `AssertionError` with `message` unless the condition holds."""
    if not condition:
        raise AssertionError(message)


def wait_for(handle: TrialHandle, timeout_s: float = END_TIMEOUT_S) -> TrialOutput:
    """Poll a trial to its end."""
    deadline_s = time.monotonic() + timeout_s
    while time.monotonic() < deadline_s:
        output = handle.poll()
        if output is not None:
            return output
        time.sleep(0.005)
    raise AssertionError(f"the trial in {handle.folder} did not end within {timeout_s} s")


def wait_for_steps(handle: TrialHandle, count: int, timeout_s: float = END_TIMEOUT_S) -> None:
    """Wait until a running trial has reported some steps."""
    deadline_s = time.monotonic() + timeout_s
    while time.monotonic() < deadline_s:
        if len(handle.progress().steps) >= count:
            return
        require(handle.poll() is None, "the trial ended early")
        time.sleep(0.005)
    raise AssertionError(f"no {count} steps within {timeout_s} s")


def long_job(trial_id: str = "long", *, dp: int = 2, tp: int = 1) -> TrialJob:
    """A job that does not end before it is told to."""
    config = ParallelConfig(dp=dp, tp=tp)
    return tiny_job(trial_id, config=config, measured_steps=LONG_JOB_STEPS)


class LauncherContract:
    """The laws of `tuner.ports.Launcher`."""

    takes_time = True
    """Whether a trial of many steps is still running right after it was submitted."""

    def make(self, run_folder: Path) -> Launcher:
        """A launcher of `NUM_DEVICES` devices."""
        raise NotImplementedError

    @pytest.fixture(scope="class")
    @classmethod
    def launcher(cls, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Launcher]:
        """One for the whole class: some take seconds to start."""
        made = cls().make(tmp_path_factory.mktemp("runs"))
        made.open()
        yield made
        made.close()

    def test_a_good_trial_has_a_result_and_no_failure(
        self, launcher: Launcher, tmp_path: Path
    ) -> None:
        """It ran to its end and said so once."""
        output = wait_for(launcher.submit(tiny_job(), tmp_path / "new" / "trial"))
        require(output.result is not None, f"no result: {output.failures}")
        require(not output.failures, f"failures beside a result: {output.failures}")
        require(len(output.steps) == 3, f"{len(output.steps)} steps in place of 3")

    def test_poll_repeats_the_output(self, launcher: Launcher, tmp_path: Path) -> None:
        """A controller may look again."""
        handle = launcher.submit(tiny_job(), tmp_path)
        require(wait_for(handle) == handle.poll(), "a second poll gave something else")
        handle.cancel()
        require(wait_for(handle).result is not None, "cancelling an ended trial lost its result")

    def test_handle_knows_its_job_and_folder(self, launcher: Launcher, tmp_path: Path) -> None:
        """Handles are told apart by these."""
        job = tiny_job("named")
        handle = launcher.submit(job, tmp_path)
        require(handle.job == job, "another job")
        require(handle.folder == tmp_path, "another folder")
        wait_for(handle)

    @pytest.mark.parametrize(
        ("kind", "failure"),
        [
            ("oom", FailureKind.OOM),
            ("crash", FailureKind.CRASH),
            ("sigkill", FailureKind.CRASH),
            ("diverge", FailureKind.DIVERGED),
        ],
    )
    def test_a_fault_ends_its_trial_alone_with_its_cause(
        self,
        launcher: Launcher,
        tmp_path: Path,
        kind: Literal["oom", "crash", "sigkill", "diverge"],
        failure: FailureKind,
    ) -> None:
        """The first failing rank's own words come first."""
        fault = FaultSpec(kind=kind, rank=1, phase=Phase.FORWARD, step=1)
        bad = launcher.submit(tiny_job("bad", fault=fault), tmp_path / "bad")
        good = launcher.submit(tiny_job("good"), tmp_path / "good")
        output = wait_for(bad)
        require(output.result is None, "a result in spite of the fault")
        require(bool(output.failures), "no failure was reported")
        first = output.failures[0]
        require(first.failure is failure, f"{first.failure} in place of {failure}: {first.message}")
        require(first.rank == 1, f"rank {first.rank} in place of 1")
        require(first.message != "", "no message")
        require(wait_for(good).result is not None, "another trial was hit as well")

    def test_devices_are_counted(self, launcher: Launcher, tmp_path: Path) -> None:
        """Several trials at once never share a device."""
        require(launcher.num_devices() == NUM_DEVICES, f"{launcher.num_devices()} devices")
        require(launcher.has_room(NUM_DEVICES), "no room on an idle launcher")
        require(not launcher.has_room(NUM_DEVICES + 1), "room for more than there is")
        if not self.takes_time:
            return
        first = launcher.submit(long_job("a", dp=2), tmp_path / "a")
        require(launcher.has_room(2), "two of four devices are free")
        require(not launcher.has_room(3), "two of four devices are busy")
        second = launcher.submit(long_job("b", dp=2), tmp_path / "b")
        require(not launcher.has_room(1), "all devices are busy")
        for handle in (first, second):
            handle.cancel()
            wait_for(handle)
        require(launcher.has_room(NUM_DEVICES), "the devices did not come back")

    def test_a_trial_that_can_never_run_is_refused(
        self, launcher: Launcher, tmp_path: Path
    ) -> None:
        """Waiting for ever helps nobody."""
        with pytest.raises(LauncherError, match=str(NUM_DEVICES * 2)):
            launcher.submit(tiny_job(config=ParallelConfig(dp=NUM_DEVICES * 2)), tmp_path)
        require(launcher.has_room(NUM_DEVICES), "a refused trial holds devices")

    def test_cancel_ends_a_trial_without_blame(self, launcher: Launcher, tmp_path: Path) -> None:
        """Who cancelled it knows why."""
        if not self.takes_time:
            pytest.skip("trials of this launcher end at once")
        handle = launcher.submit(long_job(), tmp_path)
        wait_for_steps(handle, 1)
        handle.cancel()
        output = wait_for(handle)
        require(output.result is None, "a result of a cancelled trial")
        require(not output.failures, f"blame for a cancelled trial: {output.failures}")
        require(len(output.steps) >= 1, "the steps so far were lost")

    def test_close_ends_trials_and_may_be_repeated(self, tmp_path: Path) -> None:
        """Also when nothing was opened."""
        launcher = self.make(tmp_path)
        launcher.close()
        launcher.open()
        handle = launcher.submit(long_job(), tmp_path / "trial")
        launcher.close()
        launcher.close()
        output = wait_for(handle, timeout_s=10.0)
        require(output.result is None or not self.takes_time, "a closed launcher gave a result")
