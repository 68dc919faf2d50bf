"""The process that speaks to Ray: `python -P -m tuner.launchers.ray_driver FD OPTIONS`.

Ray reads its security settings when it is imported, ends the whole process when its head is lost,
and changes signal handlers and the environment. So the controller never imports it: this child
does, and is spoken to in JSON lines. When the controller dies, the socket closes, and the child
shuts Ray down and removes the temporary folder of a cluster that it had started.

A trial goes PLACING (its placement group waits for free devices) -> MEETING (several nodes:
rank 0's picks a port) -> RUNNING (one `run` call per agent) -> done.
"""

import contextlib
import json
import os
import shutil
import signal
import sys
import threading
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import psutil

from tuner.launchers.channel import ChannelServer, kill_session
from tuner.launchers.ray_cluster import (
    NODES_REFRESH_S,
    RESOURCES,
    Cluster,
    DriverOptions,
    GroupPool,
    first_line,
)
from tuner.launchers.ray_trial import RunningTrial, Submission
from tuner.launchers.supervision import Cause

_BUSY_POLL_S = 0.005
_IDLE_POLL_S = 0.2
_HEADS = ("gcs_server", "raylet")
_HEAD_LOOK_S = 0.25
_UNSOUND = (Cause.NODE_LOST, Cause.AGENT_LOST, Cause.NEVER_PLACED)


class Driver:
    """Carries out the controller's requests."""

    def __init__(self, channel: ChannelServer, options: DriverOptions) -> None:
        self._channel = channel
        self._options = options
        self._cluster = Cluster(options)
        self._groups = GroupPool()
        self._trials: dict[str, RunningTrial] = {}
        self._progress_calls: dict[str, Any] = {}
        self._table: list[dict[str, Any]] = []
        self._looked_s = float("-inf")

    def open(self) -> bool:
        """Connect and start the agents; false when that fails, which the controller is told."""
        try:
            self._cluster.connect()
            error = self._cluster.open_agents()
        except Exception as failure:
            error = first_line(failure)
        if error:
            self._channel.send("failed", message=error)
            return False
        self._table = self._cluster.table()
        self._channel.send("ready", nodes=self._table)
        return True

    def serve(self) -> None:
        """Until the controller is gone or says `close`."""
        while True:
            wait_s = _BUSY_POLL_S if self._trials else _IDLE_POLL_S
            requests = self._channel.receive(wait_s)
            if requests is None:
                return
            for request in requests:
                if request["op"] == "close":
                    return
                self._handle(request)
            self._advance()
            self._look_at_nodes()

    def _handle(self, request: Mapping[str, Any]) -> None:
        if request["op"] == "submit":
            submission = Submission.model_validate(request["submission"])
            resource = RESOURCES[submission.job.device_kind]
            group = self._groups.take(submission.bundles, resource)
            self._trials[submission.trial] = RunningTrial(self._cluster, submission, group)
        elif request["op"] == "cancel" and request["trial"] in self._trials:
            self._trials[request["trial"]].cancel()
        elif request["op"] == "describe":
            self._channel.send("described", nodes=self._cluster.describe())
        elif request["op"] == "progress" and request["trial"] in self._trials:
            call = self._trials[request["trial"]].progress_call()
            if call is not None:
                self._progress_calls[request["trial"]] = call

    def _advance(self) -> None:
        import ray

        for name, call in list(self._progress_calls.items()):
            if ray.wait([call], timeout=0)[0]:
                del self._progress_calls[name]
                with contextlib.suppress(Exception):
                    self._channel.send("progress", trial=name, files=json.loads(ray.get(call)))
        for name, trial in list(self._trials.items()):
            results = trial.advance()
            if results is not None:
                is_sound = all(result.cause not in _UNSOUND for result in results)
                self._groups.give(trial.group, is_sound=is_sound)
                if not is_sound:  # what is gone must be known before the next trial is planned
                    self._tell_nodes()
                del self._trials[name]
                nodes = [result.model_dump(mode="json") for result in results]
                self._channel.send("done", trial=name, nodes=nodes)

    def _look_at_nodes(self) -> None:
        if time.monotonic() - self._looked_s < NODES_REFRESH_S:
            return
        self._looked_s = time.monotonic()
        self._groups.drop_old()
        self._tell_nodes()

    def _tell_nodes(self) -> None:
        table = self._cluster.table()
        if table != self._table:
            self._table = table
            self._channel.send("nodes", nodes=table)

    def close(self) -> None:
        """Leave nothing behind."""
        self._cluster.close()


def _watch_head(channel: ChannelServer, is_closing: threading.Event) -> None:
    """End this process when Ray's head, a child of it, dies: calls to Ray would hang for a minute.

    A shutdown would wait as well. The controller kills what is left of our session.
    """
    heads = [child for child in psutil.Process().children() if child.name() in _HEADS]

    def watch() -> None:
        while not is_closing.wait(_HEAD_LOOK_S):
            if not all(map(_is_alive, heads)) and not is_closing.is_set():
                channel.send("lost", message="Ray's head process died")
                os._exit(1)

    threading.Thread(target=watch, daemon=True).start()


def _is_alive(process: psutil.Process) -> bool:
    try:
        return process.is_running() and process.status() != psutil.STATUS_ZOMBIE
    except psutil.NoSuchProcess:
        return False


def main(arguments: list[str]) -> None:
    """Serve the socket that was inherited as file descriptor `FD`."""
    channel = ChannelServer(int(arguments[0]))
    options = DriverOptions.model_validate_json(arguments[1])
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(0))
    driver = Driver(channel, options)
    is_closing = threading.Event()
    try:
        if driver.open():
            _watch_head(channel, is_closing)
            driver.serve()
    finally:
        is_closing.set()
        driver.close()
        if options.address is None:
            if os.getsid(0) == os.getpid():  # some of Ray's processes outlive it by a minute
                kill_session(os.getpid())
            shutil.rmtree(Path(options.temp_folder), ignore_errors=True)


if __name__ == "__main__":
    main(sys.argv[1:])
