"""Watches over the ranks of one trial on one node: deadline, hang, death of a rank, clean-up.

`NodeTrial` is a small state machine that moves on when `poll` is called and never blocks:

    RUNNING -> SETTLING (a rank failed: the others may still say what they saw)
            -> DUMPING (hang: all ranks write their stacks)
            -> TERMINATING (SIGTERM) -> KILLING (SIGKILL) -> ENDED

It says what happened (`NodeResult`), not what that means: that is the business of `classification`,
which sees the results of all nodes.
"""

import contextlib
import shutil
import signal
import subprocess
from collections.abc import Mapping
from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path

from pydantic import BaseModel, ConfigDict

from trainer.contract import FailureKind, MeasureSpec, read_output
from tuner.clock import SystemClock
from tuner.errors import LauncherError
from tuner.launchers.fork_server import log_file, stack_file
from tuner.launchers.rank_processes import RankGroup
from tuner.ports import Clock

_STACK_LIMIT_BYTES = 32_768
_LOG_TAIL_BYTES = 4_096


class Cause(StrEnum):
    """Why the ranks of a node ended."""

    ENDED = "ended"
    RANK_DIED = "rank_died"
    EARLY_EXIT = "early_exit"
    TIMEOUT = "timeout"
    HANG = "hang"
    CANCELLED = "cancelled"
    PEER_ENDED = "peer_ended"
    PEER_HANG = "peer_hang"
    START_FAILED = "start_failed"
    SERVER_LOST = "server_lost"
    AGENT_LOST = "agent_lost"
    NODE_LOST = "node_lost"
    NEVER_PLACED = "never_placed"


class NodeResult(BaseModel):
    """What one node saw of a trial; crosses process borders as JSON."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    cause: Cause
    hostname: str = ""
    first_failed: int | None = None
    """The rank that ended first in a way it should not have."""
    exit_codes: dict[int, int] = {}
    """By rank; minus the signal's number for a rank that was killed."""
    killed_by_us: tuple[int, ...] = ()
    """Ranks that were alive when the clean-up began: their exit codes say nothing."""
    peak_rss_bytes: dict[int, int] = {}
    oom_kills: int = 0
    """Processes that the kernel killed for memory on this node or in our cgroup meanwhile."""
    stacks: dict[int, str] = {}
    log_tails: dict[int, str] = {}
    message: str = ""
    disk_free_bytes: int | None = None
    files: dict[str, str] = {}
    """Report files by name, only where the trial's folder is not shared with the controller."""


@dataclass(frozen=True, kw_only=True)
class Patience:
    """How long the supervision waits, in seconds."""

    settle_s: float = 0.5
    """For the other ranks' own words after one has failed."""
    early_exit_s: float = 10.0
    """For the others after a rank ended with exit code 0."""
    teardown_s: float = 5.0
    """For ranks that live on after the trial's result was written."""
    dump_s: float = 1.0
    terminate_s: float = 1.0
    kill_s: float = 10.0
    watch_interval_s: float = 0.25


def patience_of(value: "Patience | Mapping[str, float] | None") -> Patience:
    """Waiting times from a study file's table; raises `LauncherError` for an unknown name."""
    if value is None or isinstance(value, Patience):
        return value or Patience()
    known = sorted(Patience.__dataclass_fields__)
    unknown = sorted(set(value) - set(known))
    if unknown:
        raise LauncherError(f"unknown waiting time {unknown[0]!r}", f"known: {', '.join(known)}")
    return Patience(**value)


class _State(StrEnum):
    RUNNING = "running"
    SETTLING = "settling"
    DUMPING = "dumping"
    TERMINATING = "terminating"
    KILLING = "killing"
    ENDED = "ended"


class NodeTrial:
    """The ranks of a trial that run on this node."""

    def __init__(
        self,
        group: RankGroup,
        folder: Path,
        measure: MeasureSpec,
        *,
        clock: Clock | None = None,
        patience: Patience | None = None,
        writes_stacks: bool = True,
    ) -> None:
        self._group = group
        self._folder = folder
        self._measure = measure
        self._clock = clock or SystemClock()
        self._patience = patience or Patience()
        self._writes_stacks = writes_stacks
        self._state = _State.RUNNING
        self._since_s = self._started_s = self._progress_s = self._clock.monotonic_s()
        self._watched_s = float("-inf")
        self._signature: tuple[tuple[str, int, int], ...] = ()
        self._cause: Cause | None = None
        self._first_failed: int | None = None
        self._early_exit_s: float | None = None
        self._result_s: float | None = None
        self._killed_by_us: tuple[int, ...] = ()
        self._oom_kills = _count_oom_kills()
        self._native_stacks: dict[int, str] = {}
        self._result: NodeResult | None = None

    def poll(self) -> NodeResult | None:
        """Move on; the result once every rank has ended and been cleaned up."""
        if self._result is not None:
            return self._result
        if self._group.poll():
            self._result = self._conclude()
            self._state = _State.ENDED
            return self._result
        step = {
            _State.RUNNING: self._watch,
            _State.SETTLING: self._settle,
            _State.DUMPING: self._dump,
            _State.TERMINATING: self._terminate,
            _State.KILLING: self._kill,
        }
        step[self._state]()
        return None

    def cancel(self, *, dump_stacks: bool = False) -> None:
        """End the ranks; `dump_stacks` first asks them where they are."""
        if self._state in (_State.RUNNING, _State.SETTLING):
            self._end(Cause.CANCELLED, dump_stacks=dump_stacks)

    def _enter(self, state: _State) -> None:
        self._state, self._since_s = state, self._clock.monotonic_s()

    def _elapsed_s(self) -> float:
        return self._clock.monotonic_s() - self._since_s

    def _living(self) -> tuple[int, ...]:
        return tuple(rank for rank in self._group.ranks if rank not in self._group.exits)

    def _end(self, cause: Cause, *, dump_stacks: bool = False) -> None:
        self._cause = self._cause or cause
        self._killed_by_us = self._living()
        if dump_stacks:
            if self._writes_stacks:  # SIGUSR1 would end a program that is not ours
                self._group.signal(signal.SIGUSR1, whole_group=False)
            self._enter(_State.DUMPING)
        else:
            self._begin_killing()

    def _begin_killing(self) -> None:
        self._killed_by_us = self._killed_by_us or self._living()
        self._group.signal(signal.SIGTERM)
        self._enter(_State.TERMINATING)

    def _watch(self) -> None:
        if any(end.code != 0 for end in self._group.exits.values()):
            failed = [rank for rank, end in self._group.exits.items() if end.code != 0]
            self._first_failed, self._cause = failed[0], Cause.RANK_DIED
            self._enter(_State.SETTLING)
            return
        now_s = self._clock.monotonic_s()
        if now_s - self._watched_s < self._patience.watch_interval_s:
            return
        self._watched_s = now_s
        self._look_for_progress(now_s)
        self._look_for_end(now_s)
        if self._state is not _State.RUNNING:
            return
        if now_s - self._started_s >= self._measure.deadline_s:
            self._end(Cause.TIMEOUT, dump_stacks=True)
        elif now_s - self._progress_s >= self._measure.hang_s:
            self._end(Cause.HANG, dump_stacks=True)

    def _look_for_progress(self, now_s: float) -> None:
        """Progress is any change of a report or log file: no clock of the ranks is trusted."""
        signature = _signature(self._folder)
        if signature != self._signature:
            self._signature, self._progress_s = signature, now_s
            if self._result_s is None and 0 in self._group.ranks and _has_result(self._folder):
                self._result_s = now_s

    def _look_for_end(self, now_s: float) -> None:
        """Ranks that outlive the result, or that wait for one which left too early."""
        if self._result_s is not None:
            if now_s - self._result_s >= self._patience.teardown_s:
                self._end(Cause.ENDED)
            return
        if self._early_exit_s is None and self._group.exits:
            self._early_exit_s = now_s
        waited_s = 0.0 if self._early_exit_s is None else now_s - self._early_exit_s
        if waited_s >= self._patience.early_exit_s:
            self._first_failed = next(iter(self._group.exits))
            self._end(Cause.EARLY_EXIT)

    def _settle(self) -> None:
        if self._elapsed_s() >= self._patience.settle_s or _has_own_words(self._folder):
            self._begin_killing()

    def _dump(self) -> None:
        if self._elapsed_s() >= self._patience.dump_s or not self._writes_stacks:
            if not self._stacks():  # faulthandler gave nothing: a rank that is no Python of ours
                living = {rank: self._group.pids[rank] for rank in self._living()}
                self._native_stacks = dump_native_stacks(living)
            self._begin_killing()

    def _terminate(self) -> None:
        if self._elapsed_s() >= self._patience.terminate_s:
            self._group.signal(signal.SIGKILL)
            self._enter(_State.KILLING)

    def _kill(self) -> None:
        # A rank stuck in the kernel (a dead GPU, a lost network drive) may survive SIGKILL a while.
        if self._elapsed_s() >= self._patience.kill_s:
            self._group.signal(signal.SIGKILL)
            self._enter(_State.KILLING)

    def _conclude(self) -> NodeResult:
        exits = self._group.exits
        return NodeResult(
            cause=self._final_cause(),
            first_failed=self._first_failed_rank(),
            exit_codes={rank: end.code for rank, end in exits.items()},
            killed_by_us=self._killed_by_us,
            peak_rss_bytes={
                rank: end.peak_rss_bytes for rank, end in exits.items() if end.peak_rss_bytes
            },
            oom_kills=_count_oom_kills() - self._oom_kills,
            stacks=self._stacks(),
            log_tails=self._log_tails(),
            message=self._group.start_error,
            disk_free_bytes=_disk_free_bytes(self._folder),
        )

    def _final_cause(self) -> Cause:
        if self._group.start_error:
            return Cause.START_FAILED
        if self._group.is_lost and self._cause is None:
            return Cause.SERVER_LOST
        if self._cause is None and self._first_failed_rank() is not None:
            return Cause.RANK_DIED
        return self._cause or Cause.ENDED

    def _first_failed_rank(self) -> int | None:
        if self._first_failed is not None:
            return self._first_failed
        killed = self._killed_by_us
        failed = (
            rank for rank, end in self._group.exits.items() if end.code and rank not in killed
        )
        return next(failed, None)

    def _stacks(self) -> dict[int, str]:
        texts = {rank: _tail(self._folder / stack_file(rank)) for rank in self._group.ranks}
        return {rank: text for rank, text in texts.items() if text} or self._native_stacks

    def _log_tails(self) -> dict[int, str]:
        texts = {
            rank: _tail(self._folder / log_file(rank), _LOG_TAIL_BYTES)
            for rank in self._group.ranks
        }
        return {rank: text for rank, text in texts.items() if text}


def _tail(path: Path, limit: int = _STACK_LIMIT_BYTES) -> str:
    try:
        with path.open("rb") as stream:
            stream.seek(max(0, path.stat().st_size - limit))
            return stream.read().decode(errors="replace").strip()
    except OSError:
        return ""


def _signature(folder: Path) -> tuple[tuple[str, int, int], ...]:
    """Names, sizes and modification times of the files that a living trial changes."""
    found = []
    for pattern in ("report.*.jsonl", "rank.*.log"):
        for path in sorted(folder.glob(pattern)):
            with contextlib.suppress(OSError):
                status = path.stat()
                found.append((path.name, status.st_size, status.st_mtime_ns))
    return tuple(found)


def _has_result(folder: Path) -> bool:
    try:
        return read_output(folder).result is not None
    except OSError:
        return False


def _has_own_words(folder: Path) -> bool:
    """Whether a rank has said more than that it lost its peers."""
    try:
        return any(words.failure is not FailureKind.COMM for words in read_output(folder).failures)
    except OSError:
        return False


def _disk_free_bytes(folder: Path) -> int | None:
    try:
        return shutil.disk_usage(folder).free
    except OSError:
        return None


def _count_oom_kills() -> int:
    """Kills for lack of memory: of the whole machine, or of our cgroup where that says more."""
    counts = [_counter(Path("/proc/vmstat")), *map(_counter, _cgroup_event_files())]
    return max(counts)


def _cgroup_event_files() -> list[Path]:
    try:
        lines = Path("/proc/self/cgroup").read_text().splitlines()
    except OSError:
        return []
    names = [line.split("::", 1)[1].lstrip("/") for line in lines if line.startswith("0::")]
    return [Path("/sys/fs/cgroup") / name / "memory.events" for name in names]


def _counter(path: Path) -> int:
    try:
        text = path.read_text()
    except OSError:
        return 0
    fields: Mapping[str, str] = dict(
        line.split(" ", 1) for line in text.splitlines() if " " in line
    )
    return int(fields.get("oom_kill", "0"))


def dump_native_stacks(pids: Mapping[int, int], timeout_s: float = 5.0) -> dict[int, str]:
    """Stacks by rank from py-spy where that is installed; empty otherwise."""
    program = shutil.which("py-spy")
    texts: dict[int, str] = {}
    for rank, pid in pids.items() if program else ():
        with contextlib.suppress(OSError, subprocess.SubprocessError):
            done = subprocess.run(  # noqa: S603 - a fixed program and a number
                [str(program), "dump", "--pid", str(pid)],
                capture_output=True, text=True, timeout=timeout_s, check=False,
            )  # fmt: skip
            texts[rank] = done.stdout[-_STACK_LIMIT_BYTES:]
    return texts
