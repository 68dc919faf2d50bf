"""The process that trials are forked from: `python -P -m tuner.launchers.fork_server FD`.

It imports torch and the worker once and then forks one process per rank, which takes milliseconds
where a fresh interpreter takes a second or more. It is deliberately dumb: one thread, standard
library only, JSON lines over a socket (nothing is unpickled). Closing the socket is the order to
end: the server then kills all ranks and leaves, so that whoever dies above it leaves nothing.

Every rank is the leader of its own session and process group, lives in the trial's folder, writes
to `rank.<r>.log` there, and is killed by the kernel when the server dies (`PR_SET_PDEATHSIG`). As
the server is a child subreaper, processes that a rank left behind fall to it and are killed when
the rank's trial has ended.

Requests: `start` (group, folder, env, tasks), `signal` (group, signal, whole_group). Events:
`ready`, `failed`, `started`, `exited`, `empty`.
"""

import contextlib
import ctypes
import faulthandler
import gc
import importlib
import os
import selectors
import signal
import sys
import time
import traceback
from pathlib import Path
from typing import Any

from tuner.launchers.channel import ChannelServer

_PR_SET_PDEATHSIG = 1
_PR_SET_CHILD_SUBREAPER = 36
# A process may be born while its family is killed, so that it has to be looked for again.
_MAX_ROUNDS, _ROUND_S = 50, 0.005


def _prctl(option: int, value: int) -> None:
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(option, value, 0, 0, 0)


def stack_file(rank: int) -> str:
    """Name of the file that a rank dumps its stacks to on SIGUSR1."""
    return f"stacks.{rank}.txt"


def log_file(rank: int) -> str:
    """Name of the file that holds a rank's standard output and error."""
    return f"rank.{rank}.log"


def num_threads() -> int:
    """Threads of this process; forking is safe with one only."""
    tasks = Path("/proc/self/task")
    return len(list(tasks.iterdir())) if tasks.is_dir() else 1


class _Group:
    """The ranks of one trial, by process id."""

    def __init__(self, name: str) -> None:
        self.name = name
        self.rank_of: dict[int, int] = {}


class _Server:
    def __init__(self, channel: ChannelServer) -> None:
        self._channel = channel
        self._groups: dict[str, _Group] = {}
        self._wake_read, self._wake_write = os.pipe()
        os.set_blocking(self._wake_write, False)
        os.set_blocking(self._wake_read, False)

    def serve(self) -> None:
        signal.set_wakeup_fd(self._wake_write, warn_on_full_buffer=False)
        signal.signal(signal.SIGCHLD, lambda *_: None)
        signal.signal(signal.SIGTERM, lambda *_: sys.exit(0))
        signal.signal(signal.SIGINT, signal.SIG_IGN)
        selector = selectors.DefaultSelector()
        selector.register(self._channel.socket, selectors.EVENT_READ)
        selector.register(self._wake_read, selectors.EVENT_READ)
        try:
            while True:
                ready = {key.fileobj for key, _ in selector.select(timeout=1.0)}
                if self._wake_read in ready:
                    with contextlib.suppress(BlockingIOError):
                        os.read(self._wake_read, 4096)
                self._reap()
                if self._channel.socket in ready:
                    requests = self._channel.receive(0.0)
                    if requests is None:
                        return
                    for request in requests:
                        self._handle(request)
        finally:
            self._kill_everything()

    def _handle(self, request: dict[str, Any]) -> None:
        if request["op"] == "start":
            self._start(request)
        elif request["op"] == "signal":
            group = self._groups.get(request["group"])
            for pid in group.rank_of if group else ():
                _signal(pid, request["signal"], whole_group=request["whole_group"])

    def _start(self, request: dict[str, Any]) -> None:
        group = self._groups[request["group"]] = _Group(request["group"])
        message = ""
        for task in request["tasks"]:
            try:
                pid = os.fork()
            except OSError as error:
                message = f"cannot start rank {task['rank']}: {error.strerror}"
                break
            if pid == 0:
                self._become_rank(request, task)
            group.rank_of[pid] = task["rank"]
        pids = {str(rank): pid for pid, rank in group.rank_of.items()}
        self._channel.send("started", group=group.name, pids=pids, message=message)
        if message:
            self._kill(group)
        if not group.rank_of:
            self._finish(group)

    def _become_rank(self, request: dict[str, Any], task: dict[str, Any]) -> None:
        """Never returns: this is the forked child."""
        code = 1
        try:
            server_pid = os.getppid()
            signal.set_wakeup_fd(-1)
            for number in (signal.SIGCHLD, signal.SIGTERM, signal.SIGINT):
                signal.signal(number, signal.SIG_DFL)
            self._channel.socket.close()
            os.close(self._wake_read)
            os.close(self._wake_write)
            _prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
            if os.getppid() != server_pid:  # the server died before the line above
                os._exit(1)
            code = _run_task(request, task)
        except SystemExit as stop:
            code = stop.code if isinstance(stop.code, int) else int(stop.code is not None)
        except BaseException:
            traceback.print_exc()
        finally:
            with contextlib.suppress(Exception):
                sys.stdout.flush()
                sys.stderr.flush()
            os._exit(code & 0xFF)  # skips destructors: they may wait for peers that are gone

    def _reap(self) -> None:
        for group in list(self._groups.values()):
            for pid, rank in list(group.rank_of.items()):
                self._reap_rank(group, pid, rank)
            if not group.rank_of:
                self._finish(group)
        self._reap_strays()

    def _reap_rank(self, group: _Group, pid: int, rank: int) -> None:
        # Look without reaping first: while the zombie holds the id, the group is surely the rank's.
        if os.waitid(os.P_PID, pid, os.WEXITED | os.WNOHANG | os.WNOWAIT) is None:
            return
        _signal(pid, signal.SIGKILL)
        _, status, usage = os.wait4(pid, 0)
        del group.rank_of[pid]
        code = os.waitstatus_to_exitcode(status)
        peak = usage.ru_maxrss * (1024 if sys.platform == "linux" else 1)
        self._channel.send("exited", group=group.name, rank=rank, code=code, peak_rss_bytes=peak)

    def _finish(self, group: _Group) -> None:
        del self._groups[group.name]
        self._end_strays()
        self._channel.send("empty", group=group.name)

    def _strays(self) -> list[int]:
        """Children that are no ranks: orphans of ranks that ended."""
        path = Path(f"/proc/self/task/{os.getpid()}/children")
        if not path.exists():
            return []
        ranks = {pid for group in self._groups.values() for pid in group.rank_of}
        return [int(pid) for pid in path.read_text().split() if int(pid) not in ranks]

    def _end_strays(self) -> None:
        """Kill orphans of ranks with all below them: those fall to us only once these are dead."""
        for _ in range(_MAX_ROUNDS):
            orphans = self._strays()
            if not orphans:
                return
            for pid in (member for orphan in orphans for member in _family(orphan)):
                _signal(pid, signal.SIGKILL, whole_group=False)
            time.sleep(_ROUND_S)
            self._reap_strays()

    def _reap_strays(self) -> None:
        for pid in self._strays():
            with contextlib.suppress(ChildProcessError):
                os.waitpid(pid, os.WNOHANG)

    def _kill(self, group: _Group) -> None:
        for pid in group.rank_of:
            _signal(pid, signal.SIGKILL)

    def _kill_everything(self) -> None:
        for group in list(self._groups.values()):
            self._kill(group)
            for pid in list(group.rank_of):
                with contextlib.suppress(ChildProcessError):
                    os.waitpid(pid, 0)
            group.rank_of.clear()
        self._end_strays()


def _family(pid: int) -> list[int]:
    """A process and all below it, as far as the kernel tells."""
    try:
        lists = [path.read_text() for path in Path(f"/proc/{pid}/task").glob("*/children")]
    except OSError:
        lists = []
    children = [int(child) for text in lists for child in text.split()]
    return [pid, *(member for child in children for member in _family(child))]


def _signal(pid: int, number: int, *, whole_group: bool = True) -> None:
    """Signal a child of ours and its process group, which it makes moments after its birth."""
    with contextlib.suppress(ProcessLookupError, PermissionError):
        if whole_group:
            try:
                os.killpg(pid, number)
                return
            except ProcessLookupError:
                pass
        os.kill(pid, number)


def _run_task(request: dict[str, Any], task: dict[str, Any]) -> int:
    os.setsid()
    os.chdir(request["folder"])
    _redirect(log_file(task["rank"]))
    os.environ.update(request["env"])
    os.environ.update(task.get("env", {}))
    if "argv" in task:
        environment = task["exec_env"] or dict(os.environ)
        os.execvpe(task["argv"][0], task["argv"], environment)  # noqa: S606 - no shell, a list
    with Path(stack_file(task["rank"])).open("w") as stacks:
        faulthandler.enable()
        faulthandler.register(signal.SIGUSR1, file=stacks, all_threads=True)
        module, function = task["entry"].split(":")
        code: object = getattr(importlib.import_module(module), function)(*task["arguments"])
        return code if isinstance(code, int) else 0


def _redirect(path: str) -> None:
    log = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o644)
    null = os.open(os.devnull, os.O_RDONLY)
    for source, target in ((null, 0), (log, 1), (log, 2)):
        os.dup2(source, target)
    os.close(log)
    os.close(null)


def main(arguments: list[str]) -> None:
    """Serve the socket that was inherited as file descriptor `FD`; further names are preloaded."""
    channel = ChannelServer(int(arguments[0]))
    _prctl(_PR_SET_CHILD_SUBREAPER, 1)
    for name in arguments[1:]:
        try:
            importlib.import_module(name)
        except Exception as error:
            traceback.print_exc()
            message = f"cannot import {name}: {type(error).__name__}: {error}"
            channel.send("failed", message=message)
            return
    gc.collect()
    gc.freeze()  # keeps the pages of what was imported shared with the ranks
    channel.send("ready", pid=os.getpid(), num_threads=num_threads())
    _Server(channel).serve()


if __name__ == "__main__":
    main(sys.argv[1:])
