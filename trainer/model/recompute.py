"""Activation recomputation: keep a region's inputs, run it again in the backward pass.

`full` recomputes whole decoder layers (arXiv 1604.06174). `selective` recomputes the attention
core, rotary positions included (arXiv 2205.05198, section 5), and the feed-forward activation: both
cost little to repeat, and neither holds a weight. The projection after the activation keeps its
input too; `forgetting` makes it keep how to remake that instead, without which nothing is saved.
"""

from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from typing import Any

import torch
from torch import Tensor


class _Seed(torch.autograd.Function):
    """A scalar whose gradient with respect to `out` is `grad`."""

    @staticmethod
    def forward(ctx: Any, out: Tensor, grad: Tensor) -> Tensor:
        ctx.grad = grad
        return out.new_zeros(())

    @staticmethod
    def backward(ctx: Any, _: Tensor) -> tuple[Tensor, None]:
        return ctx.grad, None


def backward_from(out: Tensor, grad: Tensor | None) -> None:
    """Backward pass from `out` with a given gradient; from a scalar loss with none.

    `torch.autograd.backward` with a gradient imports torch's symbolic shapes and with them sympy: a
    second and 33 MiB in every process. From a scalar it does not.
    """
    if grad is not None:
        with torch.enable_grad():  # a recomputation calls this inside another backward pass
            out = _Seed.apply(out, grad)
    torch.autograd.backward(out)


class Recomputed(torch.autograd.Function):
    """Run `region(*inputs)` without keeping what its backward needs; run it again for that."""

    @staticmethod
    def forward(ctx: Any, region: Callable[..., Tensor], *inputs: Tensor) -> Tensor:  # noqa: D102
        ctx.region = region
        ctx.save_for_backward(*inputs)
        return region(*inputs)

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor | None, ...]:  # noqa: D102
        inputs = [x.detach().requires_grad_(x.is_floating_point()) for x in ctx.saved_tensors]
        with torch.enable_grad():
            output = ctx.region(*inputs)
        backward_from(output, grad)
        return (None, *(x.grad for x in inputs))


def recomputed(region: Callable[..., Tensor], *inputs: Tensor) -> Tensor:
    """`region(*inputs)`, recomputed in the backward pass if there will be one."""
    if not torch.is_grad_enabled():
        return region(*inputs)
    result: Tensor = Recomputed.apply(region, *inputs)
    return result


def forgetting(out: Tensor, remake: Callable[[], Tensor]) -> AbstractContextManager[None]:
    """Operations inside that keep `out` for their backward pass call `remake` for it instead.

    `remake` runs without gradients, once for each operation that kept `out`.
    """
    if not torch.is_grad_enabled() or torch.compiler.is_compiling():
        return nullcontext()
    place = (out.data_ptr(), out.shape)

    def pack(kept: Tensor) -> Tensor | Callable[[], Tensor]:
        return remake if (kept.data_ptr(), kept.shape) == place else kept

    def unpack(packed: Tensor | Callable[[], Tensor]) -> Tensor:
        if isinstance(packed, Tensor):
            return packed
        with torch.no_grad():
            return packed()

    return torch.autograd.graph.saved_tensors_hooks(pack, unpack)
