"""DeepSpeed: the throughput timer's line, the pipeline engine's line, and the printed config."""

import re
from collections.abc import Sequence
from typing import ClassVar

from trainer.contract import TrialJob
from tuner.adapters.base import Adapter, Pattern, number, value
from tuner.adapters.figures import NUMBER, Figure
from tuner.adapters.log_lines import LogLine
from tuner.adapters.megatron_deepspeed import ZERO_MEMORY

_GIB = 2**30
_RATE_TOLERANCE = 0.02

TIMER = Pattern(
    name="timer",
    reads="global step, micro-batches per step, samples per second, peak memory of rank 0",
    versions="0.4 to 0.19 (2021 to 2026); `0/20` in place of the named counters before 0.8",
    regex=re.compile(
        rf"\b(?:epoch=\d+/micro_step=(?P<micro>\d+)/global_step=(?P<step>\d+)|\d+/(?P<old>\d+)), "
        rf"RunningAvgSamplesPerSec={NUMBER}, CurrSamplesPerSec=(?P<rate>{NUMBER})"
        r"(?:, MemAllocated=[\d.]+GB, MaxMemAllocated=(?P<gib>[\d.]+)GB)?"
    ),
    example=(
        "[2025-06-03 11:20:41,733] [INFO] [timer.py:264:stop] epoch=0/micro_step=32/global_step=8, "
        "RunningAvgSamplesPerSec=41.18230711, CurrSamplesPerSec=41.52210934, MemAllocated=4.31GB, "
        "MaxMemAllocated=18.02GB"
    ),
    source="deepspeed/utils/timer.py",
)
PIPELINE = Pattern(
    name="pipeline",
    reads="global step, loss, time",
    versions="0.4 to 0.19, pipeline engine",
    regex=re.compile(
        rf"\bsteps: (?P<step>\d+) loss: (?P<loss>{NUMBER}) .*?iter time \(s\): (?P<time>{NUMBER})"
        rf" samples/sec: (?P<rate>{NUMBER})"
    ),
    example="steps: 6 loss: 9.8127 iter time (s): 0.771 samples/sec: 41.505",
    source="deepspeed/runtime/pipe/engine.py",
)
PROGRESS = Pattern(
    name="progress",
    reads="global step, skipped steps",
    versions="0.4 to 0.19",
    regex=re.compile(r"\[Rank \d+\] step=(?P<step>\d+), skipped=(?P<skipped>\d+), lr="),
    example="[2025-06-03 11:20:41,729] [INFO] [logging.py:107:log_dist] [Rank 0] step=8, skipped=0,"
    " lr=[0.0003], mom=[(0.9, 0.95)]",
    source="deepspeed/runtime/engine.py",
)
CONFIG = Pattern(
    name="config",
    reads="global batch, micro-batch and accumulation that DeepSpeed settled on",
    versions="0.3 to 0.19",
    regex=re.compile(
        r"\b(?P<name>train_batch_size|train_micro_batch_size_per_gpu|gradient_accumulation_steps)"
        r" (?:\.+ | )(?P<count>\d+)$"
    ),
    example="[2025-06-03 11:20:07,019] [INFO] [config.py:1003:print]   "
    "train_micro_batch_size_per_gpu  2",
    source="deepspeed/runtime/config.py",
)
_NAMES = {
    "train_batch_size": "global_batch_size",
    "train_micro_batch_size_per_gpu": "micro_batch_size",
    "gradient_accumulation_steps": "num_microbatches",
}


class DeepSpeedAdapter(Adapter):
    """Reads the log of a script that trains with `deepspeed.initialize`."""

    name = "deepspeed"
    title = "DeepSpeed"
    versions = "0.4 to 0.19 (2021 to 2026)"
    patterns: ClassVar[Sequence[Pattern]] = (TIMER, PIPELINE, PROGRESS, CONFIG, ZERO_MEMORY)
    needs = 'set "steps_per_print": 1 in the DeepSpeed file'
    timing = (
        "batch over `CurrSamplesPerSec`: from the start of the forward pass to the end of the "
        "update, data loading left out; the pipeline engine's `iter time` holds it"
    )
    memory = "`MaxMemAllocated` or `Max_MA` of torch, rank 0 alone"

    def __init__(self, job: TrialJob) -> None:
        super().__init__(job)
        self._has_pipeline = False
        self._num_skipped = 0
        self._first_micro: tuple[int, int] | None = None

    def on_timer(self, match: re.Match[str], line: LogLine) -> None:
        """The throughput timer, which tells its first step only after it has warmed up itself."""
        if self._has_pipeline:
            self._saw_gib(match)
            return
        step = int(match["step"] or match["old"])
        rate = number(match, "rate")
        if match["micro"]:
            self._count(int(match["micro"]), step)
        if rate is not None and rate.value > 0:
            batch = self.job.training.global_batch_size
            slack = batch / rate.value * (rate.slack / rate.value)
            self.reading.steps.add(
                step, time_s=Figure(batch / rate.value, slack),
                moment_s=line.stamp_s or line.arrival_s,
            )  # fmt: skip
        self._saw_gib(match)

    def _count(self, micro: int, step: int) -> None:
        if self._first_micro is None:
            self._first_micro = (micro, step)
            return
        first_micro, first_step = self._first_micro
        if step > first_step:
            figure = Figure((micro - first_micro) / (step - first_step))
            self.state("num_microbatches", figure, f"'micro_step' from step {first_step} to {step}")

    def on_pipeline(self, match: re.Match[str], line: LogLine) -> None:
        """The pipeline engine's line; its timer counts whole steps, so it is then left aside."""
        self._has_pipeline = True
        time_s, rate = number(match, "time"), number(match, "rate")
        step = int(match["step"])
        if time_s is not None and rate is not None and time_s.value > 0:
            batch = time_s.value * rate.value
            relative = time_s.slack / time_s.value + rate.slack / max(rate.value, 1e-9)
            figure = Figure(batch, batch * (relative + _RATE_TOLERANCE))
            self.state("global_batch_size", figure, f"'samples/sec' times 'iter time' of {step}")
        loss = self.saw_loss(value(match, "loss"), line)
        moment_s = line.stamp_s or line.arrival_s
        self.reading.steps.add(step, time_s=time_s, loss=loss, moment_s=moment_s)

    def on_progress(self, match: re.Match[str], line: LogLine) -> None:
        """Steps whose update was skipped for an overflow in fp16."""
        skipped = int(match["skipped"])
        if skipped > self._num_skipped:
            self.reading.steps.add(int(match["step"]), is_skipped=True)
        self._num_skipped = skipped

    def on_config(self, match: re.Match[str], line: LogLine) -> None:
        """The batch that DeepSpeed made of the two of three sizes that it was given."""
        name = match["name"]
        self.state(_NAMES[name], Figure(float(match["count"])), f"'{name}'")

    def on_zero_memory(self, match: re.Match[str], line: LogLine) -> None:
        """`see_memory_usage`."""
        self._saw_gib(match)

    def _saw_gib(self, match: re.Match[str]) -> None:
        gib = value(match, "gib")
        if gib is not None:
            self.saw_memory(gib * _GIB)
