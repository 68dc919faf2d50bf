"""From lists of actions to one order in which they can be timed; finds deadlocks on the way.

A message goes from F to the next stage's F (an activation) and from B or I to the previous stage's
B or I (a gradient). Messages of one kind between one pair of ranks form a *channel*. Two ways of
sending are told apart:

- `buffered`: a message waits at the receiver for as long as it must (gloo, MPI's eager sends).
- `rendezvous`: a channel holds one message, its receiver takes them in the order in which they were
  sent, and a rank that sends again before the last one was taken waits (NCCL with one communicator
  per channel).
"""

from collections import defaultdict
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import lru_cache
from itertools import pairwise
from typing import Literal

from search_spaces.errors import SpaceError
from search_spaces.pipeline_schedules import build_actions, stage_to_rank
from search_spaces.pipeline_schedules.action import Action, Op
from search_spaces.pipeline_schedules.in_flight import peak_in_flight

Semantics = Literal["buffered", "rendezvous"]


class ScheduleDeadlockError(SpaceError):
    """The ranks' lists wait for one another, or one waits for a message that nobody sends."""


@dataclass(frozen=True, slots=True)
class Step:
    """One action in an order in which all that it waits for comes before it.

    `previous`, `source` and `taken` are positions in that order, or -1: the rank's action before,
    the action whose result this one needs, and the action whose start frees the channel that the
    rank filled last. `hop` is the boundary that the result crosses (stages `hop` and `hop + 1`), or
    -1 when it stays on the rank.
    """

    action: Action
    rank: int
    previous: int
    source: int
    hop: int
    taken: int


@dataclass(frozen=True, slots=True)
class Plan:
    """A schedule that can be timed: its steps in order, its sizes, its peak memory by rank."""

    steps: tuple[Step, ...]
    num_ranks: int
    num_stages: int
    peak_in_flight: tuple[int, ...]


@lru_cache(maxsize=256)
def schedule_plan(
    name: str,
    num_pipeline_ranks: int,
    num_microbatches: int,
    virtual_stages: int = 1,
    semantics: Semantics = "buffered",
) -> Plan:
    """The plan of a schedule by name.

    Raises:
        SpaceError: the name is unknown or the sizes are refused.
        ScheduleDeadlockError: the schedule is wrong.
    """
    lists = [
        build_actions(name, num_pipeline_ranks, rank, num_microbatches, virtual_stages)
        for rank in range(num_pipeline_ranks)
    ]
    num_stages = num_pipeline_ranks * virtual_stages
    ranks = [
        stage_to_rank(name, stage, num_pipeline_ranks, virtual_stages)
        for stage in range(num_stages)
    ]
    return make_plan(lists, ranks, semantics)


def make_plan(
    lists: Sequence[Sequence[Action]],
    rank_of_stage: Sequence[int],
    semantics: Semantics = "buffered",
) -> Plan:
    """Order the actions of all ranks; `lists[r]` is what rank `r` does.

    Raises:
        ScheduleDeadlockError: no order exists; the message names what each rank waits for.
    """
    planner = _Planner(lists, rank_of_stage, semantics)
    planner.run()
    peaks = tuple(int(peak_in_flight(actions)) for actions in lists)
    return Plan(tuple(planner.steps), len(lists), len(rank_of_stage), peaks)


class _Planner:
    """Lets every rank go as far as it can, in turn, until all are through or none can move."""

    def __init__(
        self,
        lists: Sequence[Sequence[Action]],
        rank_of_stage: Sequence[int],
        semantics: Semantics,
    ) -> None:
        self.lists = lists
        self.rank_of_stage = rank_of_stage
        self.steps: list[Step] = []
        self.position: dict[Action, int] = {}
        self.next = [0] * len(lists)
        self.last = [-1] * len(lists)
        self.is_split = {a.stage for actions in lists for a in actions if a.op == "I"}
        self.freed_by, self.taken_before = (
            _channel_rules(lists, rank_of_stage, self.consumer)
            if semantics == "rendezvous"
            else ({}, {})
        )

    def run(self) -> None:
        """Place every action or raise."""
        num_placed = -1
        while len(self.steps) > num_placed:
            num_placed = len(self.steps)
            for rank in range(len(self.lists)):
                self.advance(rank)
        if any(self.blocked(rank) for rank in range(len(self.lists))):
            raise ScheduleDeadlockError(self.story())

    def advance(self, rank: int) -> None:
        """Place the rank's actions up to the first that must wait."""
        actions = self.lists[rank]
        while self.next[rank] < len(actions) and not self.waits_for(rank):
            self.place(rank, actions[self.next[rank]])
            self.next[rank] += 1

    def place(self, rank: int, action: Action) -> None:
        """Add an action whose needs are all placed."""
        source = self.source(action)
        hop = -1
        if source is not None and self.rank_of_stage[source.stage] != rank:
            hop = min(source.stage, action.stage)
        before = self.lists[rank][self.next[rank] - 1] if self.next[rank] else None
        taken = self.freed_by.get(before) if before is not None else None
        self.position[action] = len(self.steps)
        self.steps.append(
            Step(
                action,
                rank,
                self.last[rank],
                self.position[source] if source is not None else -1,
                hop,
                self.position[taken] if taken is not None else -1,
            )
        )
        self.last[rank] = len(self.steps) - 1

    def waits_for(self, rank: int) -> list[Action]:
        """Actions that are not placed yet but must come before the rank's next one."""
        index = self.next[rank]
        action = self.lists[rank][index]
        before = self.lists[rank][index - 1] if index else None
        needs = [
            self.source(action),
            self.taken_before.get(action),
            self.freed_by.get(before) if before is not None else None,
        ]
        return [need for need in needs if need is not None and need not in self.position]

    def blocked(self, rank: int) -> bool:
        """Whether the rank has actions left."""
        return self.next[rank] < len(self.lists[rank])

    def story(self) -> str:
        """What each rank that cannot go on waits for."""
        parts = [
            f"rank {rank} at {self.lists[rank][self.next[rank]]} waits for "
            + ", ".join(map(str, self.waits_for(rank)))
            for rank in range(len(self.lists))
            if self.blocked(rank)
        ]
        return "the pipeline schedule deadlocks: " + "; ".join(parts)

    def gradient_op(self, stage: int) -> Op:
        """The op that makes a stage's input gradient."""
        return "I" if stage in self.is_split else "B"

    def source(self, action: Action) -> Action | None:
        """The action whose result this one needs, or none for the first stage's forward."""
        stage, i = action.stage, action.microbatch
        if action.op == "F":
            return Action("F", i, stage - 1) if stage > 0 else None
        if action.op == "W":
            return Action("I", i, stage)
        if stage == len(self.rank_of_stage) - 1:
            return Action("F", i, stage)
        return Action(self.gradient_op(stage + 1), i, stage + 1)

    def consumer(self, action: Action) -> Action | None:
        """The action that needs this one's message, or none."""
        stage, i = action.stage, action.microbatch
        if action.op == "F":
            last = stage == len(self.rank_of_stage) - 1
            return None if last else Action("F", i, stage + 1)
        if action.op == "W" or stage == 0:
            return None
        return Action(self.gradient_op(stage - 1), i, stage - 1)


def _channel_rules(
    lists: Sequence[Sequence[Action]],
    rank_of_stage: Sequence[int],
    consumer: Callable[[Action], Action | None],
) -> tuple[dict[Action, Action], dict[Action, Action]]:
    """Rules of channels that hold one message.

    Returns:
        For each action that sends, the receiver whose start frees the channel first; and for each
        action that receives, the one that must have received the message before.
    """
    receivers: dict[tuple[int, int, bool], list[tuple[Action, Action]]] = defaultdict(list)
    for rank, actions in enumerate(lists):
        for action in actions:
            receiver = consumer(action)
            if receiver is not None and rank_of_stage[receiver.stage] != rank:
                channel = (rank, rank_of_stage[receiver.stage], action.op == "F")
                receivers[channel].append((action, receiver))
    freed_by: dict[Action, Action] = {}
    taken_before: dict[Action, Action] = {}
    for messages in receivers.values():
        for (_, earlier), (sender, later) in pairwise(messages):
            freed_by[sender] = earlier
            taken_before[later] = earlier
    return freed_by, taken_before
