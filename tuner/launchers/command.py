"""`command`: any program of the user's per trial, in place of our trainer.

The command is a list of arguments in which `{folder}`, `{job}`, `{num_devices}`, `{num_steps}`,
`{seed}`, `{sequence_length}`, `{global_batch_size}`, `{port}` and the name of any knob are filled
in; `{args}` and `{torchrun}` stand for several arguments, `{export_dir}` for a folder of files from
an exporter. No shell sees it. The program runs in the trial's folder. An adapter reads its log
(`tuner.adapters`); without one it answers with one of

* report lines of the trainer's contract in `report.0.jsonl`,
* a JSON object in `result.json` or as the last line of its output, with `step_time_s` or
  `tokens_per_s`, and optionally `step_times_s` (measured steps), `peak_memory_bytes`,
  `final_loss` and `mfu`; or with `failure` (a kind of the contract) and `message`.
"""

import os
import shutil
from collections.abc import Mapping, Sequence
from pathlib import Path

from search_spaces.cluster_spec import ClusterSpec
from trainer.contract import FailureReport, TrialJob
from tuner import registry
from tuner.errors import LauncherError
from tuner.launchers.command_answer import RESULT_FILE, CommandHandle
from tuner.launchers.command_handle import AdapterHandle, RefusedHandle
from tuner.launchers.command_line import (
    ARGUMENTS,
    FOREIGN_VARIABLES,
    TORCHRUN,
    arguments_of,
    as_arguments,
    export_of,
    fill,
    num_steps,
    placeholders,
    rendezvous,
    torchrun,
    uses,
    write_export,
)
from tuner.launchers.local import LocalHandle, LocalLauncher
from tuner.launchers.network import rank_environment
from tuner.launchers.node import write_job
from tuner.launchers.rank_processes import ForkServer, RankGroup, RankTask
from tuner.launchers.supervision import Cause, NodeResult, NodeTrial, Patience, patience_of
from tuner.ports import Clock, Export, Exporter

PROCESSES = ("one", "ranks")


class CommandLauncher(LocalLauncher):
    """Runs a user's program per trial on this machine.

    Args:
        num_devices: Devices that trials share; none = this process's CPU cores.
        run_folder: Parent of the trials' folders.
        command: Program and arguments with placeholders; see the module's docstring.
        adapter: Name of what reads the program's log; none where it answers itself.
        exporter: Name of what gives `{args}` and the files in `{export_dir}`.
        cluster: The machines, which an exporter needs.
        processes: `one`: the program starts its ranks itself (`{torchrun}` does). `ranks`: one
            process per rank is started, with torch's variables for the rendezvous.
        environment: Further variables of the program.
        clock: Time for the supervision, for tests.
        patience: Waiting times of the supervision.
    """

    name = "command"

    def __init__(
        self,
        *,
        num_devices: int | None,
        run_folder: Path,
        command: str | Sequence[str] = (),
        adapter: str | None = None,
        exporter: str | None = None,
        cluster: ClusterSpec | None = None,
        processes: str = "one",
        environment: Mapping[str, str] | None = None,
        clock: Clock | None = None,
        patience: Patience | Mapping[str, float] | None = None,
    ) -> None:
        if processes not in PROCESSES:
            raise LauncherError(
                f"unknown processes {processes!r}", f"one of {', '.join(PROCESSES)}"
            )
        super().__init__(num_devices=num_devices, run_folder=run_folder)
        self._command = as_arguments(command)
        self._adapter = None if adapter is None else registry.load("adapters", adapter)
        self._exporter: Exporter | None = None
        if uses(self._command, ARGUMENTS, "export_dir"):
            self._exporter = self._load_exporter(exporter, cluster)
        self._cluster = cluster
        self._has_ranks = processes == "ranks"
        self._environment = {name: str(text) for name, text in (environment or {}).items()}
        self._server = ForkServer(entry=None)
        self._clock, self._patience = clock, patience_of(patience)
        # Relative programs and files are meant from where the study was started.
        self._origin = Path.cwd()

    def open(self) -> None:
        """Start the process that watches over the programs; raises if the program is not found."""
        program = self._command[0]
        if "{" not in program and shutil.which(self._located(program)) is None:
            raise LauncherError(f"the program {program!r} of the launcher `command` is not found")
        self._server.start()

    def _located(self, program: str) -> str:
        """A path with a slash is meant from where the study was started."""
        return str(self._origin / program) if "/" in program else program

    def close(self) -> None:
        """End all programs."""
        self._server.close()

    def submit(self, job: TrialJob, folder: Path) -> LocalHandle:
        """Start the user's program for a trial.

        Raises:
            LauncherError: An unknown placeholder, too few devices, or nothing can be started.
        """
        export = self._export(job)
        if isinstance(export, FailureReport):
            return RefusedHandle(job, folder, export)
        values = placeholders(job, folder)
        lists = {TORCHRUN: torchrun(job)}
        if uses(self._command, ARGUMENTS):
            lists[ARGUMENTS] = arguments_of(export)
        argv = fill(self._command, values, lists)
        devices = self._reserve(job.config.world_size)
        group: RankGroup | None = None
        try:
            write_job(job, folder)
            (folder / RESULT_FILE).unlink(missing_ok=True)
            write_export(export, folder)
            group = self._start(job, folder, argv, devices, int(values["port"]))
            trial: NodeTrial | NodeResult = self._watch(job, folder, group)
        except OSError as error:
            trial = NodeResult(cause=Cause.START_FAILED, message=f"{folder}: {error.strerror}")
        handle = self._handle(job, folder, trial, devices, group)
        self._running.append(handle)
        return handle

    def _handle(
        self, job: TrialJob, folder: Path, trial: NodeTrial | NodeResult, devices: Sequence[int],
        group: RankGroup | None,
    ) -> LocalHandle:  # fmt: skip
        if self._adapter is None:
            return CommandHandle(job, folder, trial, devices)
        adapter = self._adapter(job)
        return AdapterHandle(job, folder, trial, devices, adapter=adapter, group=group)

    def _export(self, job: TrialJob) -> Export | FailureReport:
        """The configuration in the trainer's words, or that it has none for it."""
        if self._exporter is None or self._cluster is None:
            return Export(files={})
        return export_of(self._exporter, job, self._cluster)

    @staticmethod
    def _load_exporter(name: str | None, cluster: ClusterSpec | None) -> Exporter:
        if name is None or cluster is None:
            raise LauncherError(
                "{args} and {export_dir} in a command need an exporter",
                'in the study file: [trainer] exporter = "megatron-lm"',
            )
        exporter: Exporter = registry.load("exporters", name)()
        return exporter

    def _start(
        self, job: TrialJob, folder: Path, argv: tuple[str, ...], devices: Sequence[int], port: int
    ) -> RankGroup:
        given = {name: v for name, v in os.environ.items() if name not in FOREIGN_VARIABLES}
        interface = "lo" if self._has_ranks else None
        shared = {
            **given,
            **rank_environment(job, interface=interface, device_ids=devices),
            "PYTHONUNBUFFERED": "1",  # else lines come when the program's buffer is full
            "TUNER_FOLDER": str(folder.resolve()),
            "TUNER_ORIGIN": str(self._origin),
            "TUNER_NUM_STEPS": str(num_steps(job)),
            **({} if self._adapter is None else self._adapter.environment),
            **self._environment,
        }
        argv = (self._located(argv[0]), *argv[1:])
        count = job.config.world_size if self._has_ranks else 1
        own = [rendezvous(job, rank, port) if self._has_ranks else {} for rank in range(count)]
        tasks = [
            RankTask(rank=rank, argv=argv, exec_env={**shared, **own[rank]})
            for rank in range(count)
        ]
        return self._server.start_group(folder, tasks, {})

    def _watch(self, job: TrialJob, folder: Path, group: RankGroup) -> NodeTrial:
        return NodeTrial(
            group, folder, job.measure, clock=self._clock, patience=self._patience,
            writes_stacks=False,
        )  # fmt: skip
