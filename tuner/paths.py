"""Every file and folder name that a study leaves behind, in one place."""

import re
from dataclasses import dataclass
from pathlib import Path

RUNS_FOLDER = Path("tuner_runs")
DEFAULT_STORE = RUNS_FOLDER / "results.db"


def safe_name(text: str) -> str:
    """`text` as a single path component: letters, digits, `.`, `_`, `-`, never hidden or empty."""
    cleaned = re.sub(r"[^A-Za-z0-9._-]+", "-", text).strip("-.")
    return cleaned[:80] or "study"


@dataclass(frozen=True)
class StudyPaths:
    """The folders of one study; nothing is made until a trial needs it."""

    root: Path

    @classmethod
    def of(cls, run_folder: Path, study_name: str) -> "StudyPaths":
        """Paths of the study `study_name` under `run_folder`."""
        return cls(run_folder / safe_name(study_name))

    def trial(self, number: int, attempt: int) -> Path:
        """The folder that one attempt of a trial may write to; never shared by two attempts."""
        return self.root / "trials" / f"{number:05d}.{attempt}"
