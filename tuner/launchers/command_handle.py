"""A trial run by a user's trainer, read by an adapter while it runs."""

import re
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any, Protocol

import psutil

from trainer.contract import FailureKind, FailureReport, Phase, TrialJob, TrialOutput, report_file
from tuner.launchers.classification import with_failures
from tuner.launchers.fork_server import log_file
from tuner.launchers.local import LocalHandle
from tuner.launchers.rank_processes import RankGroup
from tuner.launchers.supervision import Cause, NodeResult, NodeTrial

_PEAK_LINE = re.compile(r"^VmHWM:\s+(\d+) kB", re.MULTILINE)
# Where nothing came of a run for these reasons, an exception in its log was not what ended it.
_ENDED_BY_US = (Cause.HANG, Cause.TIMEOUT, Cause.CANCELLED)


class LogAdapter(Protocol):
    """What the launcher needs of an adapter; see `tuner.adapters.base.Adapter`."""

    def feed(self, lines: Iterable[Any]) -> None:
        """Take in lines of the log."""
        ...

    def feed_reports(self, texts: Iterable[str]) -> None:
        """Take in lines of report files."""
        ...

    def output(self) -> TrialOutput:
        """What the log has said."""
        ...

    def complaint(self) -> str:
        """Why a log gave no result."""
        ...

    def says_enough(self, output: TrialOutput) -> bool:
        """Whether the trial can end."""
        ...

    def tail(self, path: Path, rank: int | None) -> Any:
        """A reader of a growing log."""
        ...


class AdapterHandle(LocalHandle):
    """A trial of the launcher `command` with an adapter.

    Args:
        job: The trial.
        folder: Its folder.
        trial: The supervision.
        devices: What it occupies.
        adapter: Reads its log.
        group: Its processes; none where they could not be started.
    """

    def __init__(
        self,
        job: TrialJob,
        folder: Path,
        trial: NodeTrial | NodeResult,
        devices: Sequence[int],
        *,
        adapter: LogAdapter,
        group: RankGroup | None,
    ) -> None:
        super().__init__(job, folder, trial, devices)
        self._adapter, self._group = adapter, group
        ranks = group.ranks if group is not None else ()
        # One process stands for all ranks, whose prefixes then tell which one speaks.
        owners = {rank: rank if len(ranks) > 1 else None for rank in ranks}
        self._logs = [adapter.tail(folder / log_file(rank), owners[rank]) for rank in ranks]
        self._reports: dict[int, Any] = {}
        self._seen = TrialOutput()
        self._peak_rss_bytes = 0

    def poll(self) -> TrialOutput | None:
        """The output once all processes have ended; they are ended once enough is known."""
        if self._output is None and self._read():
            self._note_memory()
            if self._adapter.says_enough(self._seen):
                self.cancel()
        return super().poll()

    def progress(self) -> TrialOutput:
        """Steps and failures that the log has told so far."""
        return self._seen

    def _read(self, *, is_final: bool = False) -> bool:
        """Take in what is new; whether there was anything."""
        lines = [line for log in self._logs for line in log.read(is_final=is_final)]
        for rank in range(self.job.config.world_size):
            if rank not in self._reports and (self.folder / report_file(rank)).exists():
                self._reports[rank] = self._adapter.tail(self.folder / report_file(rank), rank)
        reports = [
            line.text for log in self._reports.values() for line in log.read(is_final=is_final)
        ]
        if not lines and not reports:
            return False
        self._adapter.feed(lines)
        if reports:
            self._adapter.feed_reports(reports)
        self._seen = self._adapter.output()
        return True

    def _note_memory(self) -> None:
        """Peak memory of the largest process so far: a killed launcher's children tell it not."""
        if self.job.device_kind != "cpu" or self._group is None:
            return
        peaks = [_peak_rss_bytes(pid) for pid in _family(self._group.pids.values())]
        self._peak_rss_bytes = max([self._peak_rss_bytes, *peaks])

    def conclude(self, result: NodeResult) -> TrialOutput:
        """The last of the log, memory that only the system knows, and the cause of a failure."""
        self._read(is_final=True)
        output = self._seen
        if output.result is not None and not output.result.peak_memory_bytes:
            is_cpu = self.job.device_kind == "cpu"
            peaks = [self._peak_rss_bytes, *result.peak_rss_bytes.values()] if is_cpu else [0]
            report = output.result.model_copy(update={"peak_memory_bytes": max(peaks)})
            output = output.model_copy(update={"result": report})
        if output.result is None and result.cause in _ENDED_BY_US:
            kept = [item for item in output.failures if item.failure is not FailureKind.CRASH]
            output = output.model_copy(update={"failures": kept})
        has_ended_well = result.cause is Cause.ENDED and not any(result.exit_codes.values())
        if output.result is None and not output.failures and has_ended_well:
            failure = FailureReport(
                failure=FailureKind.CRASH, phase=Phase.REPORT, message=self._adapter.complaint(),
                traceback=next(iter(result.log_tails.values()), ""),
            )  # fmt: skip
            output = output.model_copy(update={"failures": [failure]})
        return with_failures(output, [result], self.job)


class RefusedHandle(LocalHandle):
    """A trial whose configuration the trainer has no words for; nothing is started.

    Args:
        job: The trial.
        folder: Where it would have run.
        failure: The reason.
    """

    def __init__(self, job: TrialJob, folder: Path, failure: FailureReport) -> None:
        super().__init__(job, folder, NodeResult(cause=Cause.START_FAILED), ())
        self._output = TrialOutput(failures=[failure])

    def progress(self) -> TrialOutput:
        """The reason."""
        return self._output or TrialOutput()


def _family(pids: Iterable[int]) -> list[int]:
    """The processes and all below them."""
    found: list[int] = []
    for pid in pids:
        try:
            below = psutil.Process(pid).children(recursive=True)
        except psutil.Error:
            continue
        found += [pid, *(child.pid for child in below)]
    return found


def _peak_rss_bytes(pid: int) -> int:
    try:
        match = _PEAK_LINE.search(Path(f"/proc/{pid}/status").read_text())
    except OSError:
        return 0
    return int(match[1]) * 1024 if match else 0
