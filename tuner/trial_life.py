"""The life of a trial, without any I/O: which status follows, and what its output means."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum

from results_db.records import TrialStatus
from trainer.contract import FailureKind, FailureReport, Phase, TrialOutput

# Properties of the point: running it again gives the same.
INFEASIBLE_KINDS = frozenset({FailureKind.OOM, FailureKind.ILLEGAL})
# May pass when run again; the rest of the kinds is deterministic and is not retried.
TRANSIENT_KINDS = frozenset(
    {
        FailureKind.HANG,
        FailureKind.COMM,
        FailureKind.LAUNCH,
        FailureKind.PREEMPTED,
        FailureKind.CRASH,
    }
)


class TrialEvent(StrEnum):
    """What can happen to a trial."""

    CLAIM = "claim"
    COMPLETE = "complete"
    PRUNE = "prune"
    FIND_INFEASIBLE = "find_infeasible"
    FAIL = "fail"
    CANCEL = "cancel"
    REQUEUE = "requeue"


TRANSITIONS: Mapping[tuple[TrialStatus, TrialEvent], TrialStatus] = {
    (TrialStatus.QUEUED, TrialEvent.CLAIM): TrialStatus.RUNNING,
    (TrialStatus.QUEUED, TrialEvent.CANCEL): TrialStatus.CANCELLED,
    (TrialStatus.RUNNING, TrialEvent.COMPLETE): TrialStatus.COMPLETED,
    (TrialStatus.RUNNING, TrialEvent.PRUNE): TrialStatus.PRUNED,
    (TrialStatus.RUNNING, TrialEvent.FIND_INFEASIBLE): TrialStatus.INFEASIBLE,
    (TrialStatus.RUNNING, TrialEvent.FAIL): TrialStatus.FAILED,
    (TrialStatus.RUNNING, TrialEvent.CANCEL): TrialStatus.CANCELLED,
    (TrialStatus.RUNNING, TrialEvent.REQUEUE): TrialStatus.QUEUED,
}


def transition(status: TrialStatus, event: TrialEvent) -> TrialStatus | None:
    """The status after `event`, or none where the event is illegal (terminal states are final)."""
    return TRANSITIONS.get((status, event))


@dataclass(frozen=True)
class Verdict:
    """What a trial's output means."""

    status: TrialStatus
    failure: FailureReport | None = None
    is_transient: bool = False


def judge(output: TrialOutput) -> Verdict:
    """Turn a finished trial's output into its terminal status.

    A result counts only when no rank failed. Otherwise the cause is an OOM wherever one was seen,
    since the other ranks then fail of its consequences (nccl#582), else the earliest failure.
    """
    if output.result is not None and not output.failures:
        return Verdict(TrialStatus.COMPLETED)
    failure = root_cause(output.failures) or FailureReport(
        failure=FailureKind.CRASH,
        phase=Phase.REPORT,
        message="the ranks ended without a result and without an error of their own",
    )
    if failure.failure in INFEASIBLE_KINDS:
        return Verdict(TrialStatus.INFEASIBLE, failure)
    return Verdict(TrialStatus.FAILED, failure, failure.failure in TRANSIENT_KINDS)


# What follows from another rank's end is named last, whatever its time stamp says.
_CONSEQUENCES = (FailureKind.COMM, FailureKind.HANG, FailureKind.TIMEOUT)


def root_cause(failures: Sequence[FailureReport]) -> FailureReport | None:
    """The failure that explains the others: OOM first, then causes by time, then consequences."""

    def order(report: FailureReport) -> tuple[int, float]:
        if report.failure is FailureKind.OOM:
            return 0, report.time_s
        return (2 if report.failure in _CONSEQUENCES else 1), report.time_s

    return min(failures, key=order, default=None)
