"""`command`: any program of the user's per trial, in place of our trainer.

The command is a list of arguments in which `{folder}`, `{job}`, `{num_devices}`, `{seed}`,
`{sequence_length}`, `{global_batch_size}` and the name of any knob are filled in. No shell sees it.
The program runs in the trial's folder and answers with one of

* report lines of the trainer's contract in `report.0.jsonl`,
* a JSON object in `result.json` or as the last line of its output, with `step_time_s` or
  `tokens_per_s`, and optionally `step_times_s` (measured steps), `peak_memory_bytes`,
  `final_loss` and `mfu`; or with `failure` (a kind of the contract) and `message`.
"""

import json
import os
import re
import shutil
import statistics
import sys
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from pydantic import BaseModel, ConfigDict, Field, ValidationError, model_validator

from search_spaces.counts import hardware_flops_per_step, model_flops_per_step, num_parameters
from trainer.contract import (
    JOB_FILE,
    FailureKind,
    FailureReport,
    Phase,
    StepRecord,
    TrialJob,
    TrialOutput,
    TrialReport,
)
from tuner.errors import LauncherError
from tuner.launchers.fork_server import log_file
from tuner.launchers.local import LocalHandle, LocalLauncher
from tuner.launchers.network import rank_environment
from tuner.launchers.node import write_job
from tuner.launchers.rank_processes import ForkServer, RankTask
from tuner.launchers.supervision import Cause, NodeResult, NodeTrial, Patience, patience_of
from tuner.ports import Clock

RESULT_FILE = "result.json"
_PLACEHOLDER = re.compile(r"\{([a-z_0-9]*)\}")
_TAIL_BYTES = 65_536


class CommandResult(BaseModel):
    """What a user's program may answer; further keys are ignored."""

    model_config = ConfigDict(extra="ignore", allow_inf_nan=False)

    step_time_s: float | None = Field(default=None, gt=0)
    tokens_per_s: float | None = Field(default=None, gt=0)
    step_times_s: list[float] = []
    peak_memory_bytes: int = 0
    final_loss: float | None = None
    mfu: float | None = None
    failure: FailureKind | None = None
    message: str = ""

    @model_validator(mode="after")
    def _says_something(self) -> "CommandResult":
        if not (self.step_time_s or self.tokens_per_s or self.step_times_s or self.failure):
            raise ValueError("neither step_time_s, tokens_per_s, step_times_s nor failure is given")
        return self


def placeholders(job: TrialJob, folder: Path) -> dict[str, str]:
    """What may stand in braces in a command."""
    knobs = {name: _text(value) for name, value in job.config.model_dump(mode="json").items()}
    return {
        **knobs,
        "folder": str(folder.resolve()),
        "job": str((folder / JOB_FILE).resolve()),
        "num_devices": str(job.config.world_size),
        "num_microbatches": str(job.num_microbatches),
        "seed": str(job.seed),
        "sequence_length": str(job.training.sequence_length),
        "global_batch_size": str(job.training.global_batch_size),
        "model": job.model.name,
        "python": sys.executable,
    }


def _text(value: object) -> str:
    return value if isinstance(value, str) else json.dumps(value)


def fill(command: Sequence[str], values: Mapping[str, str]) -> tuple[str, ...]:
    """The command with its placeholders filled in; `{{` and `}}` are literal braces.

    Raises:
        LauncherError: A placeholder is unknown; the legal ones are listed.
    """

    def value_of(match: re.Match[str]) -> str:
        name = match.group(1)
        if name not in values:
            raise LauncherError(
                f"the command has an unknown placeholder {{{name}}}",
                f"known: {', '.join(sorted(values))}",
            )
        return values[name]

    hidden = (part.replace("{{", "\0").replace("}}", "\1") for part in command)
    filled = (_PLACEHOLDER.sub(value_of, part) for part in hidden)
    return tuple(part.replace("\0", "{").replace("\1", "}") for part in filled)


class CommandHandle(LocalHandle):
    """A trial run by a user's program."""

    def progress(self) -> TrialOutput:
        """Report lines, or what the program answered in its own way."""
        output = super().progress()
        if output.result is not None or output.failures:
            return output
        answer = _read_answer(self.folder)
        return output if answer is None else _as_output(self.job, answer, output.steps)


class CommandLauncher(LocalLauncher):
    """Runs a user's program per trial on this machine.

    Args:
        num_devices: Devices that trials share; none = this process's CPU cores.
        run_folder: Parent of the trials' folders.
        command: Program and arguments with placeholders; see the module's docstring.
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
        command: Sequence[str] = (),
        environment: Mapping[str, str] | None = None,
        clock: Clock | None = None,
        patience: Patience | Mapping[str, float] | None = None,
    ) -> None:
        if isinstance(command, str) or not command:
            raise LauncherError(
                "the launcher `command` needs a list of arguments",
                'in the study file: [launcher] options.command = ["./train.sh", "--tp", "{tp}"]',
            )
        super().__init__(num_devices=num_devices, run_folder=run_folder)
        self._command = [str(part) for part in command]
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

    def submit(self, job: TrialJob, folder: Path) -> CommandHandle:
        """Start the user's program for a trial.

        Raises:
            LauncherError: An unknown placeholder, too few devices, or nothing can be started.
        """
        argv = fill(self._command, placeholders(job, folder))
        devices = self._reserve(job.config.world_size)
        try:
            write_job(job, folder)
            (folder / RESULT_FILE).unlink(missing_ok=True)
            trial: NodeTrial | NodeResult = self._start(job, folder, argv, devices)
        except OSError as error:
            trial = NodeResult(cause=Cause.START_FAILED, message=f"{folder}: {error.strerror}")
        handle = CommandHandle(job, folder, trial, devices)
        self._running.append(handle)
        return handle

    def _start(
        self, job: TrialJob, folder: Path, argv: tuple[str, ...], devices: Sequence[int]
    ) -> NodeTrial:
        environment = {
            **os.environ,
            **rank_environment(job, interface=None, device_ids=devices),
            "TUNER_FOLDER": str(folder.resolve()),
            "TUNER_ORIGIN": str(self._origin),
            **self._environment,
        }
        task = RankTask(rank=0, argv=(self._located(argv[0]), *argv[1:]), exec_env=environment)
        group = self._server.start_group(folder, [task], {})
        return NodeTrial(
            group, folder, job.measure, clock=self._clock, patience=self._patience,
            writes_stacks=False,
        )  # fmt: skip


def _read_answer(folder: Path) -> CommandResult | FailureReport | None:
    """The answer in `result.json`, or in the last line of the output that is a JSON object."""
    path = folder / RESULT_FILE
    try:
        if path.exists():
            return _parse_answer(path.read_text(errors="replace"), RESULT_FILE)
        with (folder / log_file(0)).open("rb") as stream:
            stream.seek(max(0, os.fstat(stream.fileno()).st_size - _TAIL_BYTES))
            lines = stream.read().decode(errors="replace").strip().splitlines()
    except OSError:
        return None
    if not lines or not lines[-1].startswith("{"):
        return None
    return _parse_answer(lines[-1], "the last line of its output")


def _parse_answer(text: str, place: str) -> CommandResult | FailureReport | None:
    try:
        return CommandResult.model_validate_json(text)
    except ValidationError as error:
        reason = error.errors()[0]
        where = ".".join(map(str, reason["loc"]))
        message = f"{place} is no result: {where + ': ' if where else ''}{reason['msg']}"
        return _failure(FailureKind.CRASH, message)


def _failure(kind: FailureKind, message: str) -> FailureReport:
    return FailureReport(
        failure=kind, phase=Phase.REPORT, rank=0, message=message, time_s=time.time()
    )


def _as_output(
    job: TrialJob, answer: CommandResult | FailureReport, steps: list[StepRecord]
) -> TrialOutput:
    if isinstance(answer, FailureReport):
        return TrialOutput(steps=steps, failures=[answer])
    if answer.failure is not None:
        report = _failure(answer.failure, answer.message or "its program said so")
        return TrialOutput(steps=steps, failures=[report])
    times = answer.step_times_s or [_step_time_s(job, answer)]
    step_time_s = answer.step_time_s or statistics.median(times)
    records = steps or [
        StepRecord(
            step=step, is_warmup=False, step_time_s=value, loss=answer.final_loss,
            tokens=job.training.tokens_per_step,
        )
        for step, value in enumerate(times)
    ]  # fmt: skip
    return TrialOutput(steps=records, result=_report(job, answer, times, step_time_s))


def _step_time_s(job: TrialJob, answer: CommandResult) -> float:
    if answer.step_time_s is not None:
        return answer.step_time_s
    assert answer.tokens_per_s is not None  # noqa: S101 - one of the two, see the validator
    return job.training.tokens_per_step / answer.tokens_per_s


def _report(
    job: TrialJob, answer: CommandResult, times: Sequence[float], step_time_s: float
) -> TrialReport:
    ordered = sorted(times)
    flops = model_flops_per_step(job.model, job.training)
    hardware = hardware_flops_per_step(job.model, job.training, job.config)
    rate = flops / step_time_s / job.config.world_size
    peak = job.peak_flops_per_s
    known: dict[str, Any] = {
        "tokens_per_s": answer.tokens_per_s or job.training.tokens_per_step / step_time_s,
        "mfu": answer.mfu if answer.mfu is not None else (rate / peak if peak else None),
    }
    return TrialReport(
        step_time_s=step_time_s,
        step_time_iqr_s=ordered[3 * len(ordered) // 4] - ordered[len(ordered) // 4],
        step_times_s=list(times),
        tokens_per_step=job.training.tokens_per_step,
        num_microbatches=job.num_microbatches,
        num_parameters=num_parameters(job.model),
        num_layers=job.model.num_layers,
        model_flops_per_step=flops,
        hardware_flops_per_step=hardware,
        model_flops_per_s_per_device=rate,
        hardware_flops_per_s_per_device=hardware / step_time_s / job.config.world_size,
        peak_memory_bytes=answer.peak_memory_bytes,
        final_loss=answer.final_loss,
        startup_s=0.0,
        versions={"launcher": "command"},
        **known,
    )
