"""The tuner's seams: what a searcher and a launcher must do, and the messages they exchange."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from enum import StrEnum
from pathlib import Path
from typing import Any, Protocol

from search_spaces.cluster_spec import ClusterSpec
from search_spaces.model_spec import ModelSpec
from search_spaces.parallel_config import ParallelConfig
from search_spaces.training_spec import TrainingSpec
from trainer.contract import FailureKind, TrialJob, TrialOutput


class ObservationState(StrEnum):
    """What is known of a configuration that was asked for."""

    COMPLETED = "completed"
    INFEASIBLE = "infeasible"
    FAILED = "failed"
    PRUNED = "pruned"
    RUNNING = "running"


@dataclass(frozen=True, kw_only=True)
class Observation:
    """One trial as a searcher sees it."""

    config: ParallelConfig
    state: ObservationState
    tokens_per_s: float | None = None
    step_time_s: float | None = None
    step_time_iqr_s: float | None = None
    peak_memory_bytes: int | None = None
    failure: FailureKind | None = None


@dataclass(frozen=True, kw_only=True)
class Candidate:
    """A legal point with what the cost model says of it.

    `step_time_parts_s` are the addends of the predicted step time; `probability_fits` in 0..1 is
    that of its memory need being below the limit.
    """

    config: ParallelConfig
    step_time_s: float | None = None
    step_time_low_s: float | None = None
    step_time_high_s: float | None = None
    step_time_parts_s: Mapping[str, float] = field(default_factory=dict)
    peak_memory_bytes: float | None = None
    peak_memory_parts_bytes: Mapping[str, float] = field(default_factory=dict)
    probability_fits: float = 1.0


class Searcher(Protocol):
    """Proposes configurations.

    Call order: `tell` with everything known of the study (all its rows, every time: a searcher
    keeps no state that the database does not hold), then `ask`. A searcher never returns a point
    that was told or that is not among its candidates, and returns fewer than asked, down to none,
    when the candidates are used up.
    """

    name: str
    lookahead: int
    """Points worth asking for ahead of need: 1 where every result may change the next point."""

    def tell(self, observations: Sequence[Observation]) -> None:
        """Replace what is known of the study by `observations`, running trials included."""
        ...

    def ask(self, count: int) -> list[ParallelConfig]:
        """Propose up to `count` new points; an empty list means that none is left."""
        ...


class TrialHandle(Protocol):
    """A trial under way. No method blocks."""

    job: TrialJob
    folder: Path

    def poll(self) -> TrialOutput | None:
        """The trial's output once all its ranks have ended and been cleaned up, else none.

        Deadline, hang and death of a rank are the launcher's to notice: it kills the trial's
        process groups and adds a `FailureReport` with the cause to the output.
        """
        ...

    def progress(self) -> TrialOutput:
        """What the ranks have written so far."""
        ...

    def cancel(self) -> None:
        """End the trial now; `poll` gives its output soon after."""
        ...


class Launcher(Protocol):
    """Runs trials on devices."""

    name: str

    def open(self) -> None:
        """Bring up what trials need (Ray, agents); raises `LauncherError` with the reason."""
        ...

    def close(self) -> None:
        """End all trials and everything that `open` started; leaves no process. Idempotent."""
        ...

    def num_devices(self) -> int:
        """Devices that trials can use at one time, busy ones included."""
        ...

    def has_room(self, num_devices: int) -> bool:
        """Whether a trial of this many devices could start at once."""
        ...

    def submit(self, job: TrialJob, folder: Path) -> TrialHandle:
        """Start a trial in `folder` (made if absent); `LauncherError` if it can never run."""
        ...


class Clock(Protocol):
    """Time, so that tests need not wait."""

    def monotonic_s(self) -> float:
        """Seconds of a clock that only goes forward."""
        ...

    def sleep_s(self, duration_s: float) -> None:
        """Wait."""
        ...


@dataclass(frozen=True, kw_only=True)
class StudyProgress:
    """What an observer of a running study is shown."""

    num_finished: int
    max_trials: int | None
    num_legal_points: int | None
    num_completed: int
    num_infeasible: int
    num_failed: int
    running: tuple[str, ...]
    """Short names of the configurations under way."""
    best: str | None
    best_tokens_per_s: float | None
    elapsed_s: float
    remaining_s: float | None


@dataclass(frozen=True, kw_only=True)
class TrialEvent:
    """Something that happened to a trial: `started`, a step, or its end."""

    event: str
    """started | step | completed | infeasible | failed | pruned | cancelled | requeued"""
    number: int
    config: ParallelConfig
    message: str = ""
    tokens_per_s: float | None = None
    step_time_s: float | None = None
    step: int | None = None


class StudyObserver(Protocol):
    """Shown what happens; the command line's live table is one."""

    def on_event(self, event: TrialEvent, progress: StudyProgress) -> None:
        """A trial changed."""
        ...

    def on_message(self, text: str) -> None:
        """A sentence for the user (a drift warning, a retry, the end of the space)."""
        ...


@dataclass(frozen=True, kw_only=True)
class ExportRequest:
    """What a trainer is to be told: a configuration with its model, recipe and machines."""

    model: ModelSpec
    training: TrainingSpec
    cluster: ClusterSpec
    config: ParallelConfig
    origin: str = ""
    """Where the configuration comes from, for the head of the files; one line."""

    @property
    def num_microbatches(self) -> int:
        """Micro-batches of one replica in one optimizer step (gradient accumulation steps)."""
        return self.training.global_batch_size // (self.config.micro_batch_size * self.config.dp)

    @property
    def num_nodes(self) -> int:
        """Nodes that the configuration's ranks fill."""
        return -(-self.config.world_size // self.cluster.devices_per_node)

    @property
    def ranks_per_node(self) -> int:
        """Ranks on each of them."""
        return self.config.world_size // self.num_nodes


@dataclass(frozen=True, kw_only=True)
class Refusal:
    """A knob that a trainer cannot be told, why, and the knobs of the nearest thing it can do."""

    knob: str
    reason: str
    """One clause that names the value."""
    nearest: Mapping[str, Any] = field(default_factory=dict)
    """Knobs to change; empty where nothing near exists."""


@dataclass(frozen=True, kw_only=True)
class Export:
    """The files of an export by name, the first one foremost, and what no file can say."""

    files: Mapping[str, str]
    notes: Sequence[str] = ()


@dataclass(frozen=True, kw_only=True)
class Nearest:
    """A request brought within a trainer's words, and what was changed for it."""

    request: ExportRequest
    changes: tuple[str, ...] = ()
    """Each as `knob old -> new`."""


class Exporter(Protocol):
    """Says a configuration in the words of one trainer."""

    name: str
    trainer: str
    """The trainer's own name."""
    versions: str
    """The versions that the export is right for."""
    round_trip: str
    """The parser that a test feeds the export to, or why there is none."""
    goes_to: Mapping[str, str]
    """For every knob of `ParallelConfig` where it goes; "-" if all but its default is refused."""

    def refusals(self, request: ExportRequest) -> list[Refusal]:
        """What the trainer cannot be told; empty if `export` works."""
        ...

    def nearest(self, request: ExportRequest) -> Nearest:
        """The nearest request that can be exported; `NotExpressible` if nothing near exists."""
        ...

    def export(self, request: ExportRequest) -> Export:
        """The files; `NotExpressible` if there are refusals. No knob is ever left out."""
        ...
