"""Accelerate: scripts of one's own; the header and the bar of its examples."""

import re
from collections.abc import Sequence
from typing import ClassVar

from tuner.adapters.base import Pattern, value
from tuner.adapters.figures import NUMBER
from tuner.adapters.hf_trainer import (
    ACCUMULATION,
    BAR,
    BATCH,
    LOGS,
    MICRO_BATCH,
    PARAMETERS,
    HfTrainerAdapter,
)
from tuner.adapters.log_lines import LogLine

LOSS = Pattern(
    name="loss",
    reads="step and loss of the line that many scripts print",
    versions="common in examples; not of Accelerate itself",
    regex=re.compile(
        rf"\bstep[ =:]+(?P<step>\d+)(?:/\d+)?\b.*?\b(?:train_)?loss[ =:]+(?P<loss>{NUMBER})"
    ),
    example="12/01/2026 10:01:44 - INFO - __main__ - epoch 0 step 12: train_loss: 8.1204",
    source="examples/",
)


class AccelerateAdapter(HfTrainerAdapter):
    """Reads the output of a script around `accelerate.Accelerator`."""

    name = "accelerate"
    title = "Accelerate"
    versions = "examples of Accelerate 0.20 to 1.15 and Transformers' `*_no_trainer.py`"
    patterns: ClassVar[Sequence[Pattern]] = (
        MICRO_BATCH, BATCH, ACCUMULATION, PARAMETERS, LOGS, BAR, LOSS,
    )  # fmt: skip
    needs = (
        "print the header of the examples ('Total train batch size ... = N') and a bar or a line "
        "per step, or use trainer.report"
    )
    timing = "when the bar moves or the line of a step is written, as for the Trainer"
    memory = "not printed; on a CPU the largest process"
    environment = {"ACCELERATE_LOG_LEVEL": "INFO", "TQDM_MININTERVAL": "0"}  # noqa: RUF012

    def on_loss(self, match: re.Match[str], line: LogLine) -> None:
        """A script's own line of a step."""
        loss = self.saw_loss(value(match, "loss"), line)
        self.reading.steps.add(int(match["step"]), loss=loss, moment_s=line.arrival_s)
