"""The simulator against closed forms, orderings that must hold, and broken schedules."""

from itertools import pairwise

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from search_spaces.errors import SpaceError
from search_spaces.pipeline_schedules import SCHEDULES, Action, build_actions, stage_to_rank
from search_spaces.pipeline_schedules.formulas import bubble_s
from search_spaces.pipeline_schedules.plan import ScheduleDeadlockError, schedule_plan
from search_spaces.pipeline_schedules.simulate import StageTimes, makespans_s, replay, simulate

VIRTUAL_STAGES = {"interleaved": (2, 3), "zbv": (2,)}
CASES = [(name, v) for name in SCHEDULES for v in VIRTUAL_STAGES.get(name, (1,))]
seconds = st.floats(0.01, 10.0)
ranks_strategy = st.integers(1, 8)
microbatches_strategy = st.integers(1, 20)


@pytest.mark.parametrize(("name", "v"), CASES)
@given(p=ranks_strategy, m=microbatches_strategy, f=seconds, i=seconds, w=seconds)
@settings(max_examples=60)
def test_closed_forms_equal_the_replay_of_equal_stages(name, v, p, m, f, i, w):
    expected = bubble_s(name, p, m, f, i, w)
    result = simulate(name, p, m, v, StageTimes.equal(p * v, f, i, w))
    if expected is not None:
        assert result.bubble_s == pytest.approx([expected] * p, abs=1e-6)
    assert expected is not None or name == "zbv" or m % p


@pytest.mark.parametrize(("name", "v"), CASES)
@given(p=ranks_strategy, m=microbatches_strategy, f=seconds, i=seconds, w=seconds, hop=seconds)
@settings(max_examples=40)
def test_no_step_is_shorter_than_its_work_or_its_longest_chain(name, v, p, m, f, i, w, hop):
    result = simulate(name, p, m, v, StageTimes.equal(p * v, f, i, w), hop)
    assert result.busy_s == pytest.approx([m * v * (f + i + w)] * p)
    ranks = [stage_to_rank(name, stage, p, v) for stage in range(p * v)]
    num_hops = sum(here != there for here, there in pairwise(ranks))
    chain = p * v * (f + i) + 2 * num_hops * hop
    assert result.makespan_s >= max(max(result.busy_s), chain) - 1e-6
    assert min(result.bubble_s) >= -1e-6
    assert 0 <= result.bubble_fraction < 1


@given(p=ranks_strategy, m=microbatches_strategy, f=seconds, i=seconds, w=seconds, hop=seconds)
def test_splitting_the_backward_never_makes_the_bubble_longer(p, m, f, i, w, hop):
    times = StageTimes.equal(p, f, i, w)
    plain = simulate("1f1b", p, m, 1, times, hop)
    assert simulate("zero_bubble", p, m, 1, times, hop).makespan_s <= plain.makespan_s + 1e-6


@given(p=st.integers(2, 8), m=microbatches_strategy, f=seconds, b=seconds)
def test_1f1b_is_as_fast_as_gpipe(p, m, f, b):
    times = StageTimes.equal(p, f, b / 2, b / 2)
    gpipe, plain = (simulate(name, p, m, 1, times).makespan_s for name in ("gpipe", "1f1b"))
    assert plain == pytest.approx(gpipe)


@pytest.mark.parametrize("p", [2, 4, 8])
def test_zbv_leaves_only_the_way_in_when_all_three_ops_take_equally_long(p):
    result = simulate("zbv", p, 4 * p, 2, StageTimes.equal(2 * p, 1.0, 1.0, 1.0))
    assert result.bubble_s == pytest.approx([p - 1.0] * p)


@pytest.mark.parametrize(("name", "v"), CASES)
@given(
    data=st.data(), p=st.integers(1, 5), m=st.integers(1, 10), hop=st.floats(0, 1),
    semantics=st.sampled_from(["buffered", "rendezvous"]),
)  # fmt: skip
@settings(max_examples=30)
def test_many_variants_at_once_equal_one_by_one(name, v, data, p, m, hop, semantics):
    stage_times = st.lists(seconds, min_size=p * v, max_size=p * v)
    times = StageTimes(**{
        key: data.draw(stage_times)
        for key in ("forward_s", "backward_s", "input_grad_s", "weight_grad_s")
    })  # fmt: skip
    one = simulate(name, p, m, v, times, hop, semantics).makespan_s
    durations = {op: np.outer(values, [1.0, 2.0]) for op, values in times.by_op().items()}
    plan = schedule_plan(name, p, m, v, semantics)
    many = makespans_s(plan, durations, np.array([hop, 2 * hop]))
    assert many == pytest.approx([one, 2 * one])


@pytest.mark.parametrize(("name", "v"), CASES)
@given(p=ranks_strategy, m=microbatches_strategy, f=seconds, i=seconds, w=seconds, hop=seconds)
@settings(max_examples=30)
def test_full_channels_never_make_a_step_shorter(name, v, p, m, f, i, w, hop):
    times = StageTimes.equal(p * v, f, i, w)
    free = simulate(name, p, m, v, times, hop, "buffered")
    assert simulate(name, p, m, v, times, hop, "rendezvous").makespan_s >= free.makespan_s - 1e-6


def test_an_uneven_last_stage_sets_the_pace():
    times = StageTimes(
        forward_s=[1, 1, 1, 2], backward_s=[2, 2, 2, 4],
        input_grad_s=[1, 1, 1, 2], weight_grad_s=[1, 1, 1, 2],
    )  # fmt: skip
    result = simulate("1f1b", 4, 8, 1, times)
    assert result.makespan_s == pytest.approx(8 * 6 + 3 * 3)
    assert result.bubble_s[3] == pytest.approx(9)


def test_hop_costs_may_differ_by_boundary():
    times = StageTimes.equal(3, 1.0, 1.0, 0.0)
    result = simulate("1f1b", 3, 1, 1, times, hop_s=[0.5, 2.0])
    assert result.makespan_s == pytest.approx(6 + 2 * 2.5)
    assert [action.op for _, action, _, _ in result.timeline] == list("FFFBBB")


def test_wrong_numbers_of_durations_and_hops_are_refused():
    with pytest.raises(SpaceError, match="2 durations of F were given for 4 stages"):
        simulate("1f1b", 4, 4, 1, StageTimes.equal(2, 1, 1, 1))
    with pytest.raises(SpaceError, match="1 hop costs were given for 3 boundaries"):
        simulate("1f1b", 4, 4, 1, StageTimes.equal(4, 1, 1, 1), hop_s=[1.0])


def test_a_wrong_order_is_reported_as_a_deadlock_with_what_each_rank_waits_for():
    lists = [build_actions("1f1b", 2, rank, 2) for rank in range(2)]
    lists[0] = [a for a in lists[0] if a.op == "B"] + [a for a in lists[0] if a.op == "F"]
    with pytest.raises(ScheduleDeadlockError, match="rank 0 at B0@0 waits for B0@1") as caught:
        replay(lists, [0, 1], StageTimes.equal(2, 1, 1, 1))
    assert "rank 1 at F0@1 waits for F0@0" in str(caught.value)


def test_a_message_that_nobody_sends_is_a_deadlock():
    lists = [[Action("F", 0, 0)], [Action("F", 0, 1), Action("F", 1, 1)]]
    with pytest.raises(ScheduleDeadlockError, match="F1@0"):
        replay(lists, [0, 1], StageTimes.equal(2, 1, 1, 1))


def test_crossed_messages_deadlock_only_where_a_channel_holds_one():
    lists = [
        [Action("F", 0, 0), Action("F", 1, 0)],
        [Action("F", 1, 1), Action("F", 0, 1)],
    ]
    times = StageTimes.equal(2, 1, 1, 1)
    assert replay(lists, [0, 1], times).makespan_s == pytest.approx(4)
    with pytest.raises(ScheduleDeadlockError):
        replay(lists, [0, 1], times, semantics="rendezvous")


def test_a_plan_is_made_once():
    plan = schedule_plan("1f1b", 8, 64)
    assert len(plan.steps) == 2 * 8 * 64
    assert schedule_plan("1f1b", 8, 64) is plan
