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
        torch.autograd.backward(output, grad)
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
