"""The wire contract between the tuner and the trainer: a job in, reports out. No torch here.

A trial runs in a folder of its own. The launcher writes `job.json` (a `TrialJob`) there and starts
the ranks; every rank appends its lines to `report.<rank>.jsonl`, one JSON object a line with a
`kind` (`RankReport` lines come from every rank; `StepRecord` and the final `TrialReport` from rank
0 alone). A trial is complete when rank 0's file ends in a `TrialReport`; otherwise the first
`FailureReport` by time says why.
"""

from enum import StrEnum
from pathlib import Path
from typing import Annotated, Literal

from pydantic import BaseModel, ConfigDict, Field, TypeAdapter, ValidationError

from search_spaces.model_spec import ModelSpec
from search_spaces.parallel_config import ParallelConfig
from search_spaces.training_spec import TrainingSpec

CONTRACT_VERSION = 1


class FailureKind(StrEnum):
    """Why a trial gave no number. OOM and ILLEGAL are properties of the point."""

    OOM = "oom"
    ILLEGAL = "illegal"
    TIMEOUT = "timeout"
    HANG = "hang"
    COMM = "comm"
    DIVERGED = "diverged"
    IMPLAUSIBLE = "implausible"
    LAUNCH = "launch"
    PREEMPTED = "preempted"
    CRASH = "crash"


class Phase(StrEnum):
    """Where in its life a rank was."""

    LAUNCH = "launch"
    INIT = "init"
    BUILD = "build"
    WARMUP = "warmup"
    FORWARD = "forward"
    BACKWARD = "backward"
    OPTIMIZER = "optimizer"
    MEASURE = "measure"
    REPORT = "report"


class _Message(BaseModel):
    model_config = ConfigDict(frozen=True, extra="forbid")


class MeasureSpec(_Message):
    """How a trial is measured.

    At least one real optimizer step is taken before the first measured one, whatever `warmup_steps`
    says, because allocators, lazily built buffers and skipped fp16 steps distort the first ones.
    """

    warmup_steps: int = Field(default=2, ge=1, description="steps before the measured ones")
    measured_steps: int = Field(default=5, ge=1, description="steps that the median is taken of")
    deadline_s: float = Field(default=300.0, gt=0, description="wall clock of one trial, seconds")
    hang_s: float = Field(default=60.0, gt=0, description="longest silence of all ranks, seconds")
    profile: bool = Field(default=False, description="time the parts of a step and its collectives")


class FaultSpec(_Message):
    """A fault to inject for tests of the machinery: `kind` happens on `rank` as `phase` begins."""

    kind: Literal["oom", "crash", "hang", "sigkill", "exit_zero", "diverge"]
    rank: int = 0
    phase: Phase = Phase.FORWARD
    step: int = Field(default=0, ge=0, description="optimizer step, warm-up included, from 0")


class TrialJob(_Message):
    """Everything that the ranks of one trial need to know."""

    contract_version: int = CONTRACT_VERSION
    trial_id: str
    model: ModelSpec
    training: TrainingSpec
    config: ParallelConfig
    measure: MeasureSpec = MeasureSpec()
    seed: int = 0
    device_kind: Literal["cpu", "cuda", "rocm"] = "cpu"
    threads_per_rank: int = Field(default=1, ge=1)
    peak_flops_per_s: float | None = Field(default=None, description="of one device, for MFU")
    memory_limit_bytes: int | None = Field(default=None, description="of one rank, enforced on CPU")
    fault: FaultSpec | None = None

    @property
    def num_microbatches(self) -> int:
        """Micro-batches that each replica runs per optimizer step (gradient accumulation)."""
        return self.training.global_batch_size // (self.config.micro_batch_size * self.config.dp)


class StepRecord(_Message):
    """One optimizer step, timed over all ranks: from a common barrier to the last rank's end."""

    kind: Literal["step"] = "step"
    step: int
    is_warmup: bool
    step_time_s: float
    loss: float | None = Field(description="mean over the global batch; none for inference")
    tokens: int = Field(description="tokens really run, summed over ranks")


class RankReport(_Message):
    """What one rank holds and used. Bytes are peaks over the measured steps."""

    kind: Literal["rank"] = "rank"
    rank: int
    hostname: str
    device: str
    coordinates: dict[str, int] = Field(description="position on each mesh axis, by axis name")
    stages: list[int]
    layers: list[int] = Field(description="indices of the decoder layers that this rank holds")
    num_parameters: int = Field(description="parameter elements held, sharded or not")
    peak_memory_bytes: int
    state_memory_bytes: int = Field(
        description="parameters, gradients and optimizer states, as allocated"
    )
    breakdown_s: dict[str, float] = Field(
        default_factory=dict,
        description="median seconds a step by part: forward, backward, optimizer, bubble, ...",
    )
    collectives: dict[str, dict[str, float]] = Field(
        default_factory=dict, description="per collective: calls, bytes and seconds of one step"
    )
    timeline: list[tuple[str, int, int, float, float]] = Field(
        default_factory=list,
        description="pipeline actions of the last step: op, micro-batch, stage, start_s, end_s",
    )


class TrialReport(_Message):
    """The result of a trial, written by rank 0 after every count was checked."""

    kind: Literal["result"] = "result"
    contract_version: int = CONTRACT_VERSION
    step_time_s: float = Field(description="median of the measured steps")
    step_time_iqr_s: float = Field(description="third minus first quartile of the measured steps")
    step_times_s: list[float]
    tokens_per_s: float = Field(description="tokens of a step over the median step time")
    tokens_per_step: int
    num_microbatches: int = Field(description="micro-batches that each replica really ran per step")
    num_parameters: int = Field(description="distinct parameters summed over ranks")
    num_layers: int = Field(description="distinct decoder layers summed over stages")
    model_flops_per_step: float = Field(description="declared formula, recomputation not counted")
    hardware_flops_per_step: float = Field(description="with recomputation")
    model_flops_per_s_per_device: float
    hardware_flops_per_s_per_device: float
    mfu: float | None = Field(description="model FLOP/s over the device's peak")
    peak_memory_bytes: int = Field(description="largest over ranks")
    final_loss: float | None
    startup_s: float = Field(description="job read to first step")
    versions: dict[str, str] = Field(default_factory=dict)


class FailureReport(_Message):
    """A rank's own words about what went wrong."""

    kind: Literal["failure"] = "failure"
    failure: FailureKind
    phase: Phase
    rank: int | None = None
    stage: int | None = None
    step: int | None = None
    message: str
    traceback: str = ""
    peak_memory_bytes: int | None = None
    time_s: float = Field(default=0.0, description="Unix time at which it was seen")


ReportLine = Annotated[
    StepRecord | RankReport | TrialReport | FailureReport, Field(discriminator="kind")
]
_LINE: TypeAdapter[StepRecord | RankReport | TrialReport | FailureReport] = TypeAdapter(ReportLine)


class HookStart(BaseModel):
    """First line of a rank that reports by `trainer.hook`; it may be of another version."""

    model_config = ConfigDict(frozen=True, extra="ignore")

    kind: Literal["hook_start"] = "hook_start"
    rank: int
    world_size: int
    hostname: str = ""
    versions: dict[str, str] = Field(default_factory=dict)
    time_s: float = Field(description="Unix time")


class HookStep(BaseModel):
    """An optimizer step as one rank saw it; counts are of this rank alone, since its last line."""

    model_config = ConfigDict(frozen=True, extra="ignore")

    kind: Literal["hook_step"] = "hook_step"
    rank: int
    step: int = Field(ge=1, description="counted from 1")
    time_s: float = Field(description="Unix time at its end")
    loss: float | None = None
    sequences: int | None = None
    tokens: int | None = None
    micro_batches: int | None = None
    peak_memory_bytes: int = 0


HookLine = Annotated[HookStart | HookStep, Field(discriminator="kind")]
_HOOK_LINE: TypeAdapter[HookStart | HookStep] = TypeAdapter(HookLine)


def parse_hook_line(text: str) -> HookStart | HookStep | None:
    """Read a line of `trainer.hook`; none for any other."""
    try:
        return _HOOK_LINE.validate_json(text)
    except ValidationError:
        return None


class TrialOutput(_Message):
    """All that the ranks of one trial wrote."""

    steps: list[StepRecord] = Field(default_factory=list)
    ranks: list[RankReport] = Field(default_factory=list)
    result: TrialReport | None = None
    failures: list[FailureReport] = Field(default_factory=list)


JOB_FILE = "job.json"


def report_file(rank: int) -> str:
    """Name of the file that rank `rank` appends its report lines to."""
    return f"report.{rank}.jsonl"


def parse_line(text: str) -> StepRecord | RankReport | TrialReport | FailureReport | None:
    """Read one report line; none for a torn or foreign line, which must not lose the others."""
    try:
        return _LINE.validate_json(text)
    except ValidationError:
        return None


def read_output(folder: Path) -> TrialOutput:
    """Collect the report files of a trial's folder; torn lines are skipped, failures sorted."""
    steps: list[StepRecord] = []
    ranks: list[RankReport] = []
    failures: list[FailureReport] = []
    result: TrialReport | None = None
    for path in sorted(folder.glob("report.*.jsonl")):
        for text in path.read_text(errors="replace").splitlines():
            line = parse_line(text)
            if isinstance(line, StepRecord):
                steps.append(line)
            elif isinstance(line, RankReport):
                ranks.append(line)
            elif isinstance(line, TrialReport):
                result = line
            elif isinstance(line, FailureReport):
                failures.append(line)
    failures.sort(key=lambda report: report.time_s)
    ranks.sort(key=lambda report: report.rank)
    return TrialOutput(steps=steps, ranks=ranks, result=result, failures=failures)
