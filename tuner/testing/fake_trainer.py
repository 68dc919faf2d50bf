"""A trainer without torch that behaves and misbehaves on order: for tests of launching.

`run_rank` has the signature of the real worker's. What goes wrong is told by the job's `fault` or,
for what that cannot say, by a file `fake.json` in the trial's folder:

    {"mode": "sigsegv", "rank": 1, "step": 2, "phase": "forward", "step_s": 0.01}

Ranks meet after every step through marker files, so a rank that dies or hangs makes the others wait
as a collective does.
"""

import json
import os
import random
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from pydantic import BaseModel, ConfigDict

from trainer.contract import (
    JOB_FILE,
    FailureKind,
    FailureReport,
    Phase,
    RankReport,
    StepRecord,
    TrialJob,
    TrialReport,
    report_file,
)

FAKE_FILE = "fake.json"
FAULT_TIME_FILE = "fault.time"
"""Holds the Unix time at which the fault struck."""
ENTRY = "tuner.testing.fake_trainer:run_rank"


class FakeBehaviour(BaseModel):
    """What a fake rank does beside its steps."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    mode: str = "ok"
    rank: int = 0
    step: int = 0
    phase: Phase = Phase.FORWARD
    step_s: float = 0.002
    echo_comm: bool = False
    """Whether the other ranks notice a lost peer at once and say so, as gloo does."""
    port: int = 0


class FakeOutOfMemoryError(Exception):
    """Stands for torch's out-of-memory error."""


class FakePeerLostError(Exception):
    """Stands for gloo's connection error."""


class FakeDivergedError(Exception):
    """Stands for a loss that is not finite."""


class _Rank:
    def __init__(self, folder: Path, rank: int, world_size: int) -> None:
        self.job = TrialJob.model_validate_json((folder / JOB_FILE).read_text())
        self.behaviour = _behaviour(folder, self.job)
        self.folder, self.rank, self.world_size = folder, rank, world_size
        self.step, self.phase = 0, Phase.INIT
        self._report = folder / report_file(rank)

    def write(self, line: BaseModel) -> None:
        with self._report.open("a") as stream:
            stream.write(line.model_dump_json() + "\n")

    def is_hit(self, phase: Phase) -> bool:
        behaviour = self.behaviour
        return (self.rank, self.step, phase) == (behaviour.rank, behaviour.step, behaviour.phase)

    def enter(self, phase: Phase) -> None:
        self.phase = phase
        if self.is_hit(phase):
            (self.folder / FAULT_TIME_FILE).write_text(str(time.time()))
            action = MODES[self.behaviour.mode]
            action(self)

    def meet(self, name: str) -> None:
        """Wait for all ranks, for ever if one does not come, unless told to notice."""
        (self.folder / f"met.{name}.{self.rank}").touch()
        waiting = list(range(self.world_size))
        while waiting:
            waiting = [r for r in waiting if not (self.folder / f"met.{name}.{r}").exists()]
            if waiting and self.behaviour.echo_comm and (self.folder / "met.lost").exists():
                raise FakePeerLostError("Connection closed by peer")
            time.sleep(0.001)

    def run(self) -> None:
        self.enter(Phase.INIT)
        self.meet("init")
        total = self.job.measure.warmup_steps + self.job.measure.measured_steps
        for self.step in range(total):
            for phase in (Phase.FORWARD, Phase.BACKWARD, Phase.OPTIMIZER):
                self.enter(phase)
            time.sleep(self.behaviour.step_s)
            self.meet(f"step{self.step}")
            self._record_step()
        self.enter(Phase.REPORT)
        self._finish()

    def say(self, kind: FailureKind, error: Exception) -> None:
        """The rank's own words; its peers lose it from now on."""
        message = str(error) or type(error).__name__
        self.write(
            FailureReport(
                failure=kind, phase=self.phase, rank=self.rank, step=self.step, message=message,
                time_s=time.time(),
            )
        )  # fmt: skip
        (self.folder / "met.lost").touch()

    def _record_step(self) -> None:
        if self.rank:
            self._report.touch()
            return
        warmup = self.step < self.job.measure.warmup_steps
        self.write(
            StepRecord(
                step=self.step, is_warmup=warmup, step_time_s=self.behaviour.step_s, loss=1.0,
                tokens=_tokens(self.job),
            )
        )  # fmt: skip

    def _finish(self) -> None:
        self.write(
            RankReport(
                rank=self.rank, hostname=socket.gethostname(), device="cpu", coordinates={},
                stages=[0], layers=[0], num_parameters=1, peak_memory_bytes=1, state_memory_bytes=1,
            )
        )  # fmt: skip
        self.meet("end")
        if self.rank == 0:
            self.write(fake_result(self.job, self.behaviour.step_s))


def _tokens(job: TrialJob) -> int:
    return job.training.global_batch_size * job.training.sequence_length


def fake_result(job: TrialJob, step_s: float) -> TrialReport:
    """A result that is consistent in itself, of steps that all took `step_s` seconds."""
    flops = 1e9
    rate = flops / step_s / job.config.world_size
    return TrialReport(
        step_time_s=step_s, step_time_iqr_s=0.0, step_times_s=[step_s] * job.measure.measured_steps,
        tokens_per_s=_tokens(job) / step_s, tokens_per_step=_tokens(job),
        num_microbatches=job.num_microbatches, num_parameters=1, num_layers=1,
        model_flops_per_step=flops, hardware_flops_per_step=flops,
        model_flops_per_s_per_device=rate, hardware_flops_per_s_per_device=rate,
        mfu=None, peak_memory_bytes=1, final_loss=1.0, startup_s=0.0,
    )  # fmt: skip


def _behaviour(folder: Path, job: TrialJob) -> FakeBehaviour:
    path = folder / FAKE_FILE
    if path.exists():
        return FakeBehaviour.model_validate_json(path.read_text())
    if job.fault is None:
        return FakeBehaviour()
    fault = job.fault
    return FakeBehaviour(mode=fault.kind, rank=fault.rank, phase=fault.phase, step=fault.step)


def _raise(error: type[Exception], message: str) -> Callable[[_Rank], None]:
    def action(rank: _Rank) -> None:
        raise error(f"{message} on rank {rank.rank}")

    return action


def _kill_self(number: signal.Signals) -> Callable[[_Rank], None]:
    def action(rank: _Rank) -> None:
        (rank.folder / "met.lost").touch()
        os.kill(os.getpid(), number)
        time.sleep(60)

    return action


def _exit(code: int) -> Callable[[_Rank], None]:
    def action(_: _Rank) -> None:
        sys.exit(code)

    return action


def _hang(_: _Rank) -> None:
    while True:
        time.sleep(3600)


def _hang_deaf(rank: _Rank) -> None:
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
    _hang(rank)


def _leave_child(rank: _Rank) -> None:
    """Leave two processes: one in the rank's group, one that has made a session of its own."""
    for new_session in (False, True):
        child = subprocess.Popen(["sleep", "600"], start_new_session=new_session)  # noqa: S607
        with (rank.folder / "children.txt").open("a") as stream:
            stream.write(f"{child.pid}\n")


def _leave_child_and_die(rank: _Rank) -> None:
    _leave_child(rank)
    os.kill(os.getpid(), signal.SIGKILL)


def _torn_line(rank: _Rank) -> None:
    with (rank.folder / report_file(rank.rank)).open("a") as stream:
        stream.write('{"kind": "step", "step": 1, "is_warm\n')
        stream.write('{"kind": "foreign"}\n')


def _torn_end(rank: _Rank) -> None:
    with (rank.folder / report_file(rank.rank)).open("a") as stream:
        stream.write('{"kind": "result", "step_ti')
    os.kill(os.getpid(), signal.SIGKILL)


def _print_error(_: _Rank) -> None:
    print("Error: this word in a log is harmless", flush=True)  # noqa: T201 - the rank's log


def _bind_port(rank: _Rank) -> None:
    """Fail as a rank does whose rendezvous port was taken meanwhile."""
    with socket.socket() as server:
        server.bind(("127.0.0.1", rank.behaviour.port))


def _disk_full(_: _Rank) -> None:
    """Write to a device that is always full: the kernel's own error."""
    with Path("/dev/full").open("w") as stream:
        stream.write("x" * 100_000)


def _fill_disk(rank: _Rank) -> None:
    """Fill the disk of the trial's folder; for tests on a small file system of their own."""
    with (rank.folder / "ballast").open("wb", buffering=0) as stream:
        while stream.write(b"x" * 65_536):
            pass


def _clock_jump(rank: _Rank) -> None:
    """The time of day goes back by a day: files get old times and stay so."""
    day_ago_s = time.time() - 86_400
    for path in rank.folder.glob("report.*.jsonl"):
        os.utime(path, (day_ago_s, day_ago_s))


def _sleep_silently(_: _Rank) -> None:
    """A slow step, shorter than the watchdog's patience."""
    time.sleep(0.6)


def _slow(_: _Rank) -> None:
    """Steps that go on for ever: progress, but no end."""
    while True:
        time.sleep(0.05)
        print(".", flush=True)  # noqa: T201 - the rank's log


def _eat_memory(_: _Rank) -> None:
    raise MemoryError


def _flood_log(_: _Rank) -> None:
    sys.stdout.write("x" * 5_000_000)


def _linger(_: _Rank) -> None:
    """Nothing now: the rank lives on after the result, see `run_rank`."""


MODES: dict[str, Callable[[_Rank], None]] = {
    "ok": lambda _: None,
    "oom": _raise(FakeOutOfMemoryError, "out of memory"),
    "crash": _raise(RuntimeError, "a plain error"),
    "diverge": _raise(FakeDivergedError, "the loss is not finite"),
    "hang": _hang,
    "hang_deaf": _hang_deaf,
    "sigkill": _kill_self(signal.SIGKILL),
    "sigsegv": _kill_self(signal.SIGSEGV),
    "sigabrt": _kill_self(signal.SIGABRT),
    "exit_zero": _exit(0),
    "exit_three": _exit(3),
    "leave_child": _leave_child,
    "leave_child_and_die": _leave_child_and_die,
    "torn_line": _torn_line,
    "torn_end": _torn_end,
    "print_error": _print_error,
    "port_taken": _bind_port,
    "disk_full": _disk_full,
    "fill_disk": _fill_disk,
    "clock_jump": _clock_jump,
    "sleep": _sleep_silently,
    "slow": _slow,
    "host_oom": _eat_memory,
    "flood_log": _flood_log,
    "linger": _linger,
}
_KINDS: dict[type[Exception], FailureKind] = {
    FakeOutOfMemoryError: FailureKind.OOM,
    FakePeerLostError: FailureKind.COMM,
    FakeDivergedError: FailureKind.DIVERGED,
    MemoryError: FailureKind.OOM,
}


def run_rank(folder: str, rank: int, world_size: int, local_rank: int, init_method: str) -> int:
    """Run one fake rank; the exit code is 0 unless something failed."""
    me = _Rank(Path(folder), rank, world_size)
    _note_circumstances(me, local_rank, init_method)
    try:
        me.run()
    except Exception as error:
        kind = _KINDS.get(type(error), FailureKind.CRASH)
        if isinstance(error, OSError) and error.errno == 98:  # address in use
            kind = FailureKind.COMM
        me.say(kind, error)
        return 1
    if me.behaviour.mode == "linger" and rank == me.behaviour.rank:
        _hang(me)
    return 0


def _note_circumstances(me: _Rank, local_rank: int, init_method: str) -> None:
    """What tests of placement look at."""
    names = ("CUDA_VISIBLE_DEVICES", "GLOO_SOCKET_IFNAME", "OMP_NUM_THREADS")
    noted: dict[str, Any] = {
        "pid": os.getpid(), "pgid": os.getpgid(0), "cwd": str(Path.cwd()), "path": sys.path,
        "local_rank": local_rank, "init_method": init_method,
        "env": {name: os.environ.get(name) for name in names},
    }  # fmt: skip
    (me.folder / f"noted.{me.rank}.json").write_text(json.dumps(noted))


_RANDOM_MODES = (
    "oom", "crash", "sigkill", "sigsegv", "exit_three", "leave_child", "leave_child_and_die",
    "torn_line", "torn_end", "diverge", "hang", "print_error",
)  # fmt: skip
UNRELIABLE_ENTRY = "tuner.testing.fake_trainer:run_unreliable_rank"


def fake_step_time_s(job: TrialJob) -> float:
    """The step time of a configuration when nothing goes wrong: 2 to 4 ms, by its key."""
    return 0.002 + int(job.config.config_key, 16) % 2_000 * 1e-6


def random_behaviour(job: TrialJob, folder: Path) -> FakeBehaviour:
    """Half of the trials are hit, by a fault that follows from the folder's name."""
    source = random.Random(f"{job.trial_id}/{folder.name}")
    step_s = fake_step_time_s(job)
    if source.random() < 0.5:
        return FakeBehaviour(step_s=step_s)
    last_step = job.measure.warmup_steps + job.measure.measured_steps - 1
    return FakeBehaviour(
        mode=source.choice(_RANDOM_MODES),
        rank=source.randrange(job.config.world_size),
        step=source.randint(0, last_step),
        phase=source.choice([Phase.FORWARD, Phase.BACKWARD, Phase.OPTIMIZER]),
        step_s=step_s,
        echo_comm=source.random() < 0.5,
    )


def run_unreliable_rank(
    folder: str, rank: int, world_size: int, local_rank: int, init_method: str
) -> int:
    """`run_rank`, hit by a random fault in half of the trials."""
    place = Path(folder)
    job = TrialJob.model_validate_json((place / JOB_FILE).read_text())
    partial = place / f".{FAKE_FILE}.{rank}"
    partial.write_text(random_behaviour(job, place).model_dump_json())
    partial.replace(place / FAKE_FILE)
    return run_rank(folder, rank, world_size, local_rank, init_method)
