"""Steps of a log: numbers, times, and moments in place of times."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tuner.adapters.figures import Figure
from tuner.adapters.steps import StepTable


def test_the_slowest_rank_counts() -> None:
    table = StepTable()
    for time_s in (1.0, 3.0, 2.0):
        table.add(1, time_s=Figure(time_s), loss=5.0)
    assert [step.time_s for step in table.timed()] == [Figure(3.0)]


def test_an_earlier_step_changes_nothing() -> None:
    table = StepTable()
    table.add(3, time_s=Figure(1.0))
    table.add(2, time_s=Figure(9.0))
    table.add(0, time_s=Figure(9.0))
    assert [(step.number, step.count) for step in table.timed()] == [(3, 3)]


@given(st.lists(st.floats(min_value=0.01, max_value=100.0), min_size=2, max_size=30))
def test_moments_give_the_times_between_them(times_s: list[float]) -> None:
    table, now_s = StepTable(), 1000.0
    for number, time_s in enumerate(times_s, 1):
        now_s += time_s
        table.add(number, moment_s=now_s)
    found = [step.time_s.value for step in table.timed() if step.time_s]
    assert found == pytest.approx(times_s[1:], abs=1e-9)


@given(st.lists(st.booleans(), min_size=3, max_size=30))
def test_unknown_moments_are_bridged(known: list[bool]) -> None:
    """Steps of one second, some of whose moments are not known: no time is lost or invented."""
    table = StepTable()
    for number, is_known in enumerate(known, 1):
        table.add(number, moment_s=float(number) if is_known else None)
    steps = table.timed()
    assert all(step.time_s == Figure(1.0, 0.005 / step.count) for step in steps)
    numbers = [number for number, is_known in enumerate(known, 1) if is_known]
    assert sum(step.count for step in steps) == (numbers[-1] - numbers[0] if numbers else 0)


def test_of_steps_seen_together_the_last_one_counts() -> None:
    table = StepTable()
    for number, moment_s in ((1, 1.0), (2, 4.0), (3, 4.0), (4, 5.0)):
        table.add(number, moment_s=moment_s)
    found = [(step.number, step.count, step.time_s.value) for step in table.timed() if step.time_s]
    assert found == [(3, 2, 1.5), (4, 1, 1.0)]


def test_a_skipped_step_spoils_the_interval_that_holds_it() -> None:
    table = StepTable()
    table.add(1, moment_s=1.0)
    table.add(2, is_skipped=True)
    table.add(3, moment_s=3.0)
    table.add(4, moment_s=4.0)
    assert [step.is_skipped for step in table.timed()] == [True, False]
