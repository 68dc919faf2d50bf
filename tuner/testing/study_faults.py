"""Faults that hit a whole study, as data: its database is away, its controller dies.

Each is done by `benchmarks.faults` to a study of four short trials of two fake ranks. `docs/
fault_matrix.md` has one line per name, with the faults of single trials.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Literal

Course = Literal["goes on", "stops, resumes", "killed, resumes", "refused"]
"""What becomes of a study; a resumed one must end with every point measured once."""


@dataclass(frozen=True, kw_only=True)
class StudyFault:
    """One way for a study to be disturbed, and what must come of it."""

    name: str
    course: Course
    message: str = ""
    """A part of what the user is told."""


AWAY_S = 30.0
"""How long a database is away, or locked, before it comes back."""

DATABASE: tuple[StudyFault, ...] = (
    StudyFault(name="database locked by another writer", course="goes on"),
    StudyFault(
        name="database locked for longer than is waited", course="stops, resumes",
        message="is locked by another writer",
    ),
    StudyFault(name="database file moved away and back", course="goes on"),
    StudyFault(
        name="database read-only", course="stops, resumes", message="may not be written"
    ),
    StudyFault(name="disk of the database full", course="stops, resumes", message="full"),
    StudyFault(name="database server gone", course="goes on"),
)  # fmt: skip

WRITES: tuple[tuple[str, int], ...] = (
    ("claim_study", 1),
    ("add_trials", 2),
    ("claim_trials", 2),
    ("finish_trials", 2),
    ("add_untried", 1),
    ("set_study_status", 2),
    ("release_study", 1),
)
"""The store's calls of a controller's life, and which call of each is its last."""


def write_fault(write: str, when: Literal["before", "after"]) -> StudyFault:
    """The controller gets SIGKILL just before or just after a write."""
    return StudyFault(name=f"controller killed {when} {write}", course="killed, resumes")


CONTROLLER: tuple[StudyFault, ...] = (
    *(write_fault(write, when) for write, _ in WRITES for when in ("before", "after")),
    StudyFault(name="controller killed while a trial runs", course="killed, resumes"),
    StudyFault(name="controller told to stop (SIGTERM, Ctrl-C)", course="stops, resumes"),
    StudyFault(
        name="a second controller on the study", course="refused", message="is being run by process"
    ),
    StudyFault(name="time of day jumps back a day in a study", course="goes on"),
)


def names() -> Iterator[str]:
    """Every fault of the matrix that belongs to whole studies."""
    yield from (fault.name for fault in (*DATABASE, *CONTROLLER))
