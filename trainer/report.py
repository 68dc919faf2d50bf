"""What a rank writes: lines of JSON in its own file, and a touch of the file as a sign of life.

`ReportWriter` is for the ranks of our own kernel. A trainer of one's own uses `start` in three
lines (`trainer.hook`), or `transformers_callback` with the Hugging Face Trainer.
"""

import os
import time
import traceback
from pathlib import Path

from trainer.contract import (
    FailureKind,
    FailureReport,
    Phase,
    RankReport,
    StepRecord,
    TrialReport,
    report_file,
)
from trainer.errors import classify
from trainer.hook import Run, start, transformers_callback

__all__ = ["Progress", "ReportWriter", "Run", "start", "transformers_callback"]

_MAX_TRACEBACK = 8000


class ReportWriter:
    """Appends lines to `report.<rank>.jsonl`; a line is one write, so readers see no halves."""

    def __init__(self, folder: Path, rank: int) -> None:
        self.rank = rank
        self._path = folder / report_file(rank)
        self._file = os.open(self._path, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o644)

    def write(self, line: StepRecord | RankReport | TrialReport | FailureReport) -> None:
        """Append one line."""
        os.write(self._file, (line.model_dump_json() + "\n").encode())

    def touch(self) -> None:
        """Show that this rank is alive, without a line."""
        os.utime(self._path)

    def close(self) -> None:
        """Close the file."""
        os.close(self._file)


class Progress:
    """Where a rank is in its life: what a failure report needs to know."""

    def __init__(self, rank: int) -> None:
        self.rank = rank
        self.phase = Phase.INIT
        self.step: int | None = None
        self.stage: int | None = None

    def failure(self, error: BaseException, peak_memory_bytes: int | None) -> FailureReport:
        """This rank's own words about `error`."""
        kind: FailureKind = classify(error)
        text = "".join(traceback.format_exception(error))
        return FailureReport(
            failure=kind, phase=self.phase, rank=self.rank, stage=self.stage, step=self.step,
            message=_first_sentence(error), traceback=text[-_MAX_TRACEBACK:],
            peak_memory_bytes=peak_memory_bytes, time_s=time.time(),
        )  # fmt: skip


def _first_sentence(error: BaseException) -> str:
    text = str(error).strip() or type(error).__name__
    return text.splitlines()[0][:500]
