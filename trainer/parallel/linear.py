"""Autograd functions of the 1D tensor-parallel linear layers.

They differ from `F.linear` in three ways. The collective of the layer is inside, so that in the
backward pass it runs while the weight's gradient is computed (Megatron-LM, arXiv 1909.08053 and
2205.05198 section 4.2.2). The weight's gradient is accumulated straight into the flat buffer of its
ZeRO unit, without a zeroed buffer or a temporary. And it can be deferred: under a split backward
pass the unit keeps the two operands until the W action (zero bubble, arXiv 2401.10241).
"""

from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from trainer.model.parameters import ShardParameter
from trainer.parallel.collectives import Done, Group, Pending


def gather_tokens(x_BTD: Tensor, group: Group) -> Tensor:
    """Concatenate the sequence shards of all ranks along dim 1."""
    if group.size == 1:
        return x_BTD
    out = x_BTD.new_empty(group.size, *x_BTD.shape)
    group.all_gather(out.view(-1), x_BTD.contiguous().view(-1)).wait()
    return out[:, 0].flatten(0, 1).unsqueeze(0) if x_BTD.shape[0] == 1 else _join(out)


def _join(out_NBTD: Tensor) -> Tensor:
    return out_NBTD.transpose(0, 1).flatten(1, 2)


def scatter_tokens(x_BTD: Tensor, group: Group) -> Tensor:
    """Sum over the ranks and keep this rank's shard of dim 1."""
    if group.size == 1:
        return x_BTD
    batch, tokens, width = x_BTD.shape
    parts = x_BTD.view(batch, group.size, tokens // group.size, width).transpose(0, 1).contiguous()
    out = x_BTD.new_empty(batch, tokens // group.size, width)
    group.reduce_scatter(out.view(-1), parts.view(-1))
    return out


class ColumnLinear(torch.autograd.Function):
    """`y = enter(x) @ W.T + b` with W split by output features.

    Without sequence parallelism `enter` is the identity and its transpose an all-reduce; with it,
    an all-gather and a reduce-scatter, and the backward pass gathers again rather than keep all.
    """

    @staticmethod
    def forward(  # noqa: D102
        ctx: Any, x: Tensor, weight: ShardParameter, bias: ShardParameter | None, group: Group,
        sequence_parallel: bool,
    ) -> Tensor:  # fmt: skip
        ctx.save_for_backward(x, weight)
        ctx.weight, ctx.bias, ctx.group, ctx.sequence_parallel = (
            weight,
            bias,
            group,
            sequence_parallel,
        )
        return F.linear(gather_tokens(x, group) if sequence_parallel else x, weight, bias)

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor | None, ...]:  # noqa: D102
        x, weight = ctx.saved_tensors
        dx, pending = None, _DONE
        if ctx.needs_input_grad[0]:
            dx = grad @ weight
            if ctx.sequence_parallel:
                dx = scatter_tokens(dx, ctx.group)
            else:
                pending = ctx.group.all_reduce(dx, is_async=True)
        full_x = gather_tokens(x, ctx.group) if ctx.sequence_parallel else x
        add_linear_gradients(ctx.weight, ctx.bias, grad, full_x)
        pending.wait()
        return dx, None, None, None, None


class RowLinear(torch.autograd.Function):
    """`y = leave(x @ W.T) + b` with W split by input features.

    Rank 0 alone adds the bias before the sum, which saves a pass over `y`.
    """

    @staticmethod
    def forward(  # noqa: D102
        ctx: Any, x: Tensor, weight: ShardParameter, bias: ShardParameter | None, group: Group,
        sequence_parallel: bool,
    ) -> Tensor:  # fmt: skip
        ctx.save_for_backward(x, weight)
        ctx.weight, ctx.bias, ctx.group, ctx.sequence_parallel = (
            weight,
            bias,
            group,
            sequence_parallel,
        )
        y = F.linear(x, weight, bias if group.rank == 0 else None)
        if sequence_parallel:
            return scatter_tokens(y, group)
        group.all_reduce(y).wait()
        return y

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor | None, ...]:  # noqa: D102
        x, weight = ctx.saved_tensors
        if ctx.sequence_parallel:
            grad = gather_tokens(grad, ctx.group)
        add_linear_gradients(ctx.weight, ctx.bias, grad, x)
        return (grad @ weight if ctx.needs_input_grad[0] else None), None, None, None, None


def add_linear_gradients(
    weight: ShardParameter, bias: ShardParameter | None, grad: Tensor, x: Tensor
) -> None:
    """Hand the gradients of `y = x @ W.T + b` to the parameters' units."""
    grad_NF, x_ND = grad.flatten(0, -2), x.flatten(0, -2)
    weight.sink.accumulate_product(weight, grad_NF, x_ND)
    if bias is not None:
        bias.sink.accumulate(bias, grad_NF.sum(0))


class SumGradient(torch.autograd.Function):
    """Identity whose gradient is summed over the group (Megatron's f)."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, group: Group) -> Tensor:  # noqa: D102
        ctx.group = group
        return x.view_as(x)

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor, None]:  # noqa: D102
        grad = grad.clone(memory_format=torch.contiguous_format)
        ctx.group.all_reduce(grad).wait()
        return grad, None


class SumValue(torch.autograd.Function):
    """Sum over the group whose gradient passes unchanged (Megatron's g)."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, group: Group) -> Tensor:  # noqa: D102
        x = x.clone(memory_format=torch.contiguous_format)
        group.all_reduce(x).wait()
        return x

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor, None]:  # noqa: D102
        return grad, None


class GatherTokens(torch.autograd.Function):
    """All-gather of the sequence shards; its gradient is reduce-scattered."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, group: Group) -> Tensor:  # noqa: D102
        ctx.group = group
        return gather_tokens(x, group)

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor, None]:  # noqa: D102
        return scatter_tokens(grad.contiguous(), ctx.group), None


class ScatterTokens(torch.autograd.Function):
    """Reduce-scatter to sequence shards; its gradient is all-gathered."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, group: Group) -> Tensor:  # noqa: D102
        ctx.group = group
        return scatter_tokens(x.contiguous(), group)

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor, None]:  # noqa: D102
        return gather_tokens(grad, ctx.group), None


_DONE: Pending = Done()
