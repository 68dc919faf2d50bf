"""Everything that can happen to a trial, as data: the tests, the benchmark and the docs share it.

Each fault is ordered from the fake trainer, or done to a process from outside, and has the outcome
that must be stored. `docs/fault_matrix.md` has one line per name.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Literal

from trainer.contract import FailureKind, Phase
from tuner.testing.fake_trainer import FakeBehaviour

Victim = Literal["fork server", "agent", "ray driver", "ray head", "raylet"]


@dataclass(frozen=True, kw_only=True)
class Fault:
    """One way for a trial to go wrong, and what must come of it."""

    name: str
    behaviour: FakeBehaviour
    failure: FailureKind | None = None
    """What is stored; none = the trial has a result in spite of it."""
    rank: int | None = None
    phase: Phase | None = None
    message: str = ""
    """A part of what the user is told."""
    hang_s: float = 15.0
    deadline_s: float = 30.0
    end_s: float = 20.0
    """The trial must be over, cleaned up, within this time."""


def _oom(step: int, phase: Phase, rank: int = 1) -> Fault:
    return Fault(
        name=f"oom on rank {rank} in {phase.value}, step {step}",
        behaviour=FakeBehaviour(mode="oom", rank=rank, step=step, phase=phase),
        failure=FailureKind.OOM, rank=rank, phase=phase, message="out of memory",
    )  # fmt: skip


def _crash(name: str, mode: str, message: str, end_s: float = 20.0) -> Fault:
    behaviour = FakeBehaviour(mode=mode, rank=1, step=1)
    failure = FailureKind.CRASH
    return Fault(
        name=name, behaviour=behaviour, failure=failure, rank=1, message=message, end_s=end_s
    )


def _harmless(name: str, mode: str) -> Fault:
    return Fault(name=name, behaviour=FakeBehaviour(mode=mode, rank=1, step=1))


FAULTS: tuple[Fault, ...] = (
    _oom(0, Phase.INIT),
    *(_oom(step, phase) for phase in (Phase.FORWARD, Phase.OPTIMIZER) for step in (1, 2, 10)),
    _oom(1, Phase.FORWARD, rank=0),
    Fault(
        name="oom while the others report lost peers",
        behaviour=FakeBehaviour(mode="oom", rank=1, step=1, echo_comm=True),
        failure=FailureKind.OOM, rank=1, message="out of memory",
    ),
    Fault(
        name="host memory runs out in Python",
        behaviour=FakeBehaviour(mode="host_oom", rank=1, step=1),
        failure=FailureKind.OOM, rank=1, message="MemoryError",
    ),
    Fault(
        name="hang in a collective", behaviour=FakeBehaviour(mode="hang", rank=1, step=1),
        failure=FailureKind.HANG, message="no rank made progress for 1 s", hang_s=1.0,
    ),
    Fault(
        name="hang that ignores SIGTERM", behaviour=FakeBehaviour(mode="hang_deaf", rank=1, step=1),
        failure=FailureKind.HANG, message="no rank made progress for 1 s", hang_s=1.0,
    ),
    Fault(
        name="progress without an end", behaviour=FakeBehaviour(mode="slow", rank=1, step=1),
        failure=FailureKind.TIMEOUT, message="deadline of 1.5 s", deadline_s=1.5,
    ),
    _crash("exit 0 without a result", "exit_zero", "exit code 0", end_s=30.0),
    _crash("exit 3 without a word", "exit_three", "exit code 3"),
    _crash("a plain error", "crash", "a plain error"),
    _crash("SIGKILL of a rank", "sigkill", "SIGKILL"),
    _crash("SIGSEGV in a rank", "sigsegv", "SIGSEGV"),
    _crash("SIGABRT in a rank", "sigabrt", "SIGABRT"),
    _crash("SIGKILL of a rank that has children", "leave_child_and_die", "SIGKILL"),
    _crash("SIGKILL in the middle of the result line", "torn_end", "SIGKILL"),
    Fault(
        name="SIGKILL while the others report lost peers",
        behaviour=FakeBehaviour(mode="sigkill", rank=1, step=1, echo_comm=True),
        failure=FailureKind.CRASH, rank=1, message="SIGKILL",
    ),
    Fault(
        name="a loss that is not finite", behaviour=FakeBehaviour(mode="diverge", rank=1, step=1),
        failure=FailureKind.DIVERGED, rank=1, message="not finite",
    ),
    _crash("disk full", "disk_full", "No space left on device"),
    _harmless("children left behind", "leave_child"),
    _harmless("a torn and a foreign report line", "torn_line"),
    _harmless("the word Error in a log", "print_error"),
    _harmless("5 MB of log", "flood_log"),
    _harmless("the time of day jumps back a day", "clock_jump"),
    _harmless("a rank that stays after the result", "linger"),
    Fault(name="a slow step", behaviour=FakeBehaviour(mode="sleep", rank=1, step=1), hang_s=8.0),
)  # fmt: skip


@dataclass(frozen=True, kw_only=True)
class Kill:
    """A process of ours, or of Ray, that is killed with SIGKILL while a trial runs."""

    name: str
    victim: Victim
    failure: FailureKind
    message: str
    launchers: tuple[str, ...] = ("ray",)


KILLS: tuple[Kill, ...] = (
    Kill(
        name="fork server killed", victim="fork server", failure=FailureKind.LAUNCH,
        message="forked from died", launchers=("local", "ray"),
    ),
    Kill(
        name="node agent killed", victim="agent", failure=FailureKind.LAUNCH,
        message="agent on its node died",
    ),
    Kill(
        name="the process that speaks to Ray killed", victim="ray driver",
        failure=FailureKind.LAUNCH, message="speaks to Ray died",
    ),
    Kill(
        name="Ray head killed", victim="ray head", failure=FailureKind.LAUNCH,
        message="Ray's head process died",
    ),
    Kill(
        name="Ray node daemon of a local cluster killed", victim="raylet",
        failure=FailureKind.LAUNCH, message="Ray's head process died",
    ),
)  # fmt: skip


PORT_TAKEN = Fault(
    name="port of the rendezvous taken",
    behaviour=FakeBehaviour(mode="port_taken", rank=1, phase=Phase.INIT),
    failure=FailureKind.COMM, rank=1, phase=Phase.INIT, message="in use",
)  # fmt: skip
"""The behaviour still needs the number of a port that is taken."""
NODE_LOST = Kill(
    name="a whole node of a trial on two lost", victim="raylet", failure=FailureKind.PREEMPTED,
    message="node",
)  # fmt: skip


def names() -> Iterator[str]:
    """Every fault of the matrix that belongs to launching."""
    yield from (fault.name for fault in (*FAULTS, PORT_TAKEN))
    yield from (kill.name for kill in (*KILLS, NODE_LOST))
