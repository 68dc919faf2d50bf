"""The fault matrix: what is stored for each fault, and how soon the next trial runs.

Trials of two fake ranks run through the `local` launcher, the kills of Ray's parts through the
`ray` launcher, and whole studies lose their database or controller (`benchmarks.faults_study`).
Each fault strikes one trial; then another, good trial is submitted. For each fault:

* `outcome`: the failure kind that is stored, or `result`; what becomes of a study;
* `next_trial_s`: from the moment the fault struck to the first step of the next trial (of a study:
  to its start, or to the study's end if none was left), with the waiting times of the watchdogs
  (shortened here: hang 1 s, deadline 1.5 s) and the time that a database is away (30 s);
* `left_behind`: processes, temporary folders and shared memory that are still there afterwards.

    python -m benchmarks.faults [--quick] [--json] [--docs]

`--quick` leaves out the faults that need Ray, and takes the database away for 2 s. The exit code is
1 if an outcome is not the one that `tuner.testing.fault_matrix` and `study_faults` demand or if
anything was left behind. `--docs` writes the table of `docs/fault_matrix.md`.
"""

import argparse
import os
import signal
import socket
import statistics
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import asdict, replace
from functools import partial
from pathlib import Path

from benchmarks.fault_line import Line, leftovers, shared_memory, write_table
from benchmarks.faults_study import study_faults
from benchmarks.harness import describe_host, finish, parser
from trainer.contract import Phase, TrialOutput
from tuner.launchers.local import LocalLauncher
from tuner.launchers.ray_launcher import RayLauncher
from tuner.ports import Launcher
from tuner.testing.fake_trainer import ENTRY, FAULT_TIME_FILE, FakeBehaviour
from tuner.testing.fault_matrix import FAULTS, KILLS, NODE_LOST, PORT_TAKEN, Fault, Kill
from tuner.testing.jobs import misbehave, tiny_job
from tuner.testing.launcher_contract import long_job, wait_for, wait_for_steps
from tuner.testing.processes import descendants, find_victim, rank_processes
from tuner.testing.ray_nodes import environment, ray_nodes

PAGE = Path(__file__).parents[1] / "docs" / "fault_matrix.md"
_NODE_SLOTS = (2, 2)


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
        next_s - struck_s, leftovers(processes, shared_before), stored_of(output),
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
    output = wait_for(handle)
    outcome, message = outcome_of(output)
    next_s = run_next(launcher, root / "next")
    return Line(
        order.name, launcher.name, outcome, message,
        outcome == order.failure.value and order.message in message,
        next_s - struck_s, leftovers(processes, set(shared_memory())), stored_of(output),
    )  # fmt: skip


def take_port(launcher: Launcher, root: Path) -> Line:
    """Another program takes the port of a rendezvous between its choice and its use."""
    with socket.socket() as holder:
        holder.bind(("127.0.0.1", 0))
        holder.listen()
        port = holder.getsockname()[1]
        behaviour = FakeBehaviour(mode="port_taken", rank=1, phase=Phase.INIT, port=port)
        return strike(launcher, root, replace(PORT_TAKEN, behaviour=behaviour))


def lose_node(root: Path) -> Line:
    """Kill a whole node of a cluster of two while a trial runs on both."""
    variables = environment()
    os.environ.update(variables)
    with ray_nodes(_NODE_SLOTS, variables) as nodes:
        launcher = RayLauncher(
            num_devices=None, run_folder=root, address=nodes.address, entry=ENTRY
        )
        with opened(launcher):
            folder = root / "hit"
            handle = launcher.submit(long_job(dp=sum(_NODE_SLOTS)), folder)
            wait_for_steps(handle, 1)
            processes = rank_processes(folder)
            struck_s = time.time()
            os.kill(nodes.raylet_pids[-1], signal.SIGKILL)
            output = wait_for(handle, 60.0)
            outcome, message = outcome_of(output)
            next_s = run_next(launcher, root / "next")
            return Line(
                NODE_LOST.name, "ray, 2 nodes", outcome, message,
                outcome == NODE_LOST.failure.value and NODE_LOST.message in message,
                next_s - struck_s, leftovers(processes, set(shared_memory())), stored_of(output),
            )  # fmt: skip


def stored_of(output: TrialOutput) -> str:
    """What a controller stores of an output, in a few words."""
    if output.result is not None:
        return "the result"
    first = output.failures[0]
    where = [first.failure.value]
    if first.rank is not None:
        where.append(f"rank {first.rank}")
    where.append(first.phase.value)
    if first.step is not None:
        where.append(f"step {first.step}")
    if first.traceback:
        where.append("with stacks")
    return ", ".join(where)


def outcome_of(output: TrialOutput) -> tuple[str, str]:
    """What a controller stores: kind and message of the first failure, or `result`."""
    if output.result is not None:
        return "result", ""
    return output.failures[0].failure.value, output.failures[0].message


@contextmanager
def opened(launcher: Launcher) -> Iterator[Launcher]:
    """A launcher that leaves nothing when it is closed, or the benchmark says so and fails."""
    temp_before = set(Path(tempfile.gettempdir()).glob("tuner-ray-*"))
    shared_before, others = shared_memory(), set(descendants())
    launcher.open()
    try:
        yield launcher
        processes = [process for process in descendants() if process not in others]
    finally:
        launcher.close()
    left = leftovers(processes, shared_before)
    left += map(str, set(Path(tempfile.gettempdir()).glob("tuner-ray-*")) - temp_before)
    if left:
        raise SystemExit(f"closing the launcher {launcher.name} left behind: {', '.join(left)}")


def attempt(name: str, launcher: str, work: Callable[[], Line]) -> Line:
    """The line of a fault; an error on the way to it is a bad line, and the next fault follows."""
    try:
        return work()
    except Exception as error:
        return Line(name, launcher, "error", f"{type(error).__name__}: {error}", False, 0.0, [])


def run_matrix(options: argparse.Namespace, root: Path) -> Iterator[Line]:
    """One line per fault."""
    yield from study_faults(root / "studies", is_quick=options.quick)
    local = LocalLauncher(num_devices=2, run_folder=root, entry=ENTRY)
    with opened(local) as launcher:
        for number, fault in enumerate(FAULTS):
            work = partial(strike, launcher, root / f"fault{number}", fault)
            yield attempt(fault.name, launcher.name, work)
        work = partial(take_port, launcher, root / "port")
        yield attempt(PORT_TAKEN.name, launcher.name, work)
        for number, order in enumerate(KILLS):
            if "local" in order.launchers:
                work = partial(kill, launcher, root / f"kill{number}", order)
                yield attempt(order.name, launcher.name, work)
    if options.quick:
        return
    with opened(RayLauncher(num_devices=2, run_folder=root, entry=ENTRY)) as launcher:
        for number, order in enumerate(KILLS):
            work = partial(kill, launcher, root / f"raykill{number}", order)
            yield attempt(order.name, launcher.name, work)
    yield attempt(NODE_LOST.name, "ray, 2 nodes", partial(lose_node, root / "node"))


def main() -> None:
    """Run every fault and print its line."""
    options_parser = parser(__doc__)
    options_parser.add_argument("--docs", action="store_true", help=f"rewrite the table of {PAGE}")
    options = options_parser.parse_args()
    lines: list[Line] = []
    with tempfile.TemporaryDirectory(prefix="tuner-faults-") as name:
        for line in run_matrix(options, Path(name)):
            lines.append(line)
            print(line, flush=True)
            if not line.is_good:
                print(f"    {line.message}", flush=True)
    bad = [line.fault for line in lines if not line.is_good]
    immediate = [line.next_trial_s for line in lines if line.launcher == "local"]
    figures = {
        "num_faults": len(lines),
        "num_bad": len(bad),
        "median_next_trial_s": statistics.median(immediate),
        "worst_next_trial_s": max(line.next_trial_s for line in lines),
        "num_left_behind": sum(len(line.left_behind) for line in lines),
        "faults": [asdict(line) for line in lines],
    }
    if options.docs:
        host = describe_host()
        write_table(
            PAGE, lines, f"{host['cores']} cores of an {host['processor']}, {host['date']}."
        )
    finish(options, figures)
    sys.exit(1 if bad else 0)


if __name__ == "__main__":
    main()
