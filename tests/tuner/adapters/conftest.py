"""Logs of trainers and the jobs that they are of."""

from collections.abc import Iterable
from pathlib import Path

import pytest

from search_spaces.model_io import load_model_spec
from search_spaces.parallel_config import ParallelConfig
from search_spaces.training_spec import TrainingSpec
from trainer.contract import MeasureSpec, TrialJob
from tuner import registry
from tuner.adapters.base import Adapter
from tuner.adapters.log_lines import LogLine, LogTail

FOLDER = Path(__file__).parents[2] / "fixtures" / "adapters"
_MODEL = load_model_spec("gpt2-124m")
_MEGATRON = ParallelConfig(tp=2, pp=2, dp=2, micro_batch_size=2)
_TWO_TIMES_FOUR = ParallelConfig(dp=4, tp=2, micro_batch_size=2)
_HF = ParallelConfig(dp=2, micro_batch_size=4)
# Layout, global batch and sequence length of the run that each folder's logs tell of.
RUNS = {
    "megatron-lm": (_MEGATRON, 32, 2048),
    "megatron-deepspeed": (_MEGATRON, 32, 2048),
    "deepspeed": (ParallelConfig(dp=8, micro_batch_size=2), 32, 2048),
    "torchtitan": (_TWO_TIMES_FOUR, 16, 2048),
    "nanotron": (_TWO_TIMES_FOUR, 32, 2048),
    "hf-trainer": (_HF, 32, 128),
    "accelerate": (_HF, 32, 128),
    "report": (_HF, 32, 128),
}


class Logs:
    """Reads the logs of the fixtures."""

    runs = RUNS
    folder = FOLDER

    def job_of(self, trainer: str, warmup_steps: int = 2, measured_steps: int = 5) -> TrialJob:
        """The job that a folder's logs are of."""
        config, batch, length = RUNS[trainer]
        return TrialJob(
            trial_id="t",
            model=_MODEL,
            training=TrainingSpec(sequence_length=length, global_batch_size=batch),
            config=config,
            measure=MeasureSpec(warmup_steps=warmup_steps, measured_steps=measured_steps),
        )

    def adapter_of(self, trainer: str, job: TrialJob | None = None) -> Adapter:
        """The adapter of a folder's logs."""
        made: Adapter = registry.load("adapters", trainer)(job or self.job_of(trainer))
        return made

    def lines_of(self, name: str) -> list[LogLine]:
        """The lines of a log, by folder and file."""
        return list(LogTail(FOLDER / name, None).read(is_final=True))

    def read(self, name: str, lines: Iterable[LogLine] | None = None) -> Adapter:
        """The adapter after a log."""
        adapter = self.adapter_of(name.partition("/")[0])
        adapter.feed(self.lines_of(name) if lines is None else lines)
        return adapter


@pytest.fixture
def logs() -> Logs:
    """The logs of trainers that tests read."""
    return Logs()
