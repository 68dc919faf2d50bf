"""Whether a study still has a point that may run, by what its failures taught."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Protocol, runtime_checkable

from search_spaces.parallel_config import ParallelConfig
from tuner.ports import Candidate, Observation, ObservationState

MIN_MEASURED = 3
"""Measured trials without which the prediction itself may be what is wrong."""
MIN_FAILURES = 5
"""Trials in a row that failed as they were expected to: the belief was tested, not just held."""


@runtime_checkable
class Forecaster(Protocol):
    """A searcher that knows how likely points are to run."""

    def chances(self, configs: Sequence[ParallelConfig]) -> Sequence[float]:
        """Probability that each of these candidates runs, by all that was told."""
        ...


@dataclass(frozen=True)
class Hopeless:
    """No untried point is expected to run: why the study ends, and each point's probability."""

    reason: str
    chances: Mapping[str, float]
    """By `config_key`."""


def hopeless(
    searcher: object, told: Sequence[Observation], candidates: Sequence[Candidate], below: float
) -> Hopeless | None:
    """A verdict if every untried point has a probability of running under `below`; else none.

    Args:
        searcher: was told `told`; one that is no `Forecaster` has no opinion.
        told: all trials of the study, in their order.
        candidates: all points of the study.
        below: in 0..1; 0 never ends a study.
    """
    if below <= 0 or not isinstance(searcher, Forecaster) or not _is_borne_out(told):
        return None
    known = {trial.config for trial in told}
    untried = [each.config for each in candidates if each.config not in known]
    if not untried:
        return None
    chances = [float(chance) for chance in searcher.chances(untried)]
    if max(chances) >= below:
        return None
    reason = (
        f"each of the {len(untried)} points left has a chance of less than {100 * below:g}% to run,"
        f" and the last {MIN_FAILURES} tried could not"
    )
    keys = [config.config_key for config in untried]
    return Hopeless(reason, dict(zip(keys, chances, strict=True)))


def _is_borne_out(told: Sequence[Observation]) -> bool:
    """Whether enough ran to correct the predictions, and the latest points could not run.

    Points in the order of their first trials: a repeat of the leaders at the end says nothing new.
    """
    states: dict[ParallelConfig, set[ObservationState]] = {}
    for trial in told:
        if trial.state is not ObservationState.RUNNING:
            states.setdefault(trial.config, set()).add(trial.state)
    ran = [ObservationState.COMPLETED in each for each in states.values()]
    latest = list(states.values())[-MIN_FAILURES:]
    could_not = [each == {ObservationState.INFEASIBLE} for each in latest]
    return sum(ran) >= MIN_MEASURED and sum(could_not) == MIN_FAILURES
