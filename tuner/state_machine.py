"""What a study does next, decided without any I/O.

A `StudyView` goes in and the next `Action`s come out; the controller carries them out, and tests
compare lists of actions.
"""

from dataclasses import dataclass
from enum import StrEnum

from results_db.records import TrialStatus
from tuner.config import SearchSection
from tuner.leaders import to_check_drift, to_confirm
from tuner.trial_book import TrialBook


class ActionKind(StrEnum):
    """What the controller is told to do."""

    RUN = "run"
    ASK = "ask"
    RETRY = "retry"
    CONFIRM = "confirm"
    CHECK_DRIFT = "check_drift"
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
class Limits:
    """The budget and habits of a study; none means unlimited."""

    max_trials: int | None = None
    max_time_s: float | None = None
    max_device_s: float | None = None
    parallel_trials: int = 1
    max_retries: int = 1
    confirm_top: int = 0
    confirm_repeats: int = 0
    """At most; a leader whose place is settled is not measured again."""
    check_drift: bool = False


def limits_of(search: SearchSection) -> Limits:
    """The budget and habits that a study's file asks for."""
    return Limits(
        max_trials=search.max_trials,
        max_time_s=search.max_time_s,
        max_device_s=search.max_device_s,
        parallel_trials=search.parallel_trials,
        max_retries=search.max_retries,
        confirm_top=search.confirm_top,
        confirm_repeats=search.confirm_repeats,
        check_drift=search.check_drift,
    )


@dataclass(frozen=True, kw_only=True)
class StudyView:
    """All that the next decision depends on."""

    limits: Limits
    trials: TrialBook
    elapsed_s: float = 0.0
    is_exhausted: bool = False
    end_reason: str = ""
    """Why no point is left worth a trial, where some are left."""
    stop_requested: bool = False
    num_earlier_checks: int = 0
    """Checks for drift that were over before this session."""


def next_actions(view: StudyView) -> list[Action]:
    """Decide what to do now; an empty list means: wait for a running trial.

    Order: stop when asked to; run what is queued; retry what failed in passing; ask for new points
    while the budget lasts; confirm the leaders by interleaved repeats; finish.
    """
    if view.stop_requested:
        return [Action(ActionKind.STOP, reason="stopped by the user")]
    limits, trials = view.limits, view.trials
    running = trials.count(TrialStatus.RUNNING)
    room = limits.parallel_trials - running
    if room <= 0:
        return []
    if queued := trials.first(TrialStatus.QUEUED, room):
        return [Action(ActionKind.RUN, trial.trial_id) for trial in queued]
    is_over = _is_out_of_budget(view)
    if not is_over and (retries := trials.retryable(limits.max_retries, room)):
        return [Action(ActionKind.RETRY, trial.trial_id) for trial in retries]
    if (count := min(room, _points_left(view))) > 0:
        return [Action(ActionKind.ASK, count=count)]
    if running:
        return []
    return ([] if is_over else _last_looks(view)) or [
        Action(ActionKind.FINISH, reason=_why_finished(view))
    ]


def _last_looks(view: StudyView) -> list[Action]:
    """Measure again: the reference point for drift, then the leaders in turns."""
    limits = view.limits
    confirm = to_confirm(view.trials, limits.confirm_top, limits.confirm_repeats)
    reference = to_check_drift(
        view.trials,
        num_earlier_checks=view.num_earlier_checks,
        is_repeating=confirm is not None,
    )
    if limits.check_drift and reference is not None:
        return [Action(ActionKind.CHECK_DRIFT, reference.trial_id)]
    return [] if confirm is None else [Action(ActionKind.CONFIRM, confirm.trial_id)]


def _is_out_of_budget(view: StudyView) -> bool:
    """Whether the wall clock or the device-seconds are spent."""
    limits = view.limits
    if limits.max_time_s is not None and view.elapsed_s >= limits.max_time_s:
        return True
    return limits.max_device_s is not None and view.trials.spent_device_s >= limits.max_device_s


def _points_left(view: StudyView) -> int:
    if view.is_exhausted or _is_out_of_budget(view):
        return 0
    if view.limits.max_trials is None:
        return view.limits.parallel_trials
    return view.limits.max_trials - view.trials.num_proposed


def _why_finished(view: StudyView) -> str:
    if view.is_exhausted:
        return view.end_reason or f"all {view.trials.num_proposed} points tried"
    if _is_out_of_budget(view):
        limits = view.limits
        if limits.max_time_s is not None and view.elapsed_s >= limits.max_time_s:
            return f"the time limit of {limits.max_time_s:g} s is reached"
        return f"the budget of {limits.max_device_s:g} device-seconds is used up"
    return f"the budget of {view.limits.max_trials} trials is used up"
