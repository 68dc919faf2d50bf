"""From what the ranks wrote and how they ended to one cause: the first failing rank's own words.

Order of belief, strongest first:

1. out of memory in a rank's own words: the other ranks then only wait or lose their peer;
2. a lost node, agent or fork server: whatever else was seen is an echo;
3. any other failure in a rank's own words that is not about communication;
4. a rank killed by a signal that was not ours (SIGKILL together with the kernel's out-of-memory
   counter is out of memory);
5. a communication error in a rank's own words, which is mostly an echo of another rank's death;
6. an exit code without words; 7. the watchdog's own findings; 8. an end without a result.
"""

import signal
import time
from collections.abc import Callable, Iterable, Sequence

from trainer.contract import FailureKind, FailureReport, Phase, TrialJob, TrialOutput
from tuner.launchers.supervision import Cause, NodeResult

_DISK_FULL_BYTES = 1 << 20
_ECHOES = (FailureKind.COMM, FailureKind.HANG, FailureKind.TIMEOUT)
_MACHINERY = {
    Cause.START_FAILED: (FailureKind.LAUNCH, "its processes could not be started"),
    Cause.SERVER_LOST: (FailureKind.LAUNCH, "the process that its ranks were forked from died"),
    Cause.AGENT_LOST: (FailureKind.LAUNCH, "the agent on its node died"),
    Cause.NEVER_PLACED: (FailureKind.LAUNCH, "its devices never became free"),
    Cause.NODE_LOST: (FailureKind.PREEMPTED, "a node was lost"),
}


def with_failures(output: TrialOutput, nodes: Sequence[NodeResult], job: TrialJob) -> TrialOutput:
    """The output with the trial's cause of failure first; none at all when it has a result.

    A cancelled trial gets no failure of ours: who cancelled it knows why.
    """
    if output.result is not None:
        return output.model_copy(update={"failures": []})
    finder = _Finder(output, nodes, job)
    primary = finder.find()
    if primary is None:
        return output
    others = [report for report in output.failures if report is not primary]
    complete = finder.with_context(primary)
    return output.model_copy(update={"failures": [complete, *others]})


class _Finder:
    """Looks for the cause of one trial's failure."""

    def __init__(self, output: TrialOutput, nodes: Sequence[NodeResult], job: TrialJob) -> None:
        self._output = output
        self._nodes = nodes
        self._job = job

    def find(self) -> FailureReport | None:
        sources: Iterable[Callable[[], FailureReport | None]] = (
            lambda: self._own_words(lambda kind: kind is FailureKind.OOM),
            self._from_machinery,
            lambda: self._own_words(lambda kind: kind not in _ECHOES),
            self._from_signal,
            lambda: self._own_words(lambda _: True),
            self._from_exit_code,
            self._from_watchdog,
            self._from_silence,
        )
        return next((found for source in sources if (found := source()) is not None), None)

    def with_context(self, report: FailureReport) -> FailureReport:
        """Add the stage and peak memory where only the launcher or another line knows them."""
        known: dict[str, object] = {}
        ranks = {line.rank: line for line in self._output.ranks}
        if report.stage is None and report.rank in ranks and ranks[report.rank].stages:
            known["stage"] = ranks[report.rank].stages[0]
        if report.stage is None and "stage" not in known and report.rank is not None:
            known["stage"] = _stage_of(report.rank, self._job)
        if report.peak_memory_bytes is None and report.rank is not None:
            peaks = (node.peak_rss_bytes.get(report.rank) for node in self._nodes)
            known["peak_memory_bytes"] = next((peak for peak in peaks if peak), None)
        return report.model_copy(update=known)

    def _own_words(self, accepts: Callable[[FailureKind], bool]) -> FailureReport | None:
        words = (report for report in self._output.failures if accepts(report.failure))
        return next(words, None)

    def _report(
        self, kind: FailureKind, message: str, rank: int | None = None, text: str = ""
    ) -> FailureReport:
        phase, step = self._where()
        return FailureReport(
            failure=kind, phase=phase, rank=rank, step=step, message=message, traceback=text,
            time_s=time.time(),
        )  # fmt: skip

    def _where(self) -> tuple[Phase, int | None]:
        """The furthest that is known of the trial from its step lines."""
        steps = self._output.steps
        if not steps:
            return Phase.INIT, None
        warmup_left = steps[-1].step + 1 < self._job.measure.warmup_steps
        return (Phase.WARMUP if warmup_left else Phase.MEASURE), steps[-1].step + 1

    def _from_machinery(self) -> FailureReport | None:
        for cause, (kind, what) in reversed(_MACHINERY.items()):
            for node in self._nodes:
                if node.cause is cause:
                    place = f" ({node.hostname})" if node.hostname else ""
                    detail = f": {node.message}" if node.message else ""
                    report = self._report(kind, f"{what}{place}{detail}")
                    return report.model_copy(update={"phase": _machinery_phase(cause, report)})
        return None

    def _from_signal(self) -> FailureReport | None:
        for node in self._nodes:
            for rank in _in_order(node):
                code = node.exit_codes[rank]
                if code < 0:
                    return self._signal_report(node, rank, -code)
        return None

    def _signal_report(self, node: NodeResult, rank: int, number: int) -> FailureReport:
        name = _signal_name(number)
        text = node.log_tails.get(rank, "")
        limit = self._job.memory_limit_bytes
        peak = node.peak_rss_bytes.get(rank, 0)
        if number == signal.SIGKILL and (node.oom_kills > 0 or (limit and peak >= limit)):
            message = f"rank {rank} was killed because the host ran out of memory ({name})"
            return self._report(FailureKind.OOM, message, rank, text)
        return self._report(FailureKind.CRASH, f"rank {rank} was killed by {name}", rank, text)

    def _from_exit_code(self) -> FailureReport | None:
        for node in self._nodes:
            for rank in _in_order(node):
                if node.exit_codes[rank] > 0:
                    return self._exit_report(node, rank)
        return None

    def _exit_report(self, node: NodeResult, rank: int) -> FailureReport:
        tail = node.log_tails.get(rank, "")
        code = node.exit_codes[rank]
        if node.disk_free_bytes is not None and node.disk_free_bytes < _DISK_FULL_BYTES:
            message = f"rank {rank} ended with exit code {code}: the disk of its folder is full"
            return self._report(FailureKind.LAUNCH, message, rank, tail)
        last = tail.splitlines()[-1] if tail else "it wrote nothing"
        message = f"rank {rank} ended with exit code {code}: {last}"
        kind = FailureKind.OOM if "MemoryError" in last else FailureKind.CRASH
        return self._report(kind, message, rank, tail)

    def _from_watchdog(self) -> FailureReport | None:
        causes = {node.cause for node in self._nodes}
        measure = self._job.measure
        stacks = {rank: text for node in self._nodes for rank, text in node.stacks.items()}
        text = "\n".join(f"--- rank {rank} ---\n{stacks[rank]}" for rank in sorted(stacks))
        left = next((rank for node in self._nodes for rank in _in_order(node)), None)
        if causes & {Cause.HANG, Cause.TIMEOUT} and left is not None:
            message = f"rank {left} ended with exit code 0 before the others, which then hung"
            return self._report(FailureKind.CRASH, message, left, text)
        if Cause.HANG in causes:
            message = f"no rank made progress for {measure.hang_s:g} s"
            return self._report(FailureKind.HANG, message, text=text)
        if Cause.TIMEOUT in causes:
            message = f"not finished within its deadline of {measure.deadline_s:g} s"
            return self._report(FailureKind.TIMEOUT, message, text=text)
        return None

    def _from_silence(self) -> FailureReport | None:
        if any(node.cause is Cause.CANCELLED for node in self._nodes):
            return None
        early = next((node.first_failed for node in self._nodes if node.first_failed), None)
        rank = early if early is not None else 0
        message = f"rank {rank} ended with exit code 0 without a result"
        tails = (node.log_tails.get(rank, "") for node in self._nodes)
        return self._report(FailureKind.CRASH, message, rank, next(filter(None, tails), ""))


def _in_order(node: NodeResult) -> list[int]:
    """Ranks that ended on their own, the first failing one first."""
    ranks = [rank for rank in node.exit_codes if rank not in node.killed_by_us]
    return sorted(ranks, key=lambda rank: rank != node.first_failed)


def _machinery_phase(cause: Cause, report: FailureReport) -> Phase:
    never_ran = cause in (Cause.START_FAILED, Cause.NEVER_PLACED)
    return Phase.LAUNCH if never_ran else report.phase


def _signal_name(number: int) -> str:
    try:
        return signal.Signals(number).name
    except ValueError:
        return f"signal {number}"


def _stage_of(rank: int, job: TrialJob) -> int | None:
    """First pipeline stage of a rank where pp is the slowest axis of the mesh."""
    config = job.config
    per_stage = config.world_size // config.pp
    return rank // per_stage if config.pp > 1 and rank < config.world_size else None
