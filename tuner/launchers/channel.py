"""A child process of ours that is spoken to in JSON lines over a socket.

The socket is also the lifeline: the child ends when its end closes, whoever died. Nothing is
unpickled, and the child is a session of its own, so that a Ctrl-C in the terminal is for the
controller alone.
"""

import contextlib
import json
import os
import select
import socket
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import IO, Any

import psutil

import tuner

_SEND_TIMEOUT_S = 5.0
_KILL_TIMEOUT_S = 5.0
_CHUNK_BYTES = 1 << 16
_LINE_LIMIT_BYTES = 1 << 28


def code_paths() -> str:
    """`PYTHONPATH` of our processes: where this package lies, then what the user had, absolute."""
    root = str(Path(tuner.__file__).resolve().parent.parent)
    inherited = os.environ.get("PYTHONPATH", "").split(os.pathsep)
    paths = [root, *(path for path in inherited if Path(path).is_absolute() and path != root)]
    return os.pathsep.join(paths)


def _is_ready(connection: socket.socket, event: int, timeout_s: float) -> bool:
    """Whether a socket can be read or written within a time.

    Not `select`, which refuses descriptors above 1023: a notebook or server may have that many.
    """
    poll = select.poll()
    poll.register(connection, event)
    return bool(poll.poll(1000 * timeout_s))


class Channel:
    """Parent's side. Only `start` and `close` block.

    Args:
        module: What the child runs, as `python -P -m module FD arguments`.
        arguments: Further arguments.
        environment: Variables on top of this process's own.
    """

    def __init__(
        self, module: str, arguments: Sequence[str], environment: Mapping[str, str]
    ) -> None:
        self._module = module
        self._arguments = list(arguments)
        self._environment = dict(environment)
        self._process: subprocess.Popen[bytes] | None = None
        self._socket: socket.socket | None = None
        self._errors: IO[bytes] | None = None
        self._input = b""

    @property
    def pid(self) -> int | None:
        """The child's process id; none when it is not up."""
        return self._process.pid if self._process and self._socket else None

    def start(self, timeout_s: float) -> dict[str, Any]:
        """Start the child and wait for its first event; one named `failed` if none comes."""
        ours, theirs = socket.socketpair()
        self._errors = tempfile.TemporaryFile()  # noqa: SIM115 - lives as long as the child
        with theirs:
            self._process = subprocess.Popen(  # noqa: S603 - our own module, no shell
                [sys.executable, "-P", "-m", self._module, str(theirs.fileno()), *self._arguments],
                pass_fds=[theirs.fileno()],
                stdin=subprocess.DEVNULL,
                stdout=self._errors,
                stderr=self._errors,
                env={
                    **os.environ,
                    "PYTHONSAFEPATH": "1",
                    "PYTHONPATH": code_paths(),
                    **self._environment,
                },
                cwd="/",
                start_new_session=True,
            )
        self._socket, self._input = ours, b""
        try:
            event = self._first_event(timeout_s)
        except BaseException:  # a Ctrl-C while the child imports must not leave it behind
            self.close(0.0)
            raise
        ours.setblocking(False)
        return event

    def _first_event(self, timeout_s: float) -> dict[str, Any]:
        deadline = time.monotonic() + timeout_s
        while self._socket is not None and b"\n" not in self._input:
            self._socket.settimeout(max(0.01, deadline - time.monotonic()))
            try:
                data = self._socket.recv(_CHUNK_BYTES)
            except TimeoutError:
                return {"event": "failed", "message": f"no answer within {timeout_s:.0f} s"}
            if not data:
                return {"event": "failed", "message": f"it ended: {self.last_words()}"}
            self._input += data
        line, self._input = self._input.split(b"\n", 1)
        event: dict[str, Any] = json.loads(line)
        return event

    def last_words(self) -> str:
        """The last line that the child wrote to its output."""
        if self._errors is None:
            return "no message"
        self._errors.seek(0)
        lines = self._errors.read().decode(errors="replace").strip().splitlines()
        return lines[-1] if lines else "no message"

    def send(self, request: Mapping[str, Any]) -> bool:
        """Send one line; false when the child is gone or does not read."""
        if self._socket is None:
            return False
        data = memoryview(json.dumps(request).encode() + b"\n")
        deadline = time.monotonic() + _SEND_TIMEOUT_S
        while data:
            try:
                data = data[self._socket.send(data) :]
            except BlockingIOError:
                if time.monotonic() > deadline:
                    return False
                _is_ready(self._socket, select.POLLOUT, 0.05)
            except OSError:
                return False
        return True

    def receive(self) -> tuple[list[dict[str, Any]], bool]:
        """Events that have come in, and whether the child is still there."""
        events: list[dict[str, Any]] = []
        while self._socket is not None:
            try:
                data = self._socket.recv(_CHUNK_BYTES)
            except BlockingIOError:
                return events, True
            except OSError:
                data = b""
            if not data or len(self._input) > _LINE_LIMIT_BYTES:
                return events, False
            self._input += data
            if b"\n" in data:
                *lines, self._input = self._input.split(b"\n")
                events += [json.loads(line) for line in lines]
        return events, False

    def close(self, timeout_s: float) -> None:
        """Let the child end; kill its process group when it does not in time. Idempotent."""
        if self._socket is not None:
            self._socket.close()
            self._socket = None
        if self._process is not None:
            _wait_unreaped(self._process.pid, timeout_s)
            kill_session(self._process.pid)
            self._process.wait()
            self._process = None
        if self._errors is not None:
            self._errors.close()
            self._errors = None


def kill_session(leader: int) -> None:
    """Kill all processes of a session but the caller, and wait until they are gone.

    Ray's workers leave the process group that they were born in, but not the session. A process
    that was being started meanwhile is found by looking again.
    """
    deadline = time.monotonic() + _KILL_TIMEOUT_S
    while (members := _session(leader)) and time.monotonic() < deadline:
        for member in members:
            with contextlib.suppress(psutil.Error):
                member.kill()
        time.sleep(0.005)


def _session(leader: int) -> list[psutil.Process]:
    """Living processes of a session but the caller."""
    found = []
    for pid in psutil.pids():
        with contextlib.suppress(ProcessLookupError, PermissionError, psutil.Error):
            if pid != os.getpid() and os.getsid(pid) == leader:
                process = psutil.Process(pid)
                if process.status() != psutil.STATUS_ZOMBIE:
                    found.append(process)
    return found


def _wait_unreaped(pid: int, timeout_s: float) -> None:
    """Wait for a child's end without reaping it: its id, and so its group's, stays its own."""
    deadline = time.monotonic() + timeout_s
    while time.monotonic() < deadline:
        with contextlib.suppress(ChildProcessError):
            if os.waitid(os.P_PID, pid, os.WEXITED | os.WNOHANG | os.WNOWAIT) is not None:
                return
        time.sleep(0.005)


class ChannelServer:
    """Child's side."""

    def __init__(self, descriptor: int) -> None:
        self.socket = socket.socket(fileno=descriptor)
        self.socket.set_inheritable(False)
        self._input = b""
        self._sending = threading.Lock()

    def send(self, event: str, **fields: Any) -> None:
        """Send an event; a parent that is gone is seen by `receive`."""
        with self._sending, contextlib.suppress(OSError):
            self.socket.sendall(json.dumps({"event": event, **fields}).encode() + b"\n")

    def receive(self, timeout_s: float) -> list[dict[str, Any]] | None:
        """Requests that come in within `timeout_s`; none once the parent is gone."""
        readable = _is_ready(self.socket, select.POLLIN, timeout_s)
        if not readable:
            return []
        try:
            data = self.socket.recv(_CHUNK_BYTES)
        except ConnectionError:
            return None
        if not data:
            return None
        *lines, self._input = (self._input + data).split(b"\n")
        return [json.loads(line) for line in lines]
