"""torchtitan: `MetricsProcessor.log` prints one coloured line per `log_freq`."""

import re
from collections.abc import Sequence
from typing import ClassVar

from trainer.contract import TrialJob
from tuner.adapters.base import Adapter, Pattern, number, value
from tuner.adapters.figures import NUMBER, Figure
from tuner.adapters.log_lines import LogLine

_GIB = 2**30
# Its rate and the times in front of its lines are of one clock, read some lines of code apart.
_CLOCK_TOLERANCE = 0.05
_CLOCK_SLACK_S = 0.01

STEP = Pattern(
    name="step",
    reads="step, loss, peak memory, tokens per second and device",
    versions="0.1 to 0.2.2 and main of 2026-08; `wps` before October 2024, no `tflops` in 0.1",
    regex=re.compile(
        rf"(?<!validate )\bstep: +(?P<step>\d+)\s+loss: +(?P<loss>{NUMBER})\s.*?"
        rf"memory: +(?P<gib>[\d.]+)GiB\([\d.]+%\)\s+(?:tps|wps): +(?P<rate>{NUMBER})"
    ),
    example=(
        "[titan] 2026-01-20 16:02:11,730 - root - INFO - step:  7  loss:  9.6120  grad_norm:  "
        "2.0411  memory: 21.37GiB(26.99%)  tps: 6,204  tflops: 212.70  mfu: 21.51%"
    ),
    source="torchtitan/components/metrics.py",
)
BATCH = Pattern(
    name="batch",
    reads="local and global batch, accumulation, sequence length",
    versions="0.1 to 0.2.2 (the words moved from `Training starts` in 2025)",
    regex=re.compile(
        r"(?:Trainer is initialized|Training starts at step \d+,) with local batch size "
        r"(?P<local>\d+), global batch size (?P<batch>\d+)"
        r"(?:, gradient[ _]accumulation[ _]steps:? (?P<accumulation>\d+))?"
        r"(?:, sequence length (?P<length>\d+))?"
    ),
    example=(
        "[titan] 2026-01-20 16:01:58,101 - root - INFO - Trainer is initialized with local batch "
        "size 2, global batch size 16, gradient accumulation steps 2, sequence length 2048, total "
        "steps 12 (warmup 2)"
    ),
    source="torchtitan/train.py",
)
TOKEN_BATCH = Pattern(
    name="token_batch",
    reads="tokens per replica and step, accumulation, sequence length",
    versions="main of 2026-08, which counts batches in tokens",
    regex=re.compile(
        r"Trainer is initialized with (?P<local>\d+) tokens per DP rank, (?P<tokens>\d+) tokens "
        r"per train step, gradient accumulation steps (?P<accumulation>\d+), maximum context "
        r"length (?P<length>\d+)"
    ),
    example=(
        "[titan] 2026-08-21 10:15:40,612 - root - INFO - Trainer is initialized with 4096 tokens "
        "per DP rank, 32768 tokens per train step, gradient accumulation steps 2, maximum context "
        "length 2048, total steps 12 (warmup 2)"
    ),
    source="torchtitan/trainer.py",
)
MESH = Pattern(
    name="mesh",
    reads="parallel degrees",
    versions="0.2 and main",
    regex=re.compile(
        r"Building device mesh with parallelism: pp=(?P<pp>\d+), dp_replicate=(?P<replicate>\d+), "
        r"dp_shard=(?P<shard>\d+), cp=(?P<cp>\d+), tp=(?P<tp>\d+)"
    ),
    example=(
        "[titan] 2026-01-20 16:01:50,377 - root - INFO - Building device mesh with parallelism: "
        "pp=1, dp_replicate=1, dp_shard=4, cp=1, tp=2, ep=1, etp=1"
    ),
    source="torchtitan/distributed/parallel_dims.py",
)


class TorchtitanAdapter(Adapter):
    """Reads torchtitan's log."""

    name = "torchtitan"
    title = "torchtitan"
    versions = "0.1 to 0.2.2 and main of 2026-08"
    patterns: ClassVar[Sequence[Pattern]] = (STEP, BATCH, TOKEN_BATCH, MESH)
    needs = "run it with a `log_freq` of 1"
    timing = (
        "tokens of a step over `tps` and the number of devices: wall clock between two lines, data "
        "loading included; `tps` is a whole number, so small ones are coarse"
    )
    memory = "`max_reserved` of torch since the last line, of the rank that prints"

    def __init__(self, job: TrialJob) -> None:
        super().__init__(job)
        self._last: tuple[int, float] | None = None

    def on_step(self, match: re.Match[str], line: LogLine) -> None:
        """A line of metrics."""
        step, rate = int(match["step"]), number(match, "rate")
        loss = self.saw_loss(value(match, "loss"), line)
        self.saw_memory(float(match["gib"]) * _GIB)
        if rate is None or rate.value <= 0 or step <= self.reading.steps.last_number:
            return
        self._check_tokens(step, rate, line)
        total = rate.value * self.job.config.world_size
        time_s = self.job.training.tokens_per_step / total
        self.reading.steps.add(
            step, time_s=Figure(time_s, time_s * 0.5 / rate.value), loss=loss,
            moment_s=line.stamp_s or line.arrival_s,
        )  # fmt: skip

    def _check_tokens(self, step: int, rate: Figure, line: LogLine) -> None:
        """Its rate times the time since its last line is what it really ran."""
        last, now_s = self._last, line.stamp_s
        if now_s is None:
            return
        self._last = (step, now_s)
        if last is None or now_s <= last[1]:
            return
        gap_s = now_s - last[1]
        per_step = rate.value * self.job.config.world_size * gap_s / (step - last[0])
        relative = _CLOCK_TOLERANCE + _CLOCK_SLACK_S / gap_s + 0.5 / rate.value
        words = f"'tps' times the time between its lines of steps {last[0]} and {step}"
        self.state("tokens_per_step", Figure(per_step, per_step * relative), words)

    def on_batch(self, match: re.Match[str], line: LogLine) -> None:
        """The batch in sequences; with a pipeline the local batch holds all its micro-batches."""
        self.state("global_batch_size", Figure(float(match["batch"])), "'global batch size'")
        if match["length"]:
            self.state("sequence_length", Figure(float(match["length"])), "'sequence length'")
        if self.job.config.pp == 1 and match["accumulation"]:
            self.state("micro_batch_size", Figure(float(match["local"])), "'local batch size'")
            count = Figure(float(match["accumulation"]))
            self.state("num_microbatches", count, "'gradient accumulation steps'")

    def on_token_batch(self, match: re.Match[str], line: LogLine) -> None:
        """The batch in tokens."""
        self.state("tokens_per_step", Figure(float(match["tokens"])), "'tokens per train step'")
        self.state("sequence_length", Figure(float(match["length"])), "'maximum context length'")
        if self.job.config.pp == 1:
            count = Figure(float(match["accumulation"]))
            self.state("num_microbatches", count, "'gradient accumulation steps'")

    def on_mesh(self, match: re.Match[str], line: LogLine) -> None:
        """The degrees of the device mesh."""
        for name in ("pp", "cp", "tp"):
            self.state(name, Figure(float(match[name])), f"'{name}=' of its device mesh")
        replicas = float(match["replicate"]) * float(match["shard"])
        self.state("dp", Figure(replicas), "'dp_replicate=' times 'dp_shard=' of its device mesh")
