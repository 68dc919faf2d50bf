"""From the steps of a log to the trial's report: warm-up dropped, median and spread."""

import statistics
from collections.abc import Mapping, Sequence

from search_spaces.counts import hardware_flops_per_step, model_flops_per_step, num_parameters
from trainer.contract import StepRecord, TrialJob, TrialOutput, TrialReport
from tuner.adapters.batch import implausible
from tuner.adapters.steps import LoggedStep, StepTable


def output_of(
    job: TrialJob,
    table: StepTable,
    *,
    peak_memory_bytes: int = 0,
    num_parameters: int | None = None,
    versions: Mapping[str, str] | None = None,
) -> TrialOutput:
    """Steps so far, and the result once the steps that the job wants were measured.

    Args:
        job: The trial.
        table: Its steps.
        peak_memory_bytes: Largest over ranks; 0 where nobody knows.
        num_parameters: As the trainer counts them; none = the model's own count.
        versions: What ran, for the report.
    """
    logged = table.timed()
    records = [_record(job, step) for step in logged]
    measured = _measured(job, logged)
    if measured is None:
        return TrialOutput(steps=records)
    report = _report(job, [step.time_s.value for step in measured if step.time_s])
    report = report.model_copy(
        update={
            "peak_memory_bytes": peak_memory_bytes,
            "final_loss": table.last_loss(),
            "num_parameters": num_parameters or report.num_parameters,
            "versions": {"launcher": "command", **(versions or {})},
        }
    )
    if report.mfu is not None and report.mfu > 1:
        message = f"an MFU of {report.mfu:.2f} is above what the device can do"
        return TrialOutput(steps=records, failures=[implausible(message)])
    return TrialOutput(steps=records, result=report)


def _is_warmup(job: TrialJob, step: LoggedStep) -> bool:
    """Steps before the measured ones, and those whose update was skipped."""
    return step.number - step.count < job.measure.warmup_steps or step.is_skipped


def _record(job: TrialJob, step: LoggedStep) -> StepRecord:
    return StepRecord(
        step=step.number - 1, is_warmup=_is_warmup(job, step),
        step_time_s=step.time_s.value if step.time_s else 0.0, loss=step.loss,
        tokens=job.training.tokens_per_step,
    )  # fmt: skip


def _measured(job: TrialJob, logged: Sequence[LoggedStep]) -> list[LoggedStep] | None:
    """The lines that the median is taken of; none before there are enough steps."""
    found: list[LoggedStep] = []
    for step in logged:
        if not _is_warmup(job, step):
            found.append(step)
        if sum(item.count for item in found) >= job.measure.measured_steps:
            return found
    return None


def _iqr(times: Sequence[float]) -> float:
    if len(times) < 2:
        return 0.0
    first, _, third = statistics.quantiles(times, n=4, method="inclusive")
    return third - first


def _report(job: TrialJob, times: list[float]) -> TrialReport:
    step_time_s = statistics.median(times)
    flops = model_flops_per_step(job.model, job.training)
    hardware = hardware_flops_per_step(job.model, job.training, job.config)
    rate = flops / step_time_s / job.config.world_size
    peak = job.peak_flops_per_s
    return TrialReport(
        step_time_s=step_time_s, step_time_iqr_s=_iqr(times), step_times_s=times,
        tokens_per_s=job.training.tokens_per_step / step_time_s,
        tokens_per_step=job.training.tokens_per_step, num_microbatches=job.num_microbatches,
        num_parameters=num_parameters(job.model), num_layers=job.model.num_layers,
        model_flops_per_step=flops, hardware_flops_per_step=hardware,
        model_flops_per_s_per_device=rate,
        hardware_flops_per_s_per_device=hardware / step_time_s / job.config.world_size,
        mfu=rate / peak if peak else None, peak_memory_bytes=0, final_loss=None, startup_s=0.0,
    )  # fmt: skip
