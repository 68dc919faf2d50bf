"""Megatron-LM: `training_log` prints one line per `--log-interval`, on the last rank."""

import re
from collections.abc import Sequence
from typing import ClassVar

from trainer.contract import TrialJob
from tuner.adapters.base import Adapter, Pattern, number, value
from tuner.adapters.batch import Counter
from tuner.adapters.figures import NUMBER, Figure
from tuner.adapters.log_lines import LogLine

_MIB = 2**20
# `key: value` between bars; forks write `key=value` and underscores.
_LOSS = re.compile(rf"\| *(?:(?:lm|ppo|total)[ _])?loss[:=] *(?P<loss>{NUMBER}) *(?:\||$)")


def _field(words: str, group: str) -> re.Pattern[str]:
    name = words.replace(" ", "[ _]")
    return re.compile(rf"(?:\| *|^ *){name}[:=] *(?P<{group}>{NUMBER})")


_CONSUMED = _field("consumed samples", "count")
_TOKENS = _field("consumed tokens", "count")
_BATCH = _field("global batch size", "count")
_SKIPPED = _field("number of skipped iterations", "count")
_NAN = _field("number of nan iterations", "count")
_SEQLEN = _field("actual seqlen", "count")
_RATE = _field("samples per second", "rate")
_PEAK = re.compile(rf"mem[-_]max[-_]allocated[-_]bytes[-_]avg\(MB\)[:=] *(?P<mb>{NUMBER})")

STEP = Pattern(
    name="step",
    reads="iteration, time, consumed samples, global batch, loss, skipped and NaN iterations",
    versions="v2.1 (2021) to core 0.20 (2026); with and without the time in front",
    regex=re.compile(
        rf"\biteration[ =]+(?P<step>\d+)/ *\d+ \|(?P<rest>.*elapsed[ _]time[ _]per[ _]iteration"
        rf"(?: \(ms\)|_ms)[:=] *(?P<ms>{NUMBER})(?:/{NUMBER})? *(?:\||$).*)"
    ),
    example=(
        " [2026-03-02 14:07:31.402817] iteration       12/      20 | consumed samples:          "
        "384 | elapsed time per iteration (ms): 2412.6 | throughput per GPU (TFLOP/s/GPU): 181.4 | "
        "learning rate: 1.500000E-05 | global batch size:    32 | lm loss: 9.871204E+00 | loss "
        "scale: 1.0 | grad norm: 3.127 | number of skipped iterations:   0 | number of nan "
        "iterations:   0 |"
    ),
    source="megatron/training/training.py",
)
LAYOUT = Pattern(
    name="layout",
    reads="world size and parallel sizes",
    versions="v2.0 to core 0.20",
    regex=re.compile(r"\busing world size: (?P<world_size>\d+),? (?P<rest>.*)"),
    example=(
        "using world size: 8, data-parallel size: 2, context-parallel size: 1, hierarchical "
        "context-parallel sizes: None, tensor-model-parallel size: 2, pipeline-model-parallel "
        "size: 2"
    ),
    source="megatron/training/arguments.py",
)
MICROBATCHES = Pattern(
    name="microbatches",
    reads="micro-batches per replica and step",
    versions="`micro-batches` to core 0.6, `microbatches` since",
    regex=re.compile(r"setting number of micro-?batches to constant (?P<count>\d+)"),
    example="INFO:megatron.core.num_microbatches_calculator:setting number of microbatches to "
    "constant 8",
    source="megatron/core/num_microbatches_calculator.py",
)
ARGUMENT = Pattern(
    name="argument",
    reads="micro-batch and sequence length of the table of arguments",
    versions="all",
    regex=re.compile(
        r"^\s*(?P<name>micro_batch_size|global_batch_size|seq_length) \.{3,} (?P<count>\d+)$"
    ),
    example="  micro_batch_size ................................ 2",
    source="megatron/training/arguments.py",
)
MEMORY = Pattern(
    name="memory",
    reads="peak memory of a rank",
    versions="v2.0 to core 0.20",
    regex=re.compile(rf"memory \(MB\) \|.* max allocated: (?P<mb>{NUMBER})"),
    example=(
        "[Rank 0] (after 2 iterations) memory (MB) | allocated: 8120.55 | max allocated: 23961.91 "
        "| reserved: 25104.0 | max reserved: 25104.0"
    ),
    source="megatron/training/utils.py",
)
_SIZES = {
    "dp": re.compile(r"data-parallel[- ]size: (\d+)"),
    "cp": re.compile(r"(?<!hierarchical )\bcontext-parallel size: (\d+)"),
    "tp": re.compile(r"(?<!encoder-)tensor-model-parallel size: (\d+)"),
    "pp": re.compile(r"(?<!encoder-)pipeline-model-parallel size: (\d+)"),
}


class MegatronLmAdapter(Adapter):
    """Reads Megatron-LM's log."""

    name = "megatron-lm"
    title = "Megatron-LM"
    versions = "v2.1 to core 0.20 (2021 to 2026)"
    patterns: ClassVar[Sequence[Pattern]] = (STEP, LAYOUT, MICROBATCHES, ARGUMENT, MEMORY)
    needs = "run it with `--log-interval 1` and without `--rampup-batch-size`"
    timing = (
        "`elapsed time per iteration`: between barriers of all ranks, data loading included; a "
        "mean where `--log-interval` is above 1"
    )
    memory = "`max allocated` of torch, once after the first lines, largest over the ranks printed"

    def __init__(self, job: TrialJob) -> None:
        super().__init__(job)
        self._samples = Counter("global_batch_size", "'consumed samples'")
        self._tokens = Counter("tokens_per_step", "'consumed tokens'")

    def on_step(self, match: re.Match[str], line: LogLine) -> None:
        """A line of `training_log`."""
        rest = match["rest"]
        step = int(match["step"])
        self._count(step, rest)
        if (_found(_NAN, rest) or 0) > 0:
            self.diverged(f"step {step} has NaN iterations", line)
        milliseconds = number(match, "ms")
        loss = _LOSS.search(rest)
        self.reading.steps.add(
            step,
            time_s=None if milliseconds is None else milliseconds.scaled(1e-3),
            loss=self.saw_loss(value(loss, "loss") if loss else None, line),
            is_skipped=(_found(_SKIPPED, rest) or 0) > 0,
            moment_s=line.stamp_s or line.arrival_s,
        )
        if peak := _PEAK.search(rest):
            self.saw_memory((value(peak, "mb") or 0) * _MIB)

    def _count(self, step: int, rest: str) -> None:
        for counter, pattern in ((self._samples, _CONSUMED), (self._tokens, _TOKENS)):
            total = pattern.search(rest)
            figure = number(total, "count") if total else None
            fact = counter.at(step, figure) if figure else None
            if fact is not None:
                self.state(fact.name, fact.figure, fact.words)
        for pattern, name, words in (
            (_BATCH, "global_batch_size", "'global batch size'"),
            (_SEQLEN, "sequence_length", "'actual seqlen'"),
        ):
            found = pattern.search(rest)
            figure = number(found, "count") if found else None
            if figure is not None:
                self.state(name, figure, f"{words} of step {step}")

    def on_layout(self, match: re.Match[str], line: LogLine) -> None:
        """The sizes that Megatron made of its arguments."""
        world = number(match, "world_size")
        if world is not None:
            self.state("world_size", world, "'using world size'")
        for name, pattern in _SIZES.items():
            if found := pattern.search(match["rest"]):
                self.state(name, _exact(found[1]), f"'{found[0].rpartition(':')[0]}'")

    def on_microbatches(self, match: re.Match[str], line: LogLine) -> None:
        """The accumulation that Megatron made of its batch sizes."""
        self.state("num_microbatches", _exact(match["count"]), "'setting number of micro-batches'")

    def on_argument(self, match: re.Match[str], line: LogLine) -> None:
        """A row of the table of arguments."""
        names = {"seq_length": "sequence_length"}
        name = match["name"]
        self.state(names.get(name, name), _exact(match["count"]), f"the argument '{name}'")

    def on_memory(self, match: re.Match[str], line: LogLine) -> None:
        """`report_memory` of a rank."""
        self.saw_memory((value(match, "mb") or 0) * _MIB)


def _found(pattern: re.Pattern[str], text: str) -> float | None:
    match = pattern.search(text)
    return value(match, "count") if match else None


def _exact(text: str) -> Figure:
    return Figure(float(text))
