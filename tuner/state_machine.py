"""What happens next, decided without any I/O: the life of a trial and the life of a study.

A trial's output goes in and a `Verdict` comes out; a `StudyView` goes in and the next `Action`s
come out. The controller carries them out. Tests compare lists of actions.
"""

import statistics
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from enum import StrEnum

from results_db.records import Purpose, TrialStatus
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


class ActionKind(StrEnum):
    """What the controller is told to do."""

    RUN = "run"
    ASK = "ask"
    RETRY = "retry"
    CONFIRM = "confirm"
    STOP = "stop"
    FINISH = "finish"


@dataclass(frozen=True)
class Action:
    """One instruction. `trial_id` and `count` where the kind needs them; `reason` for people."""

    kind: ActionKind
    trial_id: int | None = None
    count: int = 0
    reason: str = ""


@dataclass(frozen=True, kw_only=True)
class TrialView:
    """A trial as the decisions see it."""

    trial_id: int
    config_key: str
    status: TrialStatus
    purpose: Purpose = Purpose.SEARCH
    attempt: int = 1
    repeat: int = 0
    is_transient: bool = False
    tokens_per_s: float | None = None


@dataclass(frozen=True, kw_only=True)
class Limits:
    """The budget and habits of a study; none means unlimited."""

    max_trials: int | None = None
    max_time_s: float | None = None
    parallel_trials: int = 1
    max_retries: int = 1
    confirm_top: int = 0
    confirm_repeats: int = 0


@dataclass(frozen=True, kw_only=True)
class StudyView:
    """All that the next decision depends on."""

    limits: Limits
    trials: Sequence[TrialView] = field(default_factory=tuple)
    elapsed_s: float = 0.0
    is_exhausted: bool = False
    stop_requested: bool = False


def next_actions(view: StudyView) -> list[Action]:
    """Decide what to do now; an empty list means: wait for a running trial.

    Order: stop when asked to; run what is queued; retry what failed in passing; ask for new points
    while the budget lasts; confirm the leaders by interleaved repeats; finish.
    """
    running = [trial for trial in view.trials if trial.status is TrialStatus.RUNNING]
    if view.stop_requested:
        return [Action(ActionKind.STOP, reason="stopped by the user")]
    room = view.limits.parallel_trials - len(running)
    if room <= 0:
        return []
    queued = [trial for trial in view.trials if trial.status is TrialStatus.QUEUED]
    if queued:
        return [Action(ActionKind.RUN, trial.trial_id) for trial in queued[:room]]
    retries = _to_retry(view)
    if retries:
        return [Action(ActionKind.RETRY, trial.trial_id) for trial in retries[:room]]
    if (count := min(room, _points_left(view))) > 0:
        return [Action(ActionKind.ASK, count=count)]
    if running:
        return []
    if not _is_out_of_time(view) and (confirm := _to_confirm(view)) is not None:
        return [Action(ActionKind.CONFIRM, confirm.trial_id)]
    return [Action(ActionKind.FINISH, reason=_why_finished(view))]


def _is_out_of_time(view: StudyView) -> bool:
    limit = view.limits.max_time_s
    return limit is not None and view.elapsed_s >= limit


def num_proposed(trials: Sequence[TrialView]) -> int:
    """Points that count against the budget of trials: first attempts of first measurements."""
    return sum(
        1
        for trial in trials
        if trial.attempt == 1 and trial.repeat == 0 and trial.status is not TrialStatus.CANCELLED
    )


def _points_left(view: StudyView) -> int:
    if view.is_exhausted or _is_out_of_time(view):
        return 0
    if view.limits.max_trials is None:
        return view.limits.parallel_trials
    return view.limits.max_trials - num_proposed(view.trials)


def _to_retry(view: StudyView) -> list[TrialView]:
    """Transient failures whose point has attempts left and no later attempt."""
    if _is_out_of_time(view):
        return []
    latest: dict[tuple[str, int], TrialView] = {}
    for trial in view.trials:
        identity = (trial.config_key, trial.repeat)
        if identity not in latest or trial.attempt > latest[identity].attempt:
            latest[identity] = trial
    return [
        trial
        for trial in latest.values()
        if trial.status is TrialStatus.FAILED
        and trial.is_transient
        and trial.attempt <= view.limits.max_retries
    ]


def _to_confirm(view: StudyView) -> TrialView | None:
    """The leader with the fewest measurements so far, so that the repeats are interleaved."""
    measured: dict[str, list[float]] = {}
    tried: dict[str, int] = {}
    first: dict[str, TrialView] = {}
    for trial in view.trials:
        if trial.status.is_terminal:
            tried[trial.config_key] = max(tried.get(trial.config_key, 0), trial.repeat)
        if trial.status is TrialStatus.COMPLETED and trial.tokens_per_s is not None:
            measured.setdefault(trial.config_key, []).append(trial.tokens_per_s)
            first.setdefault(trial.config_key, trial)
    leaders = sorted(first, key=lambda key: (-statistics.median(measured[key]), key))[
        : view.limits.confirm_top
    ]
    open_leaders = [key for key in leaders if tried[key] < view.limits.confirm_repeats]
    if not open_leaders or len(first) < 2:
        return None
    return first[min(open_leaders, key=lambda key: (tried[key], leaders.index(key)))]


def _why_finished(view: StudyView) -> str:
    if view.is_exhausted:
        return f"all {num_proposed(view.trials)} points tried"
    if _is_out_of_time(view):
        return f"the time limit of {view.limits.max_time_s:g} s is reached"
    return f"the budget of {view.limits.max_trials} trials is used up"
