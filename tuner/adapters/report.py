"""`report`: a script of any kind with the three lines of `trainer.report`; its log says no more."""

from collections.abc import Sequence
from typing import ClassVar

from tuner.adapters.base import Adapter, Pattern


class ReportAdapter(Adapter):
    """Reads what a script reports, and failures from its log."""

    name = "report"
    title = "trainer.report"
    versions = "any script"
    patterns: ClassVar[Sequence[Pattern]] = ()
    needs = "call trainer.report's `step` with `sequences=` on every rank after every update"
    timing = (
        "from the last rank's end of a step to that of the next, the device waited for; everything "
        "between two updates included"
    )
    memory = "`max_memory_allocated` of torch, on a CPU the process's peak; largest over all ranks"
