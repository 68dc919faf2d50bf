"""What an adapter is: the log patterns of one trainer, and what a match of each means."""

import math
import re
import statistics
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import ClassVar

from trainer.contract import FailureKind, FailureReport, Phase, TrialJob, TrialOutput
from tuner.adapters.batch import Fact, implausible, mismatch
from tuner.adapters.failures import failure_in, worth_keeping
from tuner.adapters.figures import Figure, parse
from tuner.adapters.hook import HookReader
from tuner.adapters.log_lines import LogLine, LogTail
from tuner.adapters.results import output_of
from tuner.adapters.steps import StepTable

_MAX_FAILURES = 50
# Lines may come later than their times say (data loading, a checkpoint), but not all by so much.
_MAX_EXCESS = 2.0
_MIN_CLAIMS = 3


@dataclass(frozen=True)
class Pattern:
    """One kind of line that an adapter reads.

    Attributes:
        name: The reader's method `on_<name>` takes the match.
        reads: What is taken from it, for people.
        versions: Versions of the trainer that print it so.
        regex: What the line contains.
        example: A line of this kind.
        source: File of the trainer's repository that prints it.
    """

    name: str
    reads: str
    versions: str
    regex: re.Pattern[str]
    example: str
    source: str


@dataclass
class Reading:
    """What a log has said so far."""

    steps: StepTable = field(default_factory=StepTable)
    facts: list[Fact] = field(default_factory=list)
    failures: list[FailureReport] = field(default_factory=list)
    peak_memory_bytes: int = 0
    num_parameters: int | None = None


class Adapter:
    """Reads the log of one trial of one trainer; subclasses say how.

    Args:
        job: The trial, whose batch the log must tell.
    """

    name: ClassVar[str]
    title: ClassVar[str]
    versions: ClassVar[str]
    """Versions of the trainer whose logs were looked at."""
    patterns: ClassVar[Sequence[Pattern]]
    needs: ClassVar[str]
    """What the trainer must be told so that its log says enough."""
    timing: ClassVar[str]
    """What the trainer's step time is."""
    memory: ClassVar[str]
    """What the trainer's memory figure is."""
    environment: ClassVar[Mapping[str, str]] = {}
    """Variables that make the trainer say more."""

    def __init__(self, job: TrialJob) -> None:
        self.job = job
        self.reading = Reading()
        self._hook = HookReader(job)
        self._wrong: FailureReport | None = None

    def feed(self, lines: Iterable[LogLine]) -> None:
        """Take in new lines of the log."""
        for line in lines:
            self._take(line)

    def feed_reports(self, texts: Iterable[str]) -> None:
        """Take in new lines of the ranks' report files.

        Once there are any, the steps and counts of the log no longer matter.
        """
        known = len(self._hook.facts)
        self._hook.feed(texts)
        for fact in self._hook.facts[known:]:
            self._wrong = self._wrong or mismatch(self.job, fact)
        if self._hook.bad_loss and not self._has_diverged:
            self.diverged(self._hook.bad_loss, LogLine("trainer.report"))

    def _take(self, line: LogLine) -> None:
        for pattern in self.patterns:
            match = pattern.regex.search(line.text)
            if match is not None:
                getattr(self, f"on_{pattern.name}")(match, line)
                return
        if len(self.reading.failures) < _MAX_FAILURES:
            found = failure_in(line, self.phase, self.steps.last_number or None)
            if found is not None:
                self.reading.failures.append(found)

    @property
    def steps(self) -> StepTable:
        """The steps that count: those of the hook where the script has it."""
        return self._hook.table if self._hook.is_used else self.reading.steps

    @property
    def phase(self) -> Phase:
        """How far the trial has come."""
        done = self.steps.last_number
        if done == 0:
            return Phase.INIT
        return Phase.WARMUP if done < self.job.measure.warmup_steps else Phase.MEASURE

    def state(self, name: str, figure: Figure, words: str) -> None:
        """Take in a countable fact and compare it with the job.

        Args:
            name: A key of `tuner.adapters.batch.expected`.
            figure: What the log says.
            words: How the log puts it.
        """
        fact = Fact(name, figure, words)
        self.reading.facts.append(fact)
        self._wrong = self._wrong or mismatch(self.job, fact)

    def saw_loss(self, loss: float | None, line: LogLine) -> float | None:
        """Note a loss that is no finite number as a failure; the loss itself otherwise."""
        if loss is None or math.isfinite(loss):
            return loss
        self.diverged(f"the loss is {loss}", line)
        return None

    def diverged(self, message: str, line: LogLine) -> None:
        """Note that training diverged."""
        self.reading.failures.append(
            FailureReport(
                failure=FailureKind.DIVERGED, phase=self.phase, rank=line.rank,
                step=self.steps.last_number, message=f"{message}: {line.text.strip()[:300]}",
            )
        )  # fmt: skip

    def saw_memory(self, peak_bytes: float) -> None:
        """Note the peak memory of a rank; the largest counts."""
        self.reading.peak_memory_bytes = max(self.reading.peak_memory_bytes, int(peak_bytes))

    def output(self) -> TrialOutput:
        """Steps, and the result or the failures, as far as the log tells."""
        reading = self.reading
        output = output_of(
            self.job, self.steps,
            peak_memory_bytes=max(reading.peak_memory_bytes, self._hook.peak_memory_bytes),
            num_parameters=reading.num_parameters,
            versions={"adapter": self.name, **self._hook.versions},
        )  # fmt: skip
        failures = [*output.failures, *worth_keeping(reading.failures)]
        wrong = self._wrong or self.missing(output) or self._too_fast()
        if wrong is not None:
            failures = [wrong, *failures]
        has_result = output.result is not None and wrong is None and not self._has_diverged
        return output.model_copy(
            update={
                "result": output.result if has_result else None,
                "failures": [] if has_result else failures,
            }
        )

    @property
    def _has_diverged(self) -> bool:
        return any(item.failure is FailureKind.DIVERGED for item in self.reading.failures)

    def _too_fast(self) -> FailureReport | None:
        """A failure where the lines come much further apart than the times in them say."""
        claims = self.steps.claims()
        if len(claims) < _MIN_CLAIMS:
            return None
        excess = statistics.median(seen_s / said_s for said_s, seen_s in claims)
        if excess < _MAX_EXCESS:
            return None
        said_s, seen_s = (statistics.median(column) for column in zip(*claims, strict=True))
        return implausible(
            f"its log says {said_s:.3g} s a step, but its lines come {seen_s:.3g} s a step apart"
        )

    def missing(self, output: TrialOutput) -> FailureReport | None:
        """A failure where the log never said what batch was run; overridden where it need not."""
        facts = self._hook.facts if self._hook.is_used else self.reading.facts
        names = {fact.name for fact in facts}
        if output.result is None or names & {"global_batch_size", "tokens_per_step"}:
            return None
        return implausible(
            f"its log never says how large the batch was, so it cannot be compared ({self.needs})"
        )

    @staticmethod
    def says_enough(output: TrialOutput) -> bool:
        """Whether running on would add nothing: a result, a wrong batch or a diverged loss."""
        final = (FailureKind.DIVERGED, FailureKind.IMPLAUSIBLE)
        return output.result is not None or any(item.failure in final for item in output.failures)

    @staticmethod
    def tail(path: Path, rank: int | None) -> LogTail:
        """A reader of a growing log, for `feed`."""
        return LogTail(path, rank)

    def complaint(self) -> str:
        """Why a log without a result gave none, for people."""
        seen, timed = self.steps.last_number, self.steps.timed()
        measure = self.job.measure
        wanted = measure.warmup_steps + measure.measured_steps
        what = "has no line of a step"
        if seen:
            what = (
                f"ends at step {seen}" if seen < wanted else f"times {len(timed)} of {seen} steps"
            )
        return f"its log {what}, but {wanted} steps are needed ({self.needs})"


def number(match: re.Match[str], group: str) -> Figure | None:
    """The number in a group of a match; none where the group took no part."""
    text = match.groupdict().get(group)
    return None if text is None else parse(text)


def value(match: re.Match[str], group: str) -> float | None:
    """The same without its rounding."""
    figure = number(match, group)
    return None if figure is None else figure.value
