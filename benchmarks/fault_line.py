"""One line of the fault matrix, and the table that `docs/fault_matrix.md` shows of them."""

import re
import socket
import tempfile
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import psutil

from tuner.testing.processes import left_after

_SHARED_MEMORY = Path("/dev/shm")
_GONE_WITHIN_S = 5.0
_BEGIN, _END = "<!-- measured: begin -->", "<!-- measured: end -->"
_LONGEST_MESSAGE = 90


@dataclass(frozen=True)
class Line:
    """What came of one fault."""

    fault: str
    launcher: str
    outcome: str
    message: str
    is_expected: bool
    next_trial_s: float
    left_behind: list[str]
    stored: str = ""
    """What the database holds of it, where that is more than `outcome`."""

    @property
    def is_good(self) -> bool:
        """Whether all is as it must be."""
        return self.is_expected and not self.left_behind

    def __str__(self) -> str:
        left = ", ".join(self.left_behind) or "nothing left"
        return (
            f"{'ok ' if self.is_good else 'BAD'} {self.launcher:10s} {self.fault:46s}"
            f" {self.outcome:15s} {self.next_trial_s:7.3f} s  {left}"
        )


def shared_memory() -> set[str]:
    """Names of shared-memory files, but for those of database servers, which are not ours."""
    if not _SHARED_MEMORY.is_dir():
        return set()
    names = {path.name for path in _SHARED_MEMORY.iterdir()}
    return {name for name in names if not name.startswith("PostgreSQL.")}


def leftovers(processes: Sequence[psutil.Process], shared_before: set[str]) -> list[str]:
    """What is still there of a trial's processes and shared memory."""
    found = [f"process {process.pid}" for process in left_after(processes, _GONE_WITHIN_S)]
    return found + [f"/dev/shm/{name}" for name in sorted(shared_memory() - shared_before)]


def table(lines: Sequence[Line]) -> str:
    """The lines as a Markdown table."""
    rows = ["| fault | through | stored | the user sees | next trial | left behind |",
            "|---|---|---|---|---|---|"]  # fmt: skip
    for line in lines:
        cells = (
            line.fault, line.launcher, line.stored or line.outcome, _shown(line.message) or "-",
            f"{line.next_trial_s:.1f} s", ", ".join(line.left_behind) or "nothing",
        )  # fmt: skip
        rows.append("| " + " | ".join(cell.replace("|", "\\|") for cell in cells) + " |")
    return "\n".join(rows)


def _shown(message: str) -> str:
    """A message without what differs from run to run."""
    text = message.splitlines()[0] if message else ""
    text = re.sub(r"\w[\w+]*://\S+", "the server", text)
    text = re.sub(rf"\b{re.escape(socket.gethostname())}\b", "HOST", text)
    text = text.replace(tempfile.gettempdir(), "…")
    text = re.sub(r"(…|/)\S*/(\S+)", r"…/\2", text)
    text = re.sub(r"\b(process|pid|port) \d+", r"\1 N", text)
    return text if len(text) <= _LONGEST_MESSAGE else text[: _LONGEST_MESSAGE - 1] + "…"


def write_table(page: Path, lines: Sequence[Line], head: str) -> None:
    """Replace the measured table of a page."""
    text = page.read_text()
    before, rest = text.split(_BEGIN, 1)
    after = rest.split(_END, 1)[1]
    page.write_text(f"{before}{_BEGIN}\n{head}\n\n{table(lines)}\n{_END}{after}")
