"""The fault matrix of launching: what is stored for each fault, and how soon the next trial runs.

Trials of two fake ranks run through the `local` launcher, and the kills of Ray's parts through the
`ray` launcher. Each fault strikes one trial; then another, good trial is submitted. For each fault:

* `outcome`: the failure kind that is stored, or `result`;
* `next_trial_s`: from the moment the fault struck to the first step of the next trial, waiting
  times of the watchdogs included (they are shortened here: hang 1 s, deadline 1.5 s);
* `left_behind`: processes, temporary folders and shared memory that are still there afterwards.

    python -m benchmarks.faults [--quick] [--json]

`--quick` leaves out the faults that need Ray. The exit code is 1 if an outcome is not the one
that `tuner.testing.fault_matrix` demands or if anything was left behind.
"""

import argparse
import statistics
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from pathlib import Path

import psutil

from benchmarks.harness import finish, parser
from trainer.contract import TrialOutput
from tuner.launchers.local import LocalLauncher
from tuner.launchers.ray_launcher import RayLauncher
from tuner.ports import Launcher
from tuner.testing.fake_trainer import ENTRY, FAULT_TIME_FILE
from tuner.testing.fault_matrix import FAULTS, KILLS, Fault, Kill
from tuner.testing.jobs import misbehave, tiny_job
from tuner.testing.launcher_contract import long_job, wait_for, wait_for_steps
from tuner.testing.processes import descendants, find_victim, left_after, rank_processes

_SHARED_MEMORY = Path("/dev/shm")
_GONE_WITHIN_S = 5.0


@dataclass(frozen=True)
class Line:
    """What came of one fault."""

    fault: str
    launcher: str
    outcome: str
    message: str
    is_expected: bool
    next_trial_s: float
    left_behind: list[str]

    def __str__(self) -> str:
        mark = "ok " if self.is_expected and not self.left_behind else "BAD"
        left = ", ".join(self.left_behind) or "nothing left"
        return (
            f"{mark} {self.launcher:5s} {self.fault:46s} {self.outcome:9s}"
            f" {self.next_trial_s:7.3f} s  {left}"
        )


def shared_memory() -> set[str]:
    """Names of shared-memory files."""
    return {path.name for path in _SHARED_MEMORY.iterdir()} if _SHARED_MEMORY.is_dir() else set()


def leftovers(processes: Sequence[psutil.Process], shared_before: set[str]) -> list[str]:
    """What is still there of a trial's processes and shared memory."""
    found = [f"process {process.pid}" for process in left_after(processes, _GONE_WITHIN_S)]
    return found + [f"/dev/shm/{name}" for name in sorted(shared_memory() - shared_before)]


def run_next(launcher: Launcher, folder: Path) -> float:
    """Run a good trial; the Unix time of its first step."""
    handle = launcher.submit(tiny_job("next"), folder)
    wait_for_steps(handle, 1)
    first_step_s = time.time()
    if wait_for(handle).result is None:
        raise SystemExit("the trial after a fault failed: nothing here can be measured")
    return first_step_s


def strike(launcher: Launcher, root: Path, fault: Fault) -> Line:
    """Have a trial hit by a fault of its own ranks."""
    folder = misbehave(root / "hit", fault.behaviour)
    shared_before = shared_memory()
    job = tiny_job(measured_steps=11, hang_s=fault.hang_s, deadline_s=fault.deadline_s)
    output = wait_for(launcher.submit(job, folder))
    processes = rank_processes(folder)
    struck_s = float((folder / FAULT_TIME_FILE).read_text())
    next_s = run_next(launcher, root / "next")
    outcome, message = outcome_of(output)
    expected = fault.failure.value if fault.failure else "result"
    return Line(
        fault.name, launcher.name, outcome, message,
        outcome == expected and fault.message in message,
        next_s - struck_s, leftovers(processes, shared_before),
    )  # fmt: skip


def kill(launcher: Launcher, root: Path, order: Kill) -> Line:
    """Kill a part of the launcher while a trial runs."""
    folder = root / "hit"
    handle = launcher.submit(long_job(), folder)
    wait_for_steps(handle, 1)
    processes = rank_processes(folder)
    victim = find_victim(order.victim, folder)
    struck_s = time.time()
    victim.kill()
    outcome, message = outcome_of(wait_for(handle))
    next_s = run_next(launcher, root / "next")
    return Line(
        order.name, launcher.name, outcome, message,
        outcome == order.failure.value and order.message in message,
        next_s - struck_s, leftovers(processes, set(shared_memory())),
    )  # fmt: skip


def outcome_of(output: TrialOutput) -> tuple[str, str]:
    """What a controller stores: kind and message of the first failure, or `result`."""
    if output.result is not None:
        return "result", ""
    return output.failures[0].failure.value, output.failures[0].message


@contextmanager
def opened(launcher: Launcher) -> Iterator[Launcher]:
    """A launcher that leaves nothing when it is closed, or the benchmark says so and fails."""
    temp_before = set(Path(tempfile.gettempdir()).glob("tuner-ray-*"))
    shared_before = shared_memory()
    launcher.open()
    try:
        yield launcher
        processes = descendants()
    finally:
        launcher.close()
    left = leftovers(processes, shared_before)
    left += map(str, set(Path(tempfile.gettempdir()).glob("tuner-ray-*")) - temp_before)
    if left:
        raise SystemExit(f"closing the launcher {launcher.name} left behind: {', '.join(left)}")


def run_matrix(options: argparse.Namespace, root: Path) -> Iterator[Line]:
    """One line per fault."""
    local = LocalLauncher(num_devices=2, run_folder=root, entry=ENTRY)
    with opened(local) as launcher:
        for number, fault in enumerate(FAULTS):
            yield strike(launcher, root / f"fault{number}", fault)
        for number, order in enumerate(KILLS):
            if "local" in order.launchers:
                yield kill(launcher, root / f"kill{number}", order)
    if options.quick:
        return
    with opened(RayLauncher(num_devices=2, run_folder=root, entry=ENTRY)) as launcher:
        for number, order in enumerate(KILLS):
            yield kill(launcher, root / f"raykill{number}", order)


def main() -> None:
    """Run every fault and print its line."""
    options = parser(__doc__).parse_args()
    lines: list[Line] = []
    with tempfile.TemporaryDirectory(prefix="tuner-faults-") as name:
        for line in run_matrix(options, Path(name)):
            lines.append(line)
            print(line, flush=True)
    bad = [line.fault for line in lines if not line.is_expected or line.left_behind]
    immediate = [line.next_trial_s for line in lines if line.launcher == "local"]
    figures = {
        "num_faults": len(lines),
        "num_bad": len(bad),
        "median_next_trial_s": statistics.median(immediate),
        "worst_next_trial_s": max(line.next_trial_s for line in lines),
        "num_left_behind": sum(len(line.left_behind) for line in lines),
        "faults": [asdict(line) for line in lines],
    }
    finish(options, figures)
    sys.exit(1 if bad else 0)


if __name__ == "__main__":
    main()
