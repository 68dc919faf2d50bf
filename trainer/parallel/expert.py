"""Expert parallelism: experts of a layer dealt to ranks, tokens sent to their experts and back.

The expert-parallel group takes `ep` neighbours out of the data-parallel axis (GShard, arXiv
2006.16668). Its ranks see different tokens; an all-to-all takes every token to the ranks of its
experts, a second one brings the results back, and their transposes do the same for gradients. So
an expert's gradient already holds the tokens of the whole group, and is summed only over the
*expert data ranks*, which hold the same experts: `dp / ep` of the data axis, times `cp`.

N tokens of this rank, K experts per token, A = N K assignments, M rows that reach this rank, D
hidden size, E experts.
"""

import math
from dataclasses import dataclass
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from trainer.errors import UnsupportedConfigError
from trainer.mesh import ParallelMesh
from trainer.model.parameters import ShardParameter
from trainer.parallel.collectives import Communicator, Group


def expert_ranks(mesh: ParallelMesh, rank: int) -> tuple[int, ...]:
    """Ranks that share out the experts with `rank`: `ep` neighbours along the data axis."""
    ranks, ep = mesh.ranks_along(rank, ("dp",)), mesh.config.ep
    if mesh.config.dp % ep:
        raise UnsupportedConfigError(f"ep={ep} does not divide dp={mesh.config.dp}")
    start = mesh.coordinates(rank)["dp"] // ep * ep
    return ranks[start : start + ep]


def expert_data_ranks(mesh: ParallelMesh, rank: int) -> tuple[int, ...]:
    """Data ranks that hold the same experts as `rank`."""
    ep, place = mesh.config.ep, mesh.coordinates(rank)["dp"]
    return tuple(
        other for other in mesh.data_ranks(rank) if mesh.coordinates(other)["dp"] % ep == place % ep
    )


def expert_shard_degree(mesh: ParallelMesh, rank: int) -> int:
    """Ranks that share one set of ZeRO shards of the experts.

    As many as for the other parameters, as far as the expert data ranks, fewer by `ep`, allow.
    """
    if mesh.config.zero_stage == 0:
        return 1
    return math.gcd(mesh.shard_degree, len(expert_data_ranks(mesh, rank)))


def expert_zero_groups(groups: Communicator) -> tuple[Group, Group]:
    """Shard and replicate groups of the experts' units."""
    mesh, rank = groups.mesh, groups.rank
    ranks = expert_data_ranks(mesh, rank)
    degree = expert_shard_degree(mesh, rank)
    place = ranks.index(rank)
    start = place // degree * degree
    shard = groups.of_ranks("expert_shard", ranks[start : start + degree])
    replicate = groups.of_ranks("expert_replicate", ranks[place % degree :: degree])
    return shard, replicate


class LocalLinear(torch.autograd.Function):
    """`y = x @ W.T` on this rank alone; the weight's gradient goes to its unit, deferrable."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, weight: ShardParameter) -> Tensor:  # noqa: D102
        ctx.save_for_backward(x, weight)
        ctx.weight = weight
        return F.linear(x, weight)

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor | None, None]:  # noqa: D102
        x, weight = ctx.saved_tensors
        if x.shape[0]:
            ctx.weight.sink.accumulate_product(ctx.weight, grad, x)
        return (grad @ weight if ctx.needs_input_grad[0] else None), None


class AllToAllRows(torch.autograd.Function):
    """Rows to the ranks of a group, `in_splits[r]` of them to rank `r`; gradients go back."""

    @staticmethod
    def forward(  # noqa: D102
        ctx: Any, x: Tensor, group: Group, out_splits: list[int], in_splits: list[int]
    ) -> Tensor:
        ctx.group, ctx.out_splits, ctx.in_splits = group, out_splits, in_splits
        return group.all_to_all(x, out_splits, in_splits)

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor, None, None, None]:  # noqa: D102
        return ctx.group.all_to_all(grad, ctx.in_splits, ctx.out_splits), None, None, None


@dataclass(frozen=True)
class Dispatch:
    """Where the assignments of one micro-batch went.

    `tokens` (A) is the token of each assignment, in the order of experts; `order` (A) the place of
    each in the flat (token, choice) table. `by_expert` (M) turns rows in the order of their source
    ranks into the order of local experts, of which each has `counts`.
    """

    tokens: Tensor
    order: Tensor
    counts: list[int]
    by_expert: Tensor | None
    out_splits: list[int]
    in_splits: list[int]


class TokenDispatcher:
    """Takes tokens to the ranks of their experts and back.

    Raises:
        UnsupportedConfigError: the ranks of the group cannot share the experts evenly.
    """

    def __init__(self, group: Group, num_experts: int) -> None:
        if num_experts % group.size:
            raise UnsupportedConfigError(
                f"ep={group.size} does not divide the {num_experts} experts"
            )
        self.group, self.num_experts = group, num_experts
        self.num_local = num_experts // group.size

    @property
    def local_experts(self) -> range:
        """Experts of this rank."""
        first = self.group.rank * self.num_local
        return range(first, first + self.num_local)

    def plan(self, experts_NK: Tensor) -> Dispatch:
        """Agree with the group on who sends how many rows; waits for the device."""
        choices = experts_NK.shape[1]
        order_A = experts_NK.flatten().argsort(stable=True)
        counts_E = torch.bincount(experts_NK.flatten(), minlength=self.num_experts)
        token_A = order_A // choices
        if self.group.size == 1:
            return Dispatch(token_A, order_A, counts_E.tolist(), None, [], [])
        received = self.group.all_to_all(counts_E)
        received_RL = received.view(self.group.size, self.num_local)
        local = torch.arange(self.num_local, device=received.device).repeat(self.group.size)
        by_expert_M = torch.repeat_interleave(local, received).argsort(stable=True)
        sent_RL = counts_E.view(self.group.size, self.num_local)
        return Dispatch(
            token_A, order_A, received_RL.sum(0).tolist(), by_expert_M,
            received_RL.sum(1).tolist(), sent_RL.sum(1).tolist(),
        )  # fmt: skip

    def dispatch(self, x_ND: Tensor, plan: Dispatch) -> Tensor:
        """Rows (M, D) that this rank's experts work on, in the order of the experts."""
        x_AD = x_ND.index_select(0, plan.tokens)
        if plan.by_expert is None:
            return x_AD
        x_MD: Tensor = AllToAllRows.apply(x_AD, self.group, plan.out_splits, plan.in_splits)
        return x_MD.index_select(0, plan.by_expert)

    def combine(self, y_MD: Tensor, weights_NK: Tensor, plan: Dispatch) -> Tensor:
        """Weighted sum (N, D) of what the experts made of every token."""
        y_AD = y_MD
        if plan.by_expert is not None:
            by_source = torch.empty_like(plan.by_expert)
            by_source[plan.by_expert] = torch.arange(by_source.numel(), device=by_source.device)
            y_AD = AllToAllRows.apply(
                y_MD.index_select(0, by_source), self.group, plan.in_splits, plan.out_splits
            )
        weights_A1 = weights_NK.flatten().index_select(0, plan.order).unsqueeze(-1)
        out_ND = y_AD.new_zeros(weights_NK.shape[0], y_AD.shape[1])
        return out_ND.index_add(0, plan.tokens, y_AD * weights_A1)
