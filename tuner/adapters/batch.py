"""Batch arithmetic: what the log says was run, against what the job asked for."""

import time
from collections.abc import Mapping
from dataclasses import dataclass

from trainer.contract import FailureKind, FailureReport, Phase, TrialJob
from tuner.adapters.figures import Figure

_UNITS: Mapping[str, str] = {
    "global_batch_size": "sequences per step",
    "micro_batch_size": "sequences per micro-batch",
    "num_microbatches": "micro-batches per replica and step",
    "sequence_length": "tokens per sequence",
    "tokens_per_step": "tokens per step",
    "world_size": "ranks",
    "dp": "data-parallel replicas",
    "tp": "tensor-parallel ranks",
    "pp": "pipeline ranks",
    "cp": "context-parallel ranks",
}


@dataclass(frozen=True)
class Fact:
    """Something countable that the log says of the run.

    Attributes:
        name: A key of `expected`.
        figure: The number.
        words: How the log puts it, for the sentence of a failure.
    """

    name: str
    figure: Figure
    words: str


def expected(job: TrialJob) -> dict[str, int]:
    """What a log of this job must say, by the name of the fact."""
    training, config = job.training, job.config
    return {
        "global_batch_size": training.global_batch_size,
        "micro_batch_size": config.micro_batch_size,
        "num_microbatches": job.num_microbatches,
        "sequence_length": training.sequence_length,
        "tokens_per_step": training.tokens_per_step,
        "world_size": config.world_size,
        "dp": config.dp,
        "tp": config.tp,
        "pp": config.pp,
        "cp": config.cp,
    }


def mismatch(job: TrialJob, fact: Fact) -> FailureReport | None:
    """The failure where a fact is not what the job means; none where it is."""
    wanted = expected(job)[fact.name]
    if fact.figure.agrees_with(wanted):
        return None
    return implausible(
        f"its log says {fact.figure} {_UNITS[fact.name]} ({fact.words}), but the job means {wanted}"
    )


def implausible(message: str) -> FailureReport:
    """A failure of the kind `implausible`: what ran is not what was asked for."""
    return FailureReport(
        failure=FailureKind.IMPLAUSIBLE, phase=Phase.REPORT, message=message, time_s=time.time()
    )


class Counter:
    """A counter of the log (consumed samples or tokens) that must grow by the batch every step.

    Args:
        name: The fact that a step's growth is.
        words: How the log calls the counter.
    """

    def __init__(self, name: str, words: str) -> None:
        self._name, self._words = name, words
        self._first: tuple[int, Figure] | None = None
        self._last_step = 0

    def at(self, step: int, total: Figure) -> Fact | None:
        """What a step consumed in the mean since the first line; none at the first itself."""
        if self._first is None:
            self._first = (step, total)
            return None
        first_step, before = self._first
        if step <= max(first_step, self._last_step):
            return None
        self._last_step = step
        count = step - first_step
        growth = Figure((total.value - before.value) / count, (total.slack + before.slack) / count)
        words = f"{self._words} from step {first_step} to {step}"
        return Fact(self._name, growth, words)
