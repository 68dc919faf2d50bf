"""The pipeline runner: carries out one rank's list of actions, with messages between stages.

Any schedule is a list of F, B, I and W actions (`trainer.schedules`); this runner knows none by
name. One stage and no neighbours is the plain loop of gradient accumulation.

Messages. A sender never waits: it hands the tensor to the backend and drops it once sent. A
receiver posts receives in the order in which the peer sends (known, since action lists are pure
functions), one action ahead of need, so a transfer runs beside the computation before it, and NCCL,
which matches messages by order and not by tag, gets the right ones. Activations down and gradients
up, to higher and to lower ranks, have a communicator each: in one, opposite messages could block
each other.
"""

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor

from trainer.contract import Phase
from trainer.model.recompute import backward_from
from trainer.model.stage import Stage
from trainer.parallel.collectives import Communicator, Group
from trainer.parallel.tensor_form import LossInputs
from trainer.parallel.zero import ShardedUnit
from trainer.schedules import Action, build_actions, stage_to_rank
from trainer.timing import Timeline

Message = tuple[str, int, int]  # kind ("F" activation, "B" gradient), micro-batch, receiving stage
Kept = list[tuple[ShardedUnit, list[Any]]]


@dataclass(frozen=True)
class PipelinePlan:
    """Schedule, sizes and message shape of one rank's pipeline."""

    schedule: str
    num_ranks: int
    rank: int
    virtual_stages: int
    num_micro_batches: int
    is_training: bool
    hidden_shape: tuple[int, int, int]
    dtype: torch.dtype
    device: torch.device

    @property
    def num_stages(self) -> int:
        """Stages of the whole pipeline."""
        return self.num_ranks * self.virtual_stages

    def rank_of(self, stage: int) -> int:
        """Pipeline rank that holds a stage."""
        return stage_to_rank(self.schedule, stage, self.num_ranks, self.virtual_stages)

    def actions(self, rank: int) -> list[Action]:
        """What a pipeline rank does in one step; forward actions alone for inference."""
        found = build_actions(
            self.schedule, self.num_ranks, rank, self.num_micro_batches, self.virtual_stages
        )
        return found if self.is_training else [action for action in found if action.op == "F"]

    def message_after(self, action: Action) -> tuple[Message, int] | None:
        """What an action sends, and to which pipeline rank; none for what has no successor."""
        if action.op == "F" and action.stage + 1 < self.num_stages:
            stage = action.stage + 1
            return ("F", action.microbatch, stage), self.rank_of(stage)
        if action.op in "BI" and action.stage > 0:
            stage = action.stage - 1
            return ("B", action.microbatch, stage), self.rank_of(stage)
        return None

    def message_before(self, action: Action) -> tuple[Message, int] | None:
        """What an action waits for, and from which pipeline rank."""
        if action.op == "F" and action.stage > 0:
            return ("F", action.microbatch, action.stage), self.rank_of(action.stage - 1)
        if action.op in "BI" and action.stage + 1 < self.num_stages:
            return ("B", action.microbatch, action.stage), self.rank_of(action.stage + 1)
        return None


class Mailbox:
    """Sends and receives of one rank with its pipeline peers."""

    def __init__(self, plan: PipelinePlan, groups: Communicator) -> None:
        self._plan = plan
        self._pp = groups.group("pp")
        self._channels = self._make_channels(groups)
        self._order: dict[tuple[int, str], list[Message]] = {}
        for peer in range(plan.num_ranks):
            if peer != plan.rank:
                self._read_order(peer)
        self.begin_step()

    def _make_channels(self, groups: Communicator) -> dict[tuple[str, bool], Group]:
        keys = [(kind, rises) for kind in "FB" for rises in (False, True)]
        # gloo matches messages by tag, so one group serves all four channels
        is_shared = groups.uses_gloo or self._pp.size == 1
        return {
            key: self._pp if is_shared else groups.of_ranks("pp", self._pp.ranks, fresh=True)
            for key in keys
        }

    def _read_order(self, peer: int) -> None:
        for action in self._plan.actions(peer):
            sent = self._plan.message_after(action)
            if sent is not None and sent[1] == self._plan.rank:
                self._order.setdefault((peer, sent[0][0]), []).append(sent[0])

    def begin_step(self) -> None:
        """Forget what was delivered in the step before."""
        self._next: dict[tuple[int, str], int] = dict.fromkeys(self._order, 0)
        self._posted: dict[Message, tuple[Any, Tensor]] = {}
        self._local: dict[Message, Tensor] = {}
        self._sent: list[tuple[Any, Tensor]] = []

    def send(self, message: Message, peer: int, x: Tensor) -> None:
        """Hand `x` over; to this rank itself without a copy."""
        if peer == self._plan.rank:
            self._local[message] = x
            return
        self._sent = [(work, kept) for work, kept in self._sent if not work.is_completed()]
        x = x.contiguous()
        group = self._channel(message, self._plan.rank, peer)
        work = dist.isend(x, group=group.process_group, group_dst=peer, tag=self._tag(message))
        group.log.add("pp.send", x.numel() * x.element_size(), 0.0)
        self._sent.append((work, x))

    def post(self, message: Message, peer: int) -> None:
        """Start receiving `message`, and all that the peer sends before it."""
        if peer == self._plan.rank or message in self._posted:
            return
        key = (peer, message[0])
        while message not in self._posted:
            coming = self._order[key][self._next[key]]
            self._next[key] += 1
            x = torch.empty(
                self._plan.hidden_shape, dtype=self._plan.dtype, device=self._plan.device
            )
            group = self._channel(coming, peer, self._plan.rank)
            work = dist.irecv(x, group=group.process_group, group_src=peer, tag=self._tag(coming))
            self._posted[coming] = (work, x)

    def receive(self, message: Message, peer: int) -> Tensor:
        """Wait for `message`."""
        if peer == self._plan.rank:
            return self._local.pop(message)
        self.post(message, peer)
        work, x = self._posted.pop(message)
        work.wait()
        return x

    def finish(self) -> None:
        """Wait until all that was sent has left."""
        for work, _ in self._sent:
            work.wait()
        self._sent = []

    def _channel(self, message: Message, source: int, destination: int) -> Group:
        return self._channels[message[0], destination > source]

    def _tag(self, message: Message) -> int:
        kind, micro_batch, stage = message
        return ((kind == "B") << 20) + micro_batch * self._plan.num_stages + stage


@dataclass
class _InFlight:
    """What a stage keeps between the forward and the backward pass of a micro-batch."""

    inputs: dict[tuple[int, int], Tensor] = field(default_factory=dict)
    outputs: dict[tuple[int, int], Tensor] = field(default_factory=dict)
    kept: dict[tuple[int, int], Kept] = field(default_factory=dict)


class PipelineRunner:
    """Runs the actions of one rank for one optimizer step after another."""

    def __init__(
        self, plan: PipelinePlan, stages: dict[int, Stage], groups: Communicator,
        enter_phase: Callable[[Phase, int], None],
    ) -> None:  # fmt: skip
        self.plan, self.stages, self._enter_phase = plan, stages, enter_phase
        self._mailbox = Mailbox(plan, groups)
        self._actions = plan.actions(plan.rank)
        self.num_forward = self.num_backward = 0

    def run(self, ids: list[Tensor], losses: list[LossInputs], timeline: Timeline) -> Tensor | None:
        """All micro-batches of one step; the sum of the scaled losses where the last stage is.

        Args:
            ids: token ids of every micro-batch.
            losses: targets and scale of every micro-batch.
            timeline: takes the start and end of every action.
        """
        self._mailbox.begin_step()
        self._flight = _InFlight()
        total: Tensor | None = None
        for place, action in enumerate(self._actions):
            x = self._input(action)
            if place + 1 < len(self._actions):
                self._post_input(self._actions[place + 1])
            timeline.start(action.op, action.microbatch, action.stage)
            out = self._do(action, x, ids, losses)
            timeline.end()
            if action.op == "F" and action.stage == self.plan.num_stages - 1:
                assert out is not None
                total = out.detach() if total is None else total + out.detach()
            else:
                self._send(action, out)
        self._mailbox.finish()
        return total

    def _input(self, action: Action) -> Tensor | None:
        before = self.plan.message_before(action)
        return None if before is None else self._mailbox.receive(*before)

    def _post_input(self, action: Action) -> None:
        before = self.plan.message_before(action)
        if before is not None:
            self._mailbox.post(*before)

    def _send(self, action: Action, out: Tensor | None) -> None:
        after = self.plan.message_after(action)
        if after is not None:
            assert out is not None
            self._mailbox.send(*after, out.detach())

    def _do(
        self, action: Action, x: Tensor | None, ids: list[Tensor], losses: list[LossInputs]
    ) -> Tensor | None:
        if action.op == "F":
            self._enter_phase(Phase.FORWARD, action.stage)
            return self._forward(action, ids[action.microbatch] if x is None else x, losses)
        self._enter_phase(Phase.BACKWARD, action.stage)
        if action.op == "W":
            for unit, kept in self._flight.kept.pop((action.stage, action.microbatch)):
                unit.run_deferred(kept)
            return None
        return self._backward(action, x)

    def _forward(self, action: Action, x: Tensor, losses: list[LossInputs]) -> Tensor:
        key, stage = (action.stage, action.microbatch), self.stages[action.stage]
        self.num_forward += 1
        if not self.plan.is_training:
            with torch.no_grad():
                return stage.forward(x, losses[action.microbatch])
        if x.is_floating_point():
            x = x.detach().requires_grad_()
            self._flight.inputs[key] = x
        out = stage.forward(x, losses[action.microbatch])
        self._flight.outputs[key] = out
        return out

    def _backward(self, action: Action, grad: Tensor | None) -> Tensor | None:
        key, stage = (action.stage, action.microbatch), self.stages[action.stage]
        self.num_backward += 1
        if action.op == "I":
            for unit in stage.units:
                unit.defer()
        backward_from(self._flight.outputs.pop(key), grad)
        stage.finish_backward()
        if action.op == "I":
            self._flight.kept[key] = [(unit, unit.take_deferred()) for unit in stage.units]
        x = self._flight.inputs.pop(key, None)
        return None if x is None else x.grad
