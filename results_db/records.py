"""Typed rows that go into and come out of the store. Plain values only; no other package is known.

Times are UTC `datetime`s with a zone; `_s` seconds, `_bytes` bytes, `_flops` floating-point
operations. A trial's knobs travel as a mapping (`knobs`) and are stored in typed columns.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import datetime
from enum import StrEnum
from typing import Any


class TrialStatus(StrEnum):
    """Life of a trial.

    ```
    QUEUED -> RUNNING -> COMPLETED | PRUNED | INFEASIBLE | FAILED | CANCELLED
                      -> QUEUED (its controller died: requeued, the same row)
    ```
    INFEASIBLE (a rule, or out of memory) is a property of the point and is never retried; FAILED is
    transient and may be retried as a new row (`attempt + 1`). Terminal states are final.
    """

    QUEUED = "queued"
    RUNNING = "running"
    COMPLETED = "completed"
    PRUNED = "pruned"
    INFEASIBLE = "infeasible"
    FAILED = "failed"
    CANCELLED = "cancelled"

    @property
    def is_terminal(self) -> bool:
        """Whether the trial will never change again."""
        return self not in (TrialStatus.QUEUED, TrialStatus.RUNNING)


class StudyStatus(StrEnum):
    """Life of a study; an interrupted one can be resumed."""

    RUNNING = "running"
    INTERRUPTED = "interrupted"
    COMPLETED = "completed"


class Purpose(StrEnum):
    """Why a trial was run."""

    SEARCH = "search"
    BASELINE = "baseline"
    CONFIRM = "confirm"
    DRIFT = "drift"


@dataclass(frozen=True, kw_only=True)
class Lease:
    """Who runs a trial; a lease whose process is gone (same host) or silent is dead."""

    host: str
    pid: int
    process_started_at: datetime
    heartbeat_at: datetime


@dataclass(frozen=True, kw_only=True)
class StudyRecord:
    """One question: the fastest configuration of this model, recipe and cluster."""

    name: str
    objective_metric: str = "tokens_per_s"
    objective_direction: str = "maximize"
    searcher: str
    launcher: str
    seed: int = 0
    max_trials: int | None = None
    model: Mapping[str, Any]
    """Fields of the model's shape, with `num_parameters`."""
    cluster: Mapping[str, Any]
    training: Mapping[str, Any]
    resolved_config: str
    """The whole resolved study file, as TOML or JSON text."""
    config_hash: str
    num_legal_points: int | None = None
    provenance: Mapping[str, Any] = field(default_factory=dict)
    """Git commit, versions, host, devices, topology, environment."""
    status: StudyStatus = StudyStatus.RUNNING
    id: int | None = None
    created_at: datetime | None = None
    finished_at: datetime | None = None
    lease: Lease | None = None
    """The controller that runs the study, as read back."""

    def section(self, name: str) -> Mapping[str, Any]:
        """A section of the resolved study file; empty where it has none, as another tool's."""
        import tomllib

        try:
            found = tomllib.loads(self.resolved_config).get(name)
        except tomllib.TOMLDecodeError:
            return {}
        return found if isinstance(found, Mapping) else {}


@dataclass(frozen=True, kw_only=True)
class TrialRecord:
    """One configuration, run once."""

    study_id: int
    config_key: str
    knobs: Mapping[str, Any]
    status: TrialStatus = TrialStatus.QUEUED
    purpose: Purpose = Purpose.SEARCH
    attempt: int = 1
    repeat: int = 0
    """0 for the first measurement of a configuration, 1.. for deliberate repeats of it."""
    seed: int = 0
    warmup_steps: int = 0
    measured_steps: int = 0
    source: str = ""
    """What proposed it: a searcher's name, `baseline`, `user`."""
    id: int | None = None
    number: int | None = None
    """1, 2, 3 ... within the study, given by the store."""
    queued_at: datetime | None = None
    started_at: datetime | None = None
    finished_at: datetime | None = None
    folder: str | None = None
    lease: Lease | None = None


@dataclass(frozen=True, kw_only=True)
class StepRow:
    """One optimizer step of a trial."""

    step: int
    is_warmup: bool
    step_time_s: float
    loss: float | None
    tokens: int


@dataclass(frozen=True, kw_only=True)
class RankRow:
    """One rank of a trial."""

    rank: int
    hostname: str
    device: str
    coordinates: Mapping[str, int]
    stages: tuple[int, ...]
    layers: tuple[int, ...]
    num_parameters: int
    peak_memory_bytes: int
    state_memory_bytes: int
    breakdown_s: Mapping[str, float] = field(default_factory=dict)
    collectives: Mapping[str, Mapping[str, float]] = field(default_factory=dict)
    timeline: tuple[tuple[str, int, int, float, float], ...] = ()


@dataclass(frozen=True, kw_only=True)
class MeasurementRow:
    """Summary of a completed trial (units in the names; medians over the measured steps)."""

    step_time_s: float
    step_time_iqr_s: float
    tokens_per_s: float
    tokens_per_step: int
    num_microbatches: int
    num_parameters: int
    num_layers: int
    model_flops_per_step: float
    hardware_flops_per_step: float
    model_flops_per_s_per_device: float
    hardware_flops_per_s_per_device: float
    mfu: float | None
    peak_memory_bytes: int
    final_loss: float | None
    startup_s: float
    overhead_s: float | None = None
    """Wall clock of the trial that was neither warm-up nor a measured step."""
    versions: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True, kw_only=True)
class FailureRow:
    """Why a trial gave no number; the first failing rank's own words come first."""

    kind: str
    phase: str
    message: str
    rank: int | None = None
    stage: int | None = None
    step: int | None = None
    traceback: str = ""
    peak_memory_bytes: int | None = None


@dataclass(frozen=True, kw_only=True)
class PredictionRow:
    """What a cost model said of a configuration before it ran; `low`/`high` bound 90 %."""

    config_key: str
    model_name: str
    step_time_s: float | None = None
    step_time_low_s: float | None = None
    step_time_high_s: float | None = None
    peak_memory_bytes: float | None = None
    probability_fits: float | None = None


@dataclass(frozen=True, kw_only=True)
class UntriedRow:
    """A point that was not run, and why."""

    config_key: str
    knobs: Mapping[str, Any]
    rule: str
    reason: str


@dataclass(frozen=True, kw_only=True)
class TrialOutcome:
    """What a terminal trial leaves, written in one transaction with its status."""

    status: TrialStatus
    measurement: MeasurementRow | None = None
    failure: FailureRow | None = None
    other_failures: tuple[FailureRow, ...] = ()
    steps: tuple[StepRow, ...] = ()
    ranks: tuple[RankRow, ...] = ()


@dataclass(frozen=True, kw_only=True)
class TrialSummary:
    """A trial with its measurement and failure, as read back."""

    trial: TrialRecord
    measurement: MeasurementRow | None = None
    failure: FailureRow | None = None
