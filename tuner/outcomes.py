"""Translate between the trainer's messages, the database's rows and the searcher's observations."""

import math
import statistics
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

from results_db.records import (
    FailureRow,
    MeasurementRow,
    RankRow,
    StepRow,
    TrialOutcome,
    TrialRecord,
    TrialStatus,
    TrialSummary,
)
from search_spaces.parallel_config import ParallelConfig
from trainer.contract import FailureKind, FailureReport, TrialOutput, TrialReport
from tuner.ports import Observation, ObservationState, StudyProgress
from tuner.state_machine import Limits
from tuner.trial_book import TrialBook, TrialView
from tuner.trial_life import TRANSIENT_KINDS, Verdict

_STATES = {
    TrialStatus.QUEUED: ObservationState.RUNNING,
    TrialStatus.RUNNING: ObservationState.RUNNING,
    TrialStatus.COMPLETED: ObservationState.COMPLETED,
    TrialStatus.PRUNED: ObservationState.PRUNED,
    TrialStatus.INFEASIBLE: ObservationState.INFEASIBLE,
    TrialStatus.FAILED: ObservationState.FAILED,
    TrialStatus.CANCELLED: ObservationState.FAILED,
}


def config_of(trial: TrialRecord) -> ParallelConfig:
    """The configuration of a stored trial."""
    return config_from(trial.knobs)


def config_from(knobs: Mapping[str, Any]) -> ParallelConfig:
    """The configuration of stored knobs, whose lists become tuples."""
    layers = knobs.get("stage_layers")
    return ParallelConfig.model_validate(
        dict(knobs) | {"stage_layers": tuple(layers) if layers is not None else None}
    )


def failure_kind(failure: FailureRow | None) -> FailureKind | None:
    """The kind of a stored failure; a name that this version does not know is a crash."""
    if failure is None:
        return None
    known = {kind.value for kind in FailureKind}
    return FailureKind(failure.kind) if failure.kind in known else FailureKind.CRASH


def trial_view(row: TrialSummary, score: float | None = None) -> TrialView:
    """A stored trial as the state machine sees it; ordered by `score` where one is given."""
    trial = row.trial
    assert trial.id is not None  # noqa: S101 -- given by the store
    kind = failure_kind(row.failure)
    return TrialView(
        trial_id=trial.id,
        config_key=trial.config_key,
        status=trial.status,
        purpose=trial.purpose,
        attempt=trial.attempt,
        repeat=trial.repeat,
        is_transient=kind in TRANSIENT_KINDS,
        tokens_per_s=row.measurement.tokens_per_s if row.measurement else None,
        score=score,
        relative_spread=(
            row.measurement.step_time_iqr_s / row.measurement.step_time_s
            if row.measurement
            else 0.0
        ),
        device_s=_elapsed_s(trial) * _world_size(trial),
    )


def _world_size(trial: TrialRecord) -> int:
    return math.prod(int(trial.knobs.get(axis, 1)) for axis in ("tp", "cp", "dp", "pp"))


def _elapsed_s(trial: TrialRecord) -> float:
    if trial.started_at is None or trial.finished_at is None:
        return 0.0
    return max(0.0, (trial.finished_at - trial.started_at).total_seconds())


def observation_of(row: TrialSummary, config: ParallelConfig | None = None) -> Observation:
    """A stored trial as a searcher sees it; `config` saves making its configuration anew."""
    measurement, failure = row.measurement, row.failure
    peak = measurement.peak_memory_bytes if measurement else None
    return Observation(
        config=config or config_of(row.trial),
        state=_STATES[row.trial.status],
        tokens_per_s=measurement.tokens_per_s if measurement else None,
        step_time_s=measurement.step_time_s if measurement else None,
        step_time_iqr_s=measurement.step_time_iqr_s if measurement else None,
        peak_memory_bytes=peak,
        failure=failure_kind(failure),
    )


def in_units_of(score: float, observation: Observation) -> Observation:
    """The observation with a score, more is better, where its speed would be."""
    return replace(observation, tokens_per_s=score, step_time_s=None, step_time_iqr_s=None)


def preliminary(
    observation: Observation, step_times_s: Sequence[float], tokens_per_step: int
) -> Observation:
    """The observation of a pruned trial with the speed of the steps that it took."""
    if not step_times_s:
        return observation
    median_s = statistics.median(step_times_s)
    return replace(observation, step_time_s=median_s, tokens_per_s=tokens_per_step / median_s)


def _failure_row(report: FailureReport) -> FailureRow:
    return FailureRow(
        kind=report.failure.value,
        phase=report.phase.value,
        message=report.message,
        rank=report.rank,
        stage=report.stage,
        step=report.step,
        traceback=report.traceback,
        peak_memory_bytes=report.peak_memory_bytes,
    )


def _measurement_row(result: TrialReport, overhead_s: float | None) -> MeasurementRow:
    return MeasurementRow(
        **result.model_dump(exclude={"kind", "contract_version", "step_times_s"}),
        overhead_s=overhead_s,
    )


def _step_rows(output: TrialOutput) -> tuple[StepRow, ...]:
    return tuple(StepRow(**step.model_dump(exclude={"kind"})) for step in output.steps)


def _rank_rows(output: TrialOutput) -> tuple[RankRow, ...]:
    return tuple(
        RankRow(
            **rank.model_dump(exclude={"kind", "stages", "layers", "timeline"}),
            stages=tuple(rank.stages),
            layers=tuple(rank.layers),
            timeline=tuple(rank.timeline),
        )
        for rank in output.ranks
    )


def outcome_of(output: TrialOutput, verdict: Verdict, elapsed_s: float) -> TrialOutcome:
    """What a finished trial leaves in the database.

    `elapsed_s` is the wall clock from submission to the end; what is neither a warm-up nor a
    measured step of it is stored as the trial's overhead.
    """
    completed = verdict.status is TrialStatus.COMPLETED
    steps_s = sum(step.step_time_s for step in output.steps)
    measurement = (
        _measurement_row(output.result, max(0.0, elapsed_s - steps_s))
        if completed and output.result
        else None
    )
    failure = _failure_row(verdict.failure) if verdict.failure else None
    others = tuple(_failure_row(item) for item in output.failures if item is not verdict.failure)
    return TrialOutcome(
        status=verdict.status,
        measurement=measurement,
        failure=failure,
        other_failures=others,
        steps=_step_rows(output),
        ranks=_rank_rows(output),
    )


def pruned_outcome(output: TrialOutput) -> TrialOutcome:
    """What a trial leaves that was stopped because its steps already excluded it."""
    return TrialOutcome(
        status=TrialStatus.PRUNED, steps=_step_rows(output), ranks=_rank_rows(output)
    )


def progress_of(
    book: TrialBook,
    limits: Limits,
    *,
    best: TrialSummary | None,
    num_legal_points: int,
    running: tuple[str, ...],
    elapsed_s: float,
) -> StudyProgress:
    """What an observer is shown of a study; constant time."""
    finished = book.num_finished
    return StudyProgress(
        num_finished=finished,
        max_trials=limits.max_trials,
        num_legal_points=num_legal_points,
        num_completed=book.count(TrialStatus.COMPLETED),
        num_infeasible=book.count(TrialStatus.INFEASIBLE),
        num_failed=book.count(TrialStatus.FAILED),
        running=running,
        best=config_of(best.trial).short() if best else None,
        best_tokens_per_s=best.measurement.tokens_per_s if best and best.measurement else None,
        elapsed_s=elapsed_s,
        remaining_s=_remaining_s(limits, num_legal_points, finished, elapsed_s),
    )


def _remaining_s(
    limits: Limits, num_legal_points: int, finished: int, elapsed_s: float
) -> float | None:
    """Time left at the pace so far, bounded by the time limit; none while nothing is known."""
    by_time = None if limits.max_time_s is None else max(0.0, limits.max_time_s - elapsed_s)
    if limits.max_trials is None or finished == 0:
        return by_time
    total = min(limits.max_trials, num_legal_points) + limits.confirm_top * limits.confirm_repeats
    by_trials = max(0, total - finished) * elapsed_s / finished
    return by_trials if by_time is None else min(by_time, by_trials)
