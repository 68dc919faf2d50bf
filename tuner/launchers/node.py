"""Starts a trial's ranks on this node under supervision, for every launcher of real ranks."""

import os
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from trainer.contract import JOB_FILE, TrialJob
from tuner.errors import LauncherError
from tuner.launchers.rank_processes import DEFAULT_ENTRY, ForkServer, RankTask
from tuner.launchers.supervision import NodeTrial, Patience
from tuner.ports import Clock

START_METHODS = ("fork", "spawn")


@dataclass(frozen=True, kw_only=True)
class RankPlan:
    """A node's part of a trial: `ranks` are consecutive, the first has local rank 0."""

    ranks: Sequence[int]
    world_size: int
    init_method: str
    environment: Mapping[str, str]


class Node:
    """This machine as a place for ranks.

    Args:
        entry: `module:function` called as `(folder, rank, world_size, local_rank, init_method)`.
        start_method: `fork` from a process that has imported everything, or `spawn`: a fresh
            interpreter per rank, slower by seconds, for libraries that cannot be forked.
        clock: Time for the supervision.
        patience: Waiting times of the supervision.
    """

    def __init__(
        self,
        *,
        entry: str = DEFAULT_ENTRY,
        start_method: str = "fork",
        clock: Clock | None = None,
        patience: Patience | None = None,
    ) -> None:
        if start_method not in START_METHODS:
            raise LauncherError(
                f"unknown start_method {start_method!r}", f"one of {', '.join(START_METHODS)}"
            )
        if entry.count(":") != 1:
            raise LauncherError(f"entry {entry!r} is not of the form module:function")
        self._entry = entry
        self._start_method = start_method
        self._clock = clock
        self._patience = patience
        self._server = ForkServer(entry=entry if start_method == "fork" else None)

    def open(self) -> None:
        """Import what ranks need; raises `LauncherError` when that fails."""
        self._server.start()

    def close(self) -> None:
        """End all ranks of this node. Idempotent."""
        self._server.close()

    def start(self, job: TrialJob, folder: Path, plan: RankPlan) -> NodeTrial:
        """Start the ranks in a folder that `write_job` has made; returns at once.

        Raises:
            LauncherError: The fork server cannot be started.
        """
        tasks = [self._task(folder, plan, rank, local) for local, rank in enumerate(plan.ranks)]
        group = self._server.start_group(folder, tasks, plan.environment)
        return NodeTrial(
            group, folder, job.measure, clock=self._clock, patience=self._patience
        )  # fmt: skip

    def _task(self, folder: Path, plan: RankPlan, rank: int, local_rank: int) -> RankTask:
        arguments = (str(folder.resolve()), rank, plan.world_size, local_rank, plan.init_method)
        if self._start_method == "fork":
            return RankTask(rank=rank, entry=self._entry, arguments=arguments)
        program = (sys.executable, "-P", "-m", "tuner.launchers.rank_main", self._entry)
        return RankTask(rank=rank, argv=program + tuple(map(str, arguments)))


def write_job(job: TrialJob, folder: Path) -> None:
    """Put `job.json` into the trial's folder; whole or not at all.

    Files of an earlier attempt in the same folder are removed: they would be taken for this one's.
    """
    folder.mkdir(parents=True, exist_ok=True)
    for pattern in ("report.*.jsonl", "rank.*.log", "stacks.*.txt", "rendezvous*"):
        for path in folder.glob(pattern):
            path.unlink(missing_ok=True)
    target = folder / JOB_FILE
    partial = folder / f".{JOB_FILE}.{os.getpid()}"
    partial.write_text(job.model_dump_json())
    partial.replace(target)


def rendezvous_file(folder: Path) -> str:
    """`init_method` of a trial whose ranks share a folder on one node."""
    return f"file://{(folder / 'rendezvous').resolve()}"
