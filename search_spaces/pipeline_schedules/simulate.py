"""Replays a schedule's own lists of actions with given durations: step time, idle time, memory.

Every action starts when its rank is free and what it needs has arrived, the input `hop_s` after it
was made; sending costs the sender nothing. All times are seconds.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Self

import numpy as np
from numpy.typing import NDArray

from search_spaces.errors import SpaceError
from search_spaces.pipeline_schedules.action import Action, Op
from search_spaces.pipeline_schedules.plan import Plan, Semantics, make_plan, schedule_plan

Seconds = NDArray[np.float64]


@dataclass(frozen=True, slots=True, kw_only=True)
class StageTimes:
    """Seconds of one micro-batch in each stage, by stage: F, whole B, and B's halves I and W."""

    forward_s: Sequence[float]
    backward_s: Sequence[float]
    input_grad_s: Sequence[float]
    weight_grad_s: Sequence[float]

    @classmethod
    def equal(
        cls, num_stages: int, forward_s: float, input_grad_s: float, weight_grad_s: float
    ) -> Self:
        """Equal stages whose backward takes as long as its halves."""
        return cls(
            forward_s=[forward_s] * num_stages,
            backward_s=[input_grad_s + weight_grad_s] * num_stages,
            input_grad_s=[input_grad_s] * num_stages,
            weight_grad_s=[weight_grad_s] * num_stages,
        )

    def by_op(self) -> dict[Op, Sequence[float]]:
        """The durations by the op that they belong to."""
        return {
            "F": self.forward_s,
            "B": self.backward_s,
            "I": self.input_grad_s,
            "W": self.weight_grad_s,
        }


@dataclass(frozen=True, slots=True, kw_only=True)
class Replay:
    """What one optimizer step of a pipeline looks like; tuples go by rank.

    `bubble_s` is what a rank idles from the common start to `makespan_s`, the last rank's end.
    `peak_in_flight` counts (stage, micro-batch) pairs whose activations are held at once: a rank of
    a schedule with `v` virtual stages holds that many `v`-ths of its layers' activations.
    """

    makespan_s: float
    finish_s: tuple[float, ...]
    busy_s: tuple[float, ...]
    bubble_s: tuple[float, ...]
    peak_in_flight: tuple[int, ...]
    timeline: tuple[tuple[int, Action, float, float], ...]
    """Rank, action, start and end."""

    @property
    def bubble_fraction(self) -> float:
        """Idle share of all ranks' time, 0 to 1."""
        total = len(self.finish_s) * self.makespan_s
        return sum(self.bubble_s) / total if total else 0.0


def simulate(
    name: str,
    num_pipeline_ranks: int,
    num_microbatches: int,
    virtual_stages: int,
    times: StageTimes,
    hop_s: float | Sequence[float] = 0.0,
    semantics: Semantics = "buffered",
) -> Replay:
    """Replay a schedule by name; `hop_s` is one number or one for each boundary of two stages.

    Raises:
        SpaceError: the name is unknown, or the sizes or the number of durations are wrong.
        ScheduleDeadlockError: the schedule is wrong.
    """
    plan = schedule_plan(name, num_pipeline_ranks, num_microbatches, virtual_stages, semantics)
    return replay_plan(plan, times, hop_s)


def replay(
    lists: Sequence[Sequence[Action]],
    rank_of_stage: Sequence[int],
    times: StageTimes,
    hop_s: float | Sequence[float] = 0.0,
    semantics: Semantics = "buffered",
) -> Replay:
    """Replay any lists of actions, one per rank.

    Raises:
        ScheduleDeadlockError: the lists wait for one another.
    """
    return replay_plan(make_plan(lists, rank_of_stage, semantics), times, hop_s)


def replay_plan(plan: Plan, times: StageTimes, hop_s: float | Sequence[float] = 0.0) -> Replay:
    """Time a plan's steps."""
    durations = times.by_op()
    _check_lengths(plan, durations)
    hops = _hops(plan, hop_s)
    starts, ends = [0.0] * len(plan.steps), [0.0] * len(plan.steps)
    busy, finish = [0.0] * plan.num_ranks, [0.0] * plan.num_ranks
    for k, step in enumerate(plan.steps):
        start = finish[step.rank]
        if step.source >= 0:
            start = max(start, ends[step.source] + hops[step.hop])
        if step.taken >= 0:
            start = max(start, starts[step.taken])
        duration = durations[step.action.op][step.action.stage]
        starts[k] = start
        ends[k] = finish[step.rank] = start + duration
        busy[step.rank] += duration
    makespan = max(finish, default=0.0)
    return Replay(
        makespan_s=makespan,
        finish_s=tuple(finish),
        busy_s=tuple(busy),
        bubble_s=tuple(makespan - spent for spent in busy),
        peak_in_flight=plan.peak_in_flight,
        timeline=tuple(
            (step.rank, step.action, starts[k], ends[k]) for k, step in enumerate(plan.steps)
        ),
    )


def makespans_s(
    plan: Plan, durations_s: Mapping[Op, Seconds], hop_s: float | Seconds = 0.0
) -> Seconds:
    """Step times of many variants of one plan at once.

    Args:
        plan: the schedule, from `schedule_plan`.
        durations_s: for each op that the schedule uses, an array of shape (stages, variants).
        hop_s: one number, or an array of shape (variants,).

    Returns:
        Seconds, shape (variants,).
    """
    num_variants = next(iter(durations_s.values())).shape[1]
    ends = np.zeros((len(plan.steps), num_variants))
    starts = np.zeros_like(ends)
    finish = np.zeros((plan.num_ranks, num_variants))
    for k, step in enumerate(plan.steps):
        start = finish[step.rank]
        if step.source >= 0:
            arrival = ends[step.source]
            start = np.maximum(start, arrival + hop_s if step.hop >= 0 else arrival)
        if step.taken >= 0:
            start = np.maximum(start, starts[step.taken])
        starts[k] = start
        ends[k] = start + durations_s[step.action.op][step.action.stage]
        finish[step.rank] = ends[k]
    longest: Seconds = finish.max(axis=0)
    return longest


def _check_lengths(plan: Plan, durations: Mapping[Op, Sequence[float]]) -> None:
    for op, seconds in durations.items():
        if len(seconds) != plan.num_stages:
            raise SpaceError(
                f"{len(seconds)} durations of {op} were given for {plan.num_stages} stages"
            )


def _hops(plan: Plan, hop_s: float | Sequence[float]) -> list[float]:
    """Hop cost by boundary, with a last 0 that the index -1 (no hop) finds."""
    num_boundaries = plan.num_stages - 1
    hops = [hop_s] * num_boundaries if isinstance(hop_s, int | float) else list(hop_s)
    if len(hops) != num_boundaries:
        raise SpaceError(f"{len(hops)} hop costs were given for {num_boundaries} boundaries")
    return [*hops, 0.0]
