"""Hugging Face Trainer: the header at the start, a dictionary per log, a progress bar."""

import ast
import re
from collections.abc import Sequence
from typing import Any, ClassVar

from trainer.contract import TrialJob
from tuner.adapters.base import Adapter, Pattern
from tuner.adapters.batch import Counter
from tuner.adapters.figures import NUMBER, Figure, parse
from tuner.adapters.log_lines import LogLine
from tuner.adapters.steps import StepTable


def _row(
    name: str, reads: str, words: str, example: str,
    versions: str = "Transformers 3 to 5, examples of Accelerate",
) -> Pattern:  # fmt: skip
    """A row of the header: words, and how many."""
    return Pattern(
        name=name, reads=reads, versions=versions, example=f"  {example}",
        regex=re.compile(words + r" = (?P<count>[\d,]+)"), source="src/transformers/trainer.py",
    )  # fmt: skip


MICRO_BATCH = _row(
    "micro_batch", "micro-batch", "Instantaneous batch size per device",
    "Instantaneous batch size per device = 4",
)  # fmt: skip
BATCH = _row(
    "batch", "global batch", r"Total train batch size \(w\. parallel.*\)",
    "Total train batch size (w. parallel, distributed & accumulation) = 32",
)  # fmt: skip
ACCUMULATION = _row(
    "accumulation", "micro-batches per replica and step", "Gradient Accumulation steps",
    "Gradient Accumulation steps = 4",
)  # fmt: skip
PARAMETERS = _row(
    "parameters", "parameters", "Number of trainable parameters",
    "Number of trainable parameters = 124,439,808", "Transformers 4.20 to 5",
)  # fmt: skip
LOGS = Pattern(
    name="logs",
    reads="loss; with `include_num_input_tokens_seen` tokens really run and the time",
    versions="3 to 4 numbers, 5 numbers as text of four digits",
    regex=re.compile(r"(?P<logs>\{'loss': .*\})"),
    example="{'loss': '9.874', 'grad_norm': '2.31', 'learning_rate': '4.5e-05', 'epoch': '0.0052', "
    "'num_input_tokens_seen': 65536, 'train_runtime': '8.317', 'train_tokens_per_second': '7880'}",
    source="src/transformers/trainer_callback.py",
)
BAR = Pattern(
    name="bar",
    reads="optimizer step; its time is when the bar moves",
    versions="all, tqdm 4",
    regex=re.compile(
        r"^(?:(?:[Tt]rain(?:ing)?|[Ss]teps?)[^|%]{0,30}:)?\s*\d+%\|[^|]*\|\s*(?P<step>\d+)/"
        r"(?P<total>\d+) \["
    ),
    example=" 35%|███▌      | 7/20 [00:14<00:26,  2.04s/it]",
    source="tqdm",
)
MEMORY = Pattern(
    name="memory",
    reads="peak memory (with `--skip_memory_metrics False`)",
    versions="Transformers 4 and 5",
    regex=re.compile(r"train_mem_gpu_(?:peaked_delta|alloc_delta)\b"),
    example="{'train_runtime': '41.2', 'train_mem_gpu_alloc_delta': 3183362048, "
    "'train_mem_gpu_peaked_delta': 10737418240, 'init_mem_gpu_alloc_delta': 497774592}",
    source="src/transformers/trainer_utils.py",
)
# Version 5 prints four digits: beyond 100 s they say less than the bar's moment does.
_RUNTIME_SLACK_S = 0.005
_MEMORY_KEY = re.compile(r"'(?:init|train)_mem_gpu_(?P<what>alloc|peaked)_delta': '?(?P<bytes>\d+)")


class HfTrainerAdapter(Adapter):
    """Reads the output of a script that trains with `transformers.Trainer` (TRL, Axolotl too)."""

    name = "hf-trainer"
    title = "Hugging Face Trainer"
    versions = "Transformers 3 to 5 (2020 to 2026)"
    patterns: ClassVar[Sequence[Pattern]] = (
        MICRO_BATCH, BATCH, ACCUMULATION, PARAMETERS, MEMORY, LOGS, BAR,
    )  # fmt: skip
    needs = "run it with `logging_steps=1`, and with the progress bar or a trainer.report callback"
    timing = (
        "when the progress bar moves, as its line reaches the log file (to about 5 ms); with "
        "`include_num_input_tokens_seen` the time of the logs in the first 100 s (to 0.1 ms in "
        "version 4, 1 to 5 ms in version 5). Everything between two updates is in it"
    )
    memory = "allocated and peaked deltas of torch on rank 0; on a CPU the largest process"
    environment = {  # noqa: RUF012 -- never changed
        # The header is at level `info`, which is not the default; the bar else skips fast steps.
        "TRANSFORMERS_VERBOSITY": "info",
        "TQDM_MININTERVAL": "0",
    }

    def __init__(self, job: TrialJob) -> None:
        super().__init__(job)
        self._total: int | None = None
        self._num_logs = 0
        self._tokens = Counter("tokens_per_step", "'num_input_tokens_seen'")
        self._by_runtime = StepTable()

    @property
    def steps(self) -> StepTable:
        """Steps by the time in the logs where that is there and fine enough, else by the bar's."""
        known = super().steps
        own = self._by_runtime
        is_finer = known is self.reading.steps and len(own.timed()) >= max(1, len(known.timed()))
        return own if is_finer else known

    def on_micro_batch(self, match: re.Match[str], line: LogLine) -> None:
        """A row of the header."""
        self.state("micro_batch_size", parse(match["count"]), "'batch size per device'")

    def on_batch(self, match: re.Match[str], line: LogLine) -> None:
        """A row of the header."""
        self.state("global_batch_size", parse(match["count"]), "'Total train batch size'")

    def on_accumulation(self, match: re.Match[str], line: LogLine) -> None:
        """A row of the header."""
        self.state("num_microbatches", parse(match["count"]), "'Gradient Accumulation steps'")

    def on_parameters(self, match: re.Match[str], line: LogLine) -> None:
        """A row of the header."""
        self.reading.num_parameters = int(parse(match["count"]).value)

    def on_memory(self, match: re.Match[str], line: LogLine) -> None:
        """The tracker's deltas: what was there before training, its growth and the peak over it."""
        self.saw_memory(sum(int(item["bytes"]) for item in _MEMORY_KEY.finditer(line.text)))

    def on_logs(self, match: re.Match[str], line: LogLine) -> None:
        """The logs of a step; they do not name it, so it is the bar's, or the number of logs."""
        self._num_logs += 1
        step = self.reading.steps.last_number if self._total else self._num_logs
        logs = _dictionary(match["logs"])
        loss = self.saw_loss(_float(logs.get("loss")), line)
        self.reading.steps.add(max(step, 1), loss=loss, moment_s=line.arrival_s)
        runtime = _figure(logs.get("train_runtime"))
        if runtime is not None and runtime.slack <= _RUNTIME_SLACK_S:
            self._by_runtime.add(max(step, 1), loss=loss, moment_s=runtime.value)
        tokens = _float(logs.get("num_input_tokens_seen"))
        config = self.job.config
        if tokens and config.dp == config.world_size:  # else ranks that share tokens count twice
            fact = self._tokens.at(max(step, 1), Figure(tokens))
            if fact is not None:
                self.state(fact.name, fact.figure, fact.words)

    def on_bar(self, match: re.Match[str], line: LogLine) -> None:
        """The bar of training; those of evaluations have other totals."""
        total = int(match["total"])
        self._total = self._total or total
        if total == self._total:
            self.reading.steps.add(int(match["step"]), moment_s=line.arrival_s)


def _dictionary(text: str) -> dict[str, Any]:
    try:
        found = ast.literal_eval(re.sub(r": (nan|inf|-inf)\b", r": '\1'", text))
    except (ValueError, SyntaxError):
        return {}
    return found if isinstance(found, dict) else {}


def _figure(logged: object) -> Figure | None:
    text = str(logged)
    return parse(text) if re.fullmatch(NUMBER, text) else None


def _float(logged: object) -> float | None:
    try:
        return float(logged) if isinstance(logged, str | int | float) else None
    except ValueError:
        return None
