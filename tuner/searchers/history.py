"""What the observations of a study say of each candidate, several trials of a point merged."""

import statistics
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

from search_spaces.parallel_config import ParallelConfig
from trainer.contract import FailureKind
from tuner.ports import Observation, ObservationState

_PROPERTY_OF_THE_POINT = frozenset({FailureKind.OOM, FailureKind.ILLEGAL})


@dataclass(frozen=True, kw_only=True)
class Known:
    """One candidate's outcome.

    `cost` is the step time in seconds, or where a study tells only throughput its inverse in
    seconds per token: lower is better, and all costs of one history have the same unit.
    """

    state: ObservationState
    cost: float | None = None
    peak_memory_bytes: float | None = None
    failure: FailureKind | None = None
    num_repeats: int = 1

    @property
    def is_measured(self) -> bool:
        """Whether it has a number: completed, or pruned after steps that gave a preliminary one."""
        return self.cost is not None

    @property
    def is_infeasible(self) -> bool:
        """Whether the point itself is at fault (rule or memory), as its neighbours may be."""
        return self.state is ObservationState.INFEASIBLE or self.failure in _PROPERTY_OF_THE_POINT

    @property
    def is_running(self) -> bool:
        """Whether its trial is under way, its result unknown."""
        return self.state is ObservationState.RUNNING and not self.is_measured


@dataclass(frozen=True)
class History:
    """Everything known of a study, by row of the candidate list, in the order of first mention."""

    known: Mapping[int, Known]

    @classmethod
    def of(
        cls, observations: Iterable[Observation], rows: Mapping[ParallelConfig, int]
    ) -> "History":
        """Merge `observations` by candidate; configurations that are not in `rows` are left out."""
        trials: dict[int, list[Observation]] = {}
        for observation in observations:
            row = rows.get(observation.config)
            if row is not None:
                trials.setdefault(row, []).append(observation)
        use_step_time = _has_step_times(trials.values())
        return cls({row: _merge(group, use_step_time) for row, group in trials.items()})

    @property
    def measured(self) -> dict[int, Known]:
        """Points with a number."""
        return {row: known for row, known in self.known.items() if known.is_measured}

    @property
    def running(self) -> list[int]:
        """Rows under way."""
        return [row for row, known in self.known.items() if known.is_running]

    @property
    def infeasible(self) -> list[int]:
        """Rows that can't run: out of memory or against a rule."""
        return [
            row
            for row, known in self.known.items()
            if known.is_infeasible and not known.is_measured
        ]

    @property
    def failed(self) -> list[int]:
        """Rows whose trials ended without a number for whatever reason."""
        return [
            row
            for row, known in self.known.items()
            if not known.is_measured and not known.is_running
        ]


def _has_step_times(groups: Iterable[Sequence[Observation]]) -> bool:
    """Whether costs can be step times: no measured trial tells its throughput alone."""
    return not any(
        trial.step_time_s is None and trial.tokens_per_s is not None
        for trials in groups
        for trial in trials
    )


def _merge(trials: Sequence[Observation], use_step_time: bool) -> Known:
    costs = [cost for trial in trials if (cost := _cost(trial, use_step_time)) is not None]
    peaks = [trial.peak_memory_bytes for trial in trials if trial.peak_memory_bytes is not None]
    last = trials[-1]
    if costs:
        states = {trial.state for trial in trials}
        completed = ObservationState.COMPLETED in states
        state = ObservationState.COMPLETED if completed else ObservationState.PRUNED
    else:
        infeasible = next((t for t in trials if t.state is ObservationState.INFEASIBLE), None)
        last = infeasible or last
        state = last.state
    return Known(
        state=state,
        cost=statistics.median(costs) if costs else None,
        peak_memory_bytes=max(peaks) if peaks else None,
        failure=None if costs else last.failure,
        num_repeats=max(1, len(costs)),
    )


def _cost(trial: Observation, use_step_time: bool) -> float | None:
    if trial.state not in (ObservationState.COMPLETED, ObservationState.PRUNED):
        return None
    if use_step_time:
        value = trial.step_time_s
    else:
        value = 1 / trial.tokens_per_s if trial.tokens_per_s else None
    return value if value is not None and 0 < value < float("inf") else None
