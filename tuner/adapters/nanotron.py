"""nanotron: `train_step_logs` prints one line per `iteration_step_info_interval`."""

import re
from collections.abc import Mapping, Sequence
from typing import ClassVar

from trainer.contract import TrialJob
from tuner.adapters.base import Adapter, Pattern
from tuner.adapters.batch import Counter
from tuner.adapters.figures import NUMBER, Figure, parse
from tuner.adapters.log_lines import LogLine

_MIB = 2**20
_SIGNIFICANT = 3
_FIELD = re.compile(rf"\b(?P<name>[a-z_]+): +(?P<value>{NUMBER}) *(?:\||$)")

STEP = Pattern(
    name="step",
    reads="iteration, time, consumed samples or tokens, global batch, loss, peak memory",
    versions="0.1 to 0.4 (2024), in three digits; before 2024 in full",
    regex=re.compile(
        r"\biteration: (?P<step>\d+) / \d+ \| (?P<rest>.*\belapsed_time_per_iteration_ms.*)"
    ),
    example=(
        "08/31/2024 08:12:07 [INFO|DP=0|PP=0|TP=0|n12]: iteration: 9 / 12 | consumed_tokens: 590K "
        "| elapsed_time_per_iteration_ms: 1.84K | tokens_per_sec: "
        "35.6K | tokens_per_sec_per_gpu: 4.45K | global_batch_size: 32 | lm_loss: 9.31 | lr: "
        "0.00027 | model_tflops_per_gpu: 171 | hardware_tflops_per_gpu: 171 | grad_norm: 1.92 | "
        "cuda_memory_allocated: 9.63G | cuda_max_memory_reserved: 30.1G"
    ),
    source="src/nanotron/trainer.py",
)
STEP_IN_TOKENS = Pattern(
    name="step_in_tokens",
    reads="iteration, time, consumed tokens, global batch in tokens, loss",
    versions="main (2025 to 2026), where the time has another name and the batch counts tokens",
    regex=re.compile(r"\biteration: (?P<step>\d+) / \d+ \| (?P<rest>.*\btime_per_iteration_ms.*)"),
    example=(
        "04/07/2026 08:12:07 [INFO|DP=0|PP=0|TP=0|n12]: iteration: 9 / 12 | consumed_tokens: 590K "
        "| time_per_iteration_ms: 1.84K | tokens_per_sec: 35.6K | tokens_per_sec_per_gpu: 4.45K | "
        "global_batch_size: 65.5K | grad_norm: 1.92 | lm_loss: 9.31 | lr: 0.00027 | "
        "model_tflops_per_gpu: 171 | eta: 0:00:05"
    ),
    source="src/nanotron/trainer.py",
)
MEMORY = Pattern(
    name="memory",
    reads="peak memory of rank 0",
    versions="0.1 to 0.4 and main of 2026-04",
    regex=re.compile(
        r"Memory usage: [\d.]+MiB\. Peak allocated:? (?P<mib>[\d.]+)MiB\. Peak reserved"
    ),
    example="11/14/2025 08:12:05 [INFO|DP=0|PP=0|TP=0|n12]:  Memory usage: 9188.20MiB. Peak "
    "allocated 21634.77MiB. Peak reserved: 28700.00MiB",
    source="src/nanotron/logging/base.py",
)


class NanotronAdapter(Adapter):
    """Reads nanotron's log."""

    name = "nanotron"
    title = "nanotron"
    versions = "0.1 to 0.4 and main of 2026-04"
    patterns: ClassVar[Sequence[Pattern]] = (STEP, STEP_IN_TOKENS, MEMORY)
    needs = "set `iteration_step_info_interval: 1` under `logging` in its YAML file"
    timing = (
        "`elapsed_time_per_iteration_ms` or `time_per_iteration_ms`: between barriers of all "
        "ranks, data loading included; three digits, so a step is known to half a per cent at best"
    )
    _batch_is: ClassVar[Mapping[str, str]] = {
        STEP.regex.pattern: "global_batch_size",
        STEP_IN_TOKENS.regex.pattern: "tokens_per_step",
    }
    memory = "`Peak allocated` of torch, rank 0 alone"

    def __init__(self, job: TrialJob) -> None:
        super().__init__(job)
        self._counters = {
            "consumed_tokens": Counter("tokens_per_step", "'consumed_tokens'"),
            "consumed_samples": Counter("global_batch_size", "'consumed_samples'"),
        }

    def on_step(self, match: re.Match[str], line: LogLine) -> None:
        """A line of `train_step_logs`."""
        step, found = int(match["step"]), _fields(match["rest"])
        for name, counter in self._counters.items():
            fact = counter.at(step, found[name]) if name in found else None
            if fact is not None:
                self.state(fact.name, fact.figure, fact.words)
        if "global_batch_size" in found:
            words = f"'global_batch_size' of step {step}"
            self.state(self._batch_is[match.re.pattern], found["global_batch_size"], words)
        time_ms, loss = _time_ms(found), found.get("lm_loss")
        self._check_rate(step, found)
        self.reading.steps.add(
            step, time_s=time_ms.scaled(1e-3) if time_ms else None,
            loss=self.saw_loss(loss.value if loss else None, line), moment_s=line.arrival_s,
        )  # fmt: skip

    def on_step_in_tokens(self, match: re.Match[str], line: LogLine) -> None:
        """The same line of later versions."""
        self.on_step(match, line)

    def _check_rate(self, step: int, found: dict[str, Figure]) -> None:
        rate, time_ms = found.get("tokens_per_sec"), _time_ms(found)
        if rate is None or time_ms is None or not rate.value or not time_ms.value:
            return
        tokens = rate.value * time_ms.value / 1e3
        slack = tokens * (rate.slack / rate.value + time_ms.slack / time_ms.value) * 1.01
        words = f"'tokens_per_sec' times the time of step {step}"
        self.state("tokens_per_step", Figure(tokens, slack), words)

    def on_memory(self, match: re.Match[str], line: LogLine) -> None:
        """`log_memory`; the peak is since the last such line."""
        self.saw_memory(float(match["mib"]) * _MIB)


def _time_ms(found: Mapping[str, Figure]) -> Figure | None:
    return found.get("elapsed_time_per_iteration_ms") or found.get("time_per_iteration_ms")


def _fields(rest: str) -> dict[str, Figure]:
    return {field["name"]: _figure(field["value"]) for field in _FIELD.finditer(rest)}


def _figure(text: str) -> Figure:
    """Versions before 2024 print numbers in full, later ones with three digits and a suffix."""
    is_full = "E" in text or len(re.sub(r"\D", "", text)) > _SIGNIFICANT
    return parse(text) if is_full else parse(text, _SIGNIFICANT)
