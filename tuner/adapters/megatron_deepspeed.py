"""Megatron-DeepSpeed: Megatron's line with DeepSpeed's around it."""

import re
from collections.abc import Sequence
from typing import ClassVar

from tuner.adapters.base import Pattern, number
from tuner.adapters.figures import NUMBER, Figure
from tuner.adapters.log_lines import LogLine
from tuner.adapters.megatron_lm import ARGUMENT, LAYOUT, MEMORY, MICROBATCHES, MegatronLmAdapter
from tuner.adapters.megatron_lm import STEP as MEGATRON_STEP

_GIB = 2**30
_RATE = re.compile(rf"\bsamples per second: *(?P<rate>{NUMBER})")
# The rate is the batch over the same time, so that only rounding may part them.
_RATE_TOLERANCE = 0.01

STEP = Pattern(
    name="step",
    reads=MEGATRON_STEP.reads + ", consumed tokens, actual sequence length, samples per second",
    versions="deepspeedai/Megatron-DeepSpeed to 4efb479 (2025), argonne-lcf's fork (`key=value`)",
    regex=MEGATRON_STEP.regex,
    example=(
        " iteration       14/      20 | consumed samples:          448 | consumed tokens:       "
        "917504 | elapsed time per iteration (ms): 3120.7 | learning rate: 1.200E-05 | global "
        "batch size:    32 | lm loss: 9.412077E+00 | loss scale: 1.0 | grad norm: 2.871 | actual "
        "seqlen:  2048 | number of skipped iterations:   0 | number of nan iterations:   0 | "
        "samples per second: 10.254 | tokens per gpu per second (tgs): 2624.9 | TFLOPs: 142.37 |"
    ),
    source="megatron/training.py",
)
ZERO_MEMORY = Pattern(
    name="zero_memory",
    reads="peak memory of rank 0",
    versions="DeepSpeed 0.4 to 0.19",
    regex=re.compile(rf"\bMA {NUMBER} GB\s+Max_MA (?P<gib>{NUMBER}) GB"),
    example="[2025-02-11 09:30:02,117] [INFO] [utils.py:782:see_memory_usage] MA 10.31 GB         "
    "Max_MA 12.88 GB         CA 13.02 GB         Max_CA 13 GB",
    source="deepspeed/runtime/utils.py",
)
TIMER_MEMORY = Pattern(
    name="timer_memory",
    reads="peak memory of rank 0",
    versions="DeepSpeed 0.4 to 0.19",
    regex=re.compile(rf"CurrSamplesPerSec={NUMBER}.*MaxMemAllocated=(?P<gib>[\d.]+)GB"),
    example=(
        "[2025-02-11 09:31:44,590] [INFO] [timer.py:264:stop] epoch=0/micro_step=14/global_step=14,"
        " RunningAvgSamplesPerSec=10.31, CurrSamplesPerSec=10.27, MemAllocated=10.31GB, "
        "MaxMemAllocated=27.64GB"
    ),
    source="deepspeed/utils/timer.py",
)


class MegatronDeepSpeedAdapter(MegatronLmAdapter):
    """Reads Megatron-DeepSpeed's log."""

    name = "megatron-deepspeed"
    title = "Megatron-DeepSpeed"
    versions = "deepspeedai and argonne-lcf, 2021 to 2025"
    patterns: ClassVar[Sequence[Pattern]] = (
        STEP, LAYOUT, MICROBATCHES, ARGUMENT, MEMORY, ZERO_MEMORY, TIMER_MEMORY,
    )  # fmt: skip
    needs = "run it with `--log-interval 1` and without `--rampup-batch-size` or curricula"
    memory = "the larger of Megatron's `max allocated` and DeepSpeed's `Max_MA`, `MaxMemAllocated`"

    def on_step(self, match: re.Match[str], line: LogLine) -> None:
        """Megatron's line, whose rate must be the batch over the time."""
        super().on_step(match, line)
        found = _RATE.search(match["rest"])
        rate = number(found, "rate") if found else None
        milliseconds = number(match, "ms")
        if rate is None or milliseconds is None or not milliseconds.value:
            return
        batch = rate.value * milliseconds.value / 1e3
        slack = batch * (rate.slack / max(rate.value, 1e-9) + milliseconds.slack
                         / milliseconds.value + _RATE_TOLERANCE)  # fmt: skip
        words = f"'samples per second' times the time of step {match['step']}"
        self.state("global_batch_size", Figure(batch, slack), words)

    def on_zero_memory(self, match: re.Match[str], line: LogLine) -> None:
        """DeepSpeed's `see_memory_usage`."""
        self._saw_gib(match)

    def on_timer_memory(self, match: re.Match[str], line: LogLine) -> None:
        """DeepSpeed's timer, whose own rate is not used."""
        self._saw_gib(match)

    def _saw_gib(self, match: re.Match[str]) -> None:
        gib = number(match, "gib")
        if gib is not None:
            self.saw_memory(gib.value * _GIB)
