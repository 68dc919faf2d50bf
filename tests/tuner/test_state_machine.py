from collections.abc import Sequence
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from results_db.records import Purpose, TrialStatus
from trainer.contract import FailureKind, FailureReport, Phase, TrialOutput
from tuner.leaders import drift, excludes, has_drifted
from tuner.state_machine import Action, ActionKind, Limits, next_actions
from tuner.state_machine import StudyView as RealView
from tuner.trial_book import TrialBook, TrialView
from tuner.trial_life import TrialEvent, judge, transition


def StudyView(*, trials: Sequence[TrialView] = (), **others: Any) -> RealView:  # noqa: N802
    return RealView(trials=TrialBook(trials), **others)


def failure(kind: FailureKind, time_s: float = 0.0, rank: int = 0) -> FailureReport:
    return FailureReport(failure=kind, phase=Phase.FORWARD, rank=rank, message="m", time_s=time_s)


@given(st.sampled_from(TrialStatus), st.sampled_from(TrialEvent))
def test_terminal_states_are_final(status: TrialStatus, event: TrialEvent) -> None:
    after = transition(status, event)
    if status.is_terminal:
        assert after is None
    elif after is not None:
        assert after.is_terminal or {status, after} == {TrialStatus.QUEUED, TrialStatus.RUNNING}


@pytest.mark.parametrize(
    ("kinds", "status", "cause", "transient"),
    [
        ([FailureKind.OOM], TrialStatus.INFEASIBLE, FailureKind.OOM, False),
        ([FailureKind.COMM, FailureKind.OOM], TrialStatus.INFEASIBLE, FailureKind.OOM, False),
        ([FailureKind.HANG, FailureKind.CRASH], TrialStatus.FAILED, FailureKind.CRASH, True),
        ([FailureKind.DIVERGED], TrialStatus.FAILED, FailureKind.DIVERGED, False),
        ([FailureKind.IMPLAUSIBLE], TrialStatus.FAILED, FailureKind.IMPLAUSIBLE, False),
        ([FailureKind.TIMEOUT], TrialStatus.FAILED, FailureKind.TIMEOUT, False),
        ([], TrialStatus.FAILED, FailureKind.CRASH, True),
    ],
)
def test_judge_names_the_root_cause(
    kinds: list[FailureKind], status: TrialStatus, cause: FailureKind, transient: bool
) -> None:
    output = TrialOutput(failures=[failure(kind, float(i)) for i, kind in enumerate(kinds)])
    verdict = judge(output)
    assert verdict.status is status
    assert verdict.failure is not None
    assert verdict.failure.failure is cause
    assert verdict.is_transient is transient


def trial(number: int, status: TrialStatus, **changes: object) -> TrialView:
    values: dict[str, object] = {
        "trial_id": number,
        "config_key": f"k{number}",
        "status": status,
        "tokens_per_s": 100.0 + number if status is TrialStatus.COMPLETED else None,
    }
    return TrialView(**{**values, **changes})  # type: ignore[arg-type]


def kinds(view: RealView) -> list[ActionKind]:
    return [action.kind for action in next_actions(view)]


def test_a_queued_trial_runs_before_new_points_are_asked_for() -> None:
    view = StudyView(limits=Limits(max_trials=5), trials=(trial(1, TrialStatus.QUEUED),))
    assert next_actions(view) == [Action(ActionKind.RUN, 1)]


def test_room_bounds_what_is_started() -> None:
    trials = tuple(trial(i, TrialStatus.RUNNING) for i in range(2))
    assert kinds(StudyView(limits=Limits(parallel_trials=2), trials=trials)) == []
    view = StudyView(limits=Limits(parallel_trials=4, max_trials=3), trials=trials)
    assert next_actions(view) == [Action(ActionKind.ASK, count=1)]


def test_a_transient_failure_is_retried_a_bounded_number_of_times() -> None:
    failed = trial(1, TrialStatus.FAILED, is_transient=True)
    view = StudyView(limits=Limits(max_trials=1, max_retries=1), trials=(failed,))
    assert next_actions(view) == [Action(ActionKind.RETRY, 1)]
    again = trial(2, TrialStatus.FAILED, is_transient=True, attempt=2, config_key="k1")
    view = StudyView(limits=Limits(max_trials=1, max_retries=1), trials=(failed, again))
    assert kinds(view) == [ActionKind.FINISH]


def test_deterministic_failures_are_never_retried() -> None:
    for status in (TrialStatus.FAILED, TrialStatus.INFEASIBLE):
        view = StudyView(limits=Limits(max_trials=1, max_retries=5), trials=(trial(1, status),))
        assert kinds(view) == [ActionKind.FINISH]


@pytest.mark.parametrize(
    ("spread", "expected"), [(0.5, ["k3", "k2", "k3", "k2"]), (0.001, ["k3", "k2"])]
)
def test_leaders_are_confirmed_in_turn_until_they_are_settled(
    spread: float, expected: list[str]
) -> None:
    limits = Limits(max_trials=3, confirm_top=2, confirm_repeats=2)
    trials = [trial(i, TrialStatus.COMPLETED, relative_spread=spread) for i in (1, 2, 3)]
    confirmed = []
    for _ in range(10):
        action = next_actions(StudyView(limits=limits, trials=tuple(trials)))[0]
        if action.kind is ActionKind.FINISH:
            break
        assert action.kind is ActionKind.CONFIRM
        original = next(t for t in trials if t.trial_id == action.trial_id)
        confirmed.append(original.config_key)
        repeat = 1 + sum(t.config_key == original.config_key for t in trials) - 1
        trials.append(
            trial(
                len(trials) + 1,
                TrialStatus.COMPLETED,
                config_key=original.config_key,
                repeat=repeat,
                purpose=Purpose.CONFIRM,
                tokens_per_s=original.tokens_per_s,
            )
        )
    assert confirmed == expected


def test_the_first_point_is_run_again_to_see_whether_the_machine_changed() -> None:
    limits = Limits(max_trials=3, check_drift=True)
    trials = [trial(i, TrialStatus.COMPLETED) for i in (1, 2, 3)]
    assert next_actions(StudyView(limits=limits, trials=trials)) == [
        Action(ActionKind.CHECK_DRIFT, 1)
    ]
    again = trial(
        4,
        TrialStatus.COMPLETED,
        config_key="k1",
        repeat=1,
        purpose=Purpose.DRIFT,
        tokens_per_s=80.0,
    )
    assert drift([*trials, again]) == pytest.approx(80 / 101)
    assert has_drifted([*trials, again])
    assert not has_drifted(trials)
    assert kinds(StudyView(limits=limits, trials=[*trials, again])) == [ActionKind.FINISH]


def test_repeats_in_another_session_begin_with_a_check_for_drift() -> None:
    limits = Limits(max_trials=2, check_drift=True, confirm_top=2, confirm_repeats=1)
    searched = [trial(i, TrialStatus.COMPLETED) for i in (1, 2)]
    check = trial(3, TrialStatus.COMPLETED, config_key="k1", repeat=1, purpose=Purpose.DRIFT)
    begun = [*searched, check]
    assert kinds(StudyView(limits=limits, trials=begun)) == [ActionKind.CONFIRM]
    resumed = StudyView(limits=limits, trials=begun, num_earlier_checks=1)
    assert kinds(resumed) == [ActionKind.CHECK_DRIFT]
    second = trial(4, TrialStatus.QUEUED, config_key="k1", repeat=2, purpose=Purpose.DRIFT)
    again = StudyView(limits=limits, trials=[*begun, second], num_earlier_checks=1)
    assert kinds(again) == [ActionKind.RUN]
    repeats = [
        trial(5 + i, TrialStatus.COMPLETED, config_key=f"k{i}", repeat=3, purpose=Purpose.CONFIRM)
        for i in (1, 2)
    ]
    over = StudyView(limits=limits, trials=[*begun, *repeats], num_earlier_checks=1)
    assert kinds(over) == [ActionKind.FINISH], "nothing is left that drift could spoil"


def test_points_measured_after_a_check_are_checked_too() -> None:
    limits = Limits(max_trials=3, check_drift=True)
    trials = [
        trial(1, TrialStatus.COMPLETED),
        trial(2, TrialStatus.COMPLETED),
        trial(3, TrialStatus.COMPLETED, config_key="k1", repeat=1, purpose=Purpose.DRIFT,
              tokens_per_s=50.0),
        trial(4, TrialStatus.COMPLETED),
    ]  # fmt: skip
    view = StudyView(limits=limits, trials=trials, num_earlier_checks=1)
    assert kinds(view) == [ActionKind.CHECK_DRIFT]
    trials.append(
        trial(5, TrialStatus.COMPLETED, config_key="k1", repeat=2, purpose=Purpose.DRIFT,
              tokens_per_s=101.0)
    )  # fmt: skip
    assert kinds(StudyView(limits=limits, trials=trials)) == [ActionKind.FINISH]
    assert drift(trials) == pytest.approx(50 / 101), "the check that was furthest off"


def test_a_slow_trial_is_excluded_by_its_fastest_of_three_steps() -> None:
    best = trial(1, TrialStatus.COMPLETED, relative_spread=0.1)
    assert not excludes([9.0, 9.0], best, 1.0)
    assert excludes([9.0, 1.7, 9.0], best, 1.0)
    assert not excludes([9.0, 1.6, 9.0], best, 1.0)


def test_device_seconds_are_a_budget() -> None:
    view = StudyView(
        limits=Limits(max_device_s=10.0, confirm_top=2, confirm_repeats=2, check_drift=True),
        trials=[trial(i, TrialStatus.COMPLETED, device_s=6.0) for i in (1, 2)],
    )
    assert next_actions(view)[0].reason == "the budget of 10 device-seconds is used up"


def test_an_exhausted_space_says_so() -> None:
    view = StudyView(
        limits=Limits(max_trials=9), trials=(trial(1, TrialStatus.COMPLETED),), is_exhausted=True
    )
    assert next_actions(view) == [Action(ActionKind.FINISH, reason="all 1 points tried")]


def test_time_limit_lets_running_trials_end_and_starts_none() -> None:
    limits = Limits(max_time_s=10, parallel_trials=2)
    view = StudyView(limits=limits, trials=(trial(1, TrialStatus.RUNNING),), elapsed_s=11)
    assert next_actions(view) == []


statuses = st.sampled_from(
    [TrialStatus.COMPLETED, TrialStatus.FAILED, TrialStatus.INFEASIBLE, TrialStatus.PRUNED]
)


@given(
    st.integers(0, 6),
    st.integers(1, 4),
    st.integers(0, 2),
    st.lists(st.tuples(statuses, st.booleans()), min_size=60, max_size=60),
)
def test_every_study_ends_within_its_budget(
    max_trials: int, parallel: int, retries: int, fates: list[tuple[TrialStatus, bool]]
) -> None:
    limits = Limits(
        max_trials=max_trials, parallel_trials=parallel, max_retries=retries,
        confirm_top=2, confirm_repeats=1,
    )  # fmt: skip
    trials: list[TrialView] = []
    fate = iter(fates)
    for _ in range(200):
        actions = next_actions(StudyView(limits=limits, trials=tuple(trials)))
        if actions and actions[0].kind is ActionKind.FINISH:
            break
        if not actions:
            index = next(i for i, t in enumerate(trials) if t.status is TrialStatus.RUNNING)
            status, transient = next(fate)
            old = trials[index]
            trials[index] = trial(
                old.trial_id, status, config_key=old.config_key, attempt=old.attempt,
                repeat=old.repeat, is_transient=transient and status is TrialStatus.FAILED,
            )  # fmt: skip
        for action in actions:
            old = next((t for t in trials if t.trial_id == action.trial_id), None)
            if action.kind is ActionKind.ASK:
                first = len(trials) + 1
                trials += [trial(first + i, TrialStatus.RUNNING) for i in range(action.count)]
            elif old is not None:
                is_retry = action.kind is ActionKind.RETRY
                trials.append(
                    trial(
                        len(trials) + 1, TrialStatus.RUNNING, config_key=old.config_key,
                        attempt=old.attempt + is_retry, repeat=old.repeat + (not is_retry),
                    )
                )  # fmt: skip
    else:
        pytest.fail("the study did not end")
    assert TrialBook(trials).num_proposed == max_trials
    attempts = {}
    for t in trials:
        attempts[t.config_key, t.repeat] = max(attempts.get((t.config_key, t.repeat), 0), t.attempt)
    assert all(attempt <= 1 + retries for attempt in attempts.values())


@given(st.lists(st.tuples(st.integers(1, 5), st.sampled_from(TrialStatus), st.integers(1, 3))))
def test_a_book_kept_up_to_date_equals_one_made_anew(
    changes: list[tuple[int, TrialStatus, int]],
) -> None:
    book = TrialBook()
    final: dict[int, TrialView] = {}
    for number, status, attempt in changes:
        # a row's point and attempt never change, only its status
        attempt = final[number].attempt if number in final else attempt
        view = trial(number, status, attempt=attempt, is_transient=True, device_s=float(number))
        book.put(view)
        final[number] = view
    anew = TrialBook(final.values())
    assert {t.trial_id: t for t in book} == {t.trial_id: t for t in anew} == final
    assert book.num_proposed == anew.num_proposed
    assert book.num_finished == sum(t.status.is_terminal for t in final.values())
    assert book.spent_device_s == pytest.approx(anew.spent_device_s)
    for status in TrialStatus:
        assert book.count(status) == sum(t.status is status for t in final.values())
    assert {t.trial_id for t in book.retryable(2, 9)} == {t.trial_id for t in anew.retryable(2, 9)}
