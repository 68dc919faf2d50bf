"""What both bridges share: another tool's outcome of a point as an observation of ours."""

import math
from collections.abc import Mapping
from typing import Any

from search_spaces.parallel_config import ParallelConfig
from trainer.contract import FailureKind
from tuner.ports import Observation, ObservationState


def completed(config: ParallelConfig, value: float, *, maximize: bool) -> Observation:
    """A measured point; a value that is not positive and finite is a failure."""
    if not (math.isfinite(value) and value > 0):
        return failed(config)
    return Observation(
        config=config,
        state=ObservationState.COMPLETED,
        tokens_per_s=value if maximize else 1 / value,
    )


def failed(config: ParallelConfig, said: Mapping[str, Any] | None = None) -> Observation:
    """A point without a number; `failure = "oom"` in what it said makes it infeasible."""
    known = {kind.value for kind in FailureKind}
    kind = str((said or {}).get("failure", ""))
    failure = FailureKind(kind) if kind in known else None
    is_infeasible = failure in (FailureKind.OOM, FailureKind.ILLEGAL)
    return Observation(
        config=config,
        state=ObservationState.INFEASIBLE if is_infeasible else ObservationState.FAILED,
        failure=failure,
    )


def running(config: ParallelConfig) -> Observation:
    """A point that is being tried."""
    return Observation(config=config, state=ObservationState.RUNNING)
