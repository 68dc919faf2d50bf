"""Steps that a script reports itself, by `trainer.report` (see `trainer.hook`)."""

import math
from collections import defaultdict
from collections.abc import Iterable

from trainer.contract import HookStart, HookStep, TrialJob, parse_hook_line
from tuner.adapters.batch import Fact
from tuner.adapters.figures import Figure
from tuner.adapters.steps import StepTable


class HookReader:
    """Puts together what the ranks report.

    A step ends when the last rank says so; its time is that since the last rank's end of the step
    before, so that everything between two updates is in it.

    Args:
        job: The trial.
    """

    def __init__(self, job: TrialJob) -> None:
        self._job = job
        self._starts: dict[int, HookStart] = {}
        self._steps: dict[int, dict[int, HookStep]] = defaultdict(dict)
        self._ended_s: float | None = None
        self.table = StepTable()
        self.facts: list[Fact] = []
        self.peak_memory_bytes = 0
        self.bad_loss = ""
        """A sentence once a loss was no finite number."""

    @property
    def is_used(self) -> bool:
        """Whether any rank has reported."""
        return bool(self._starts)

    @property
    def versions(self) -> dict[str, str]:
        """Versions that rank 0 told."""
        first = self._starts.get(0)
        return {} if first is None else dict(first.versions)

    def feed(self, texts: Iterable[str]) -> None:
        """Take in new lines of any rank's file; other lines in it are left alone."""
        for text in texts:
            line = parse_hook_line(text)
            if isinstance(line, HookStart):
                self._starts[line.rank] = line
                self._state("world_size", line.world_size, "trainer.report")
            elif isinstance(line, HookStep):
                self._steps[line.step][line.rank] = line
                self.peak_memory_bytes = max(self.peak_memory_bytes, line.peak_memory_bytes)
        self._advance()

    def _advance(self) -> None:
        """Take the steps that all ranks have ended."""
        num_ranks = self._job.config.world_size
        while len(self._starts) >= num_ranks:
            number = self.table.last_number + 1
            lines = list(self._steps[number].values())
            if len(lines) < num_ranks:
                return
            self._end(number, lines)
            del self._steps[number]

    def _end(self, number: int, lines: list[HookStep]) -> None:
        if self._ended_s is None:
            self._ended_s = max(line.time_s for line in self._starts.values())
        ended_s = max(line.time_s for line in lines)
        losses = [line.loss for line in lines if line.loss is not None]
        time_s = Figure(max(ended_s - self._ended_s, 1e-9))
        loss = sum(losses) / len(losses) if losses else None
        if loss is not None and not math.isfinite(loss):
            self.bad_loss, loss = f"the loss of step {number} is {loss}", None
        self.table.add(number, time_s=time_s, loss=loss)
        self._ended_s = ended_s
        config = self._job.config
        copies = config.world_size // config.dp  # ranks that work on the same sequences
        for name, counts in (
            ("global_batch_size", [line.sequences for line in lines]),
            ("tokens_per_step", [line.tokens for line in lines]),
        ):
            total = sum(count for count in counts if count is not None)
            if any(count is not None for count in counts):
                self._state(name, total / copies, f"step {number} of trainer.report")
        for line in lines:
            if line.micro_batches is not None:
                self._state("num_microbatches", line.micro_batches, f"rank {line.rank}")

    def _state(self, name: str, count: float, words: str) -> None:
        self.facts.append(Fact(name, Figure(float(count)), words))
