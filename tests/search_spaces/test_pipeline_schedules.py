"""Laws of every pipeline schedule in the table, and of the simulator that replays them."""

import itertools
from collections import Counter

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from search_spaces.errors import SpaceError
from search_spaces.pipeline_schedules import (
    SCHEDULES,
    Action,
    build_actions,
    check,
    stage_to_rank,
    stages_of_rank,
)
from search_spaces.pipeline_schedules.in_flight import peak_in_flight
from search_spaces.pipeline_schedules.plan import ScheduleDeadlockError, schedule_plan

VIRTUAL_STAGES = {"interleaved": (2, 3), "zbv": (2,)}
CASES = [(name, v) for name in SCHEDULES for v in VIRTUAL_STAGES.get(name, (1,))]
ranks_strategy = st.integers(1, 8)
microbatches_strategy = st.integers(1, 20)


def all_lists(name: str, p: int, m: int, v: int) -> list[list[Action]]:
    return [build_actions(name, p, rank, m, v) for rank in range(p)]


@pytest.mark.parametrize(("name", "v"), CASES)
@given(p=ranks_strategy, m=microbatches_strategy)
def test_each_stage_runs_each_microbatch_once_on_its_own_rank(name, v, p, m):
    done = Counter()
    for rank, actions in enumerate(all_lists(name, p, m, v)):
        for action in actions:
            assert stage_to_rank(name, action.stage, p, v) == rank
            done[action] += 1
    assert set(done.values()) == {1}
    for stage, i in itertools.product(range(p * v), range(m)):
        assert Action("F", i, stage) in done
        is_whole = Action("B", i, stage) in done
        assert (Action("I", i, stage) in done) is not is_whole
        assert (Action("W", i, stage) in done) is not is_whole
    assert len(done) in (2 * p * v * m, 3 * p * v * m)


@pytest.mark.parametrize(("name", "v"), CASES)
@given(p=ranks_strategy, m=microbatches_strategy)
def test_forward_comes_before_input_gradient_before_weight_gradient(name, v, p, m):
    for actions in all_lists(name, p, m, v):
        place = {action: k for k, action in enumerate(actions)}
        for action in actions:
            if action.op in "BI":
                assert place[Action("F", action.microbatch, action.stage)] < place[action]
            if action.op == "W":
                assert place[Action("I", action.microbatch, action.stage)] < place[action]


@pytest.mark.parametrize("semantics", ["buffered", "rendezvous"])
@pytest.mark.parametrize(("name", "v"), CASES)
@given(p=ranks_strategy, m=microbatches_strategy)
@settings(max_examples=40)
def test_no_schedule_deadlocks(name, v, semantics, p, m):
    plan = schedule_plan(name, p, m, v, semantics)
    assert len(plan.steps) == sum(map(len, all_lists(name, p, m, v)))


@pytest.mark.parametrize(("name", "v"), CASES)
@given(p=ranks_strategy, m=microbatches_strategy)
def test_memory_stays_within_the_bound_of_the_schedule(name, v, p, m):
    bound = {
        "gpipe": lambda rank: m,
        "1f1b": lambda rank: p - rank,
        "interleaved": lambda rank: 2 * (p - rank - 1) + (v - 1) * p + 1,
        "zero_bubble": lambda rank: p,
        "zbv": lambda rank: 2 * p,
    }[name]
    for rank, actions in enumerate(all_lists(name, p, m, v)):
        assert peak_in_flight(actions) == min(peak_in_flight(actions), m * v, bound(rank))


@given(p=ranks_strategy, m=microbatches_strategy)
def test_1f1b_holds_exactly_the_ranks_behind_and_itself(p, m):
    peaks = [peak_in_flight(actions) for actions in all_lists("1f1b", p, m, 1)]
    assert peaks == [min(p - rank, m) for rank in range(p)]


@pytest.mark.parametrize(("name", "v"), CASES)
@given(p=ranks_strategy, m=microbatches_strategy, more=st.integers(1, 5))
@settings(max_examples=30)
def test_more_microbatches_never_need_less_memory(name, v, p, m, more):
    for rank in range(p):
        few = peak_in_flight(build_actions(name, p, rank, m, v))
        assert few <= peak_in_flight(build_actions(name, p, rank, m + more, v))


def test_peak_counts_weights_and_what_the_input_gradient_frees():
    actions = build_actions("zero_bubble", 2, 1, 4)
    assert peak_in_flight(actions) == 2
    assert peak_in_flight(actions, {1: 10.0}) == 20
    assert peak_in_flight(actions, held_after_input_grad=0.25) == 1.25


@given(p=ranks_strategy)
@pytest.mark.parametrize(("name", "v"), CASES)
def test_stages_are_dealt_out_evenly(name, v, p):
    stages = [stages_of_rank(name, rank, p, v) for rank in range(p)]
    assert sorted(itertools.chain(*stages)) == list(range(p * v))
    assert {len(held) for held in stages} == {v}


def test_zbv_puts_first_and_last_stage_on_the_first_rank():
    assert stages_of_rank("zbv", 0, 4, 2) == [0, 7]
    assert stages_of_rank("zbv", 3, 4, 2) == [3, 4]


@pytest.mark.parametrize(
    ("name", "v", "word"),
    [("gpipe", 2, "gpipe"), ("1f1b", 2, "1f1b"), ("zero_bubble", 2, "zero_bubble"),
     ("interleaved", 1, "1f1b"), ("zbv", 1, "virtual_stages 2"), ("zbv", 3, "not 3")],
)  # fmt: skip
def test_sizes_that_cannot_run_get_a_reason(name, v, word):
    assert word in check(name, 2, 4, v)
    with pytest.raises(SpaceError, match=word):
        build_actions(name, 2, 0, 4, v)


def test_unknown_names_and_ranks_are_refused_with_the_legal_ones():
    with pytest.raises(SpaceError, match="gpipe, 1f1b"):
        check("dualpipe", 2, 4, 1)
    with pytest.raises(SpaceError, match="rank 2"):
        build_actions("1f1b", 2, 2, 4)
    with pytest.raises(SpaceError, match="stage 2"):
        stage_to_rank("1f1b", 2, 2)
    assert check("1f1b", 2, 0, 1)


def test_a_list_given_out_can_be_changed_without_harm():
    first = build_actions("1f1b", 2, 0, 4)
    first.clear()
    assert build_actions("1f1b", 2, 0, 4)


def test_deadlock_error_is_a_space_error():
    assert issubclass(ScheduleDeadlockError, SpaceError)
