"""Where ZeRO units hook into a step: autograd nodes around a unit, and sums over peers after it."""

from typing import Any

import torch
from torch import Tensor

from trainer.parallel.collectives import Group
from trainer.parallel.zero import ShardedUnit


class UnitBegin(torch.autograd.Function):
    """Identity before a unit: its backward ends the unit's part of the backward pass."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, unit: ShardedUnit) -> Tensor:  # noqa: D102
        ctx.unit = unit
        return x.view_as(x)

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor, None]:  # noqa: D102
        ctx.unit.post_backward()
        return grad, None


class UnitEnd(torch.autograd.Function):
    """Identity after a unit: its backward makes the unit's weights present again (stage 3)."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, unit: ShardedUnit) -> Tensor:  # noqa: D102
        ctx.unit = unit
        return x.view_as(x)

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor, None]:  # noqa: D102
        unit = ctx.unit
        unit.gather()
        if unit.backward_next is not None:
            unit.backward_next.start_gather()
        return grad, None


def sum_partial_gradients(units: list[ShardedUnit]) -> None:
    """Sum the gradients that tensor-parallel peers hold parts of, one all-reduce per group."""
    by_group: dict[tuple[str, tuple[int, ...]], tuple[Group, list[Tensor]]] = {}
    for unit in units:
        for group, view in unit.partial_sums():
            by_group.setdefault((group.axis, group.ranks), (group, []))[1].append(view)
    for group, views in by_group.values():
        joined = torch.cat(views)
        group.all_reduce(joined).wait()
        torch._foreach_copy_(views, list(joined.split([view.numel() for view in views])))
