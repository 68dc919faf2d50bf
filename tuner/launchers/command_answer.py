"""What a user's program answers to the launcher `command` in its own way, and its handle."""

import os
import statistics
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from pydantic import BaseModel, ConfigDict, Field, ValidationError, model_validator

from search_spaces.counts import hardware_flops_per_step, model_flops_per_step, num_parameters
from trainer.contract import (
    FailureKind,
    FailureReport,
    Phase,
    StepRecord,
    TrialJob,
    TrialOutput,
    TrialReport,
)
from tuner.launchers.fork_server import log_file
from tuner.launchers.local import LocalHandle

RESULT_FILE = "result.json"
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


class CommandHandle(LocalHandle):
    """A trial run by a user's program."""

    def progress(self) -> TrialOutput:
        """Report lines, or what the program answered in its own way."""
        output = super().progress()
        if output.result is not None or output.failures:
            return output
        answer = _read_answer(self.folder)
        return output if answer is None else _as_output(self.job, answer, output.steps)


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
