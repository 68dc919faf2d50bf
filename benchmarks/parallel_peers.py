"""torch's own data and tensor parallelism on the plain model: what the kernel is compared with.

Every factory runs inside a rank (see `benchmarks.ranks`) and returns a function that takes one
training step and gives the loss.
"""

from collections.abc import Callable

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.tensor import Replicate, Shard
from torch.distributed.tensor.parallel import (
    ColwiseParallel,
    RowwiseParallel,
    loss_parallel,
    parallelize_module,
)
from torch.nn import functional as F

from benchmarks.peers import LEARNING_RATE, PlainGPT, Shape, random_batch


def ddp(shape: Shape) -> Callable[[], float]:
    """`DistributedDataParallel` with its default buckets and overlap; each rank has B / N."""
    torch.manual_seed(0)
    rank, size = dist.get_rank(), dist.get_world_size()
    model = nn.parallel.DistributedDataParallel(PlainGPT(shape), gradient_as_bucket_view=True)
    tokens, targets = (part.chunk(size)[rank] for part in random_batch(shape))
    optimizer = torch.optim.AdamW(model.parameters(), lr=LEARNING_RATE, fused=True)

    def step() -> float:
        loss = F.cross_entropy(model(tokens).flatten(0, 1), targets.flatten())
        loss.backward()
        optimizer.step()
        optimizer.zero_grad(set_to_none=True)
        return loss.item()

    return step


class SplitHeadsBlock(nn.Module):
    """`PlainBlock` with three projections, since DTensor cannot split a fused one by heads."""

    def __init__(self, hidden_size: int, num_heads: int) -> None:
        super().__init__()
        self.head_size = hidden_size // num_heads
        self.norm_1, self.norm_2 = nn.LayerNorm(hidden_size), nn.LayerNorm(hidden_size)
        self.q, self.k, self.v, self.out = (nn.Linear(hidden_size, hidden_size) for _ in range(4))
        self.up = nn.Linear(hidden_size, 4 * hidden_size)
        self.down = nn.Linear(4 * hidden_size, hidden_size)

    def forward(self, x_BTD: Tensor) -> Tensor:
        """Attention over this rank's heads, then the feed-forward network."""
        batch, length, _ = x_BTD.shape
        normed = self.norm_1(x_BTD)
        q, k, v = (
            project(normed).view(batch, length, -1, self.head_size).transpose(1, 2)
            for project in (self.q, self.k, self.v)
        )
        attended = F.scaled_dot_product_attention(q, k, v, is_causal=True)
        x_BTD = x_BTD + self.out(attended.transpose(1, 2).reshape(batch, length, -1))
        hidden = F.gelu(self.up(self.norm_2(x_BTD)), approximate="tanh")
        result: Tensor = x_BTD + self.down(hidden)
        return result


def dtensor_tensor_parallel(shape: Shape) -> Callable[[], float]:
    """DTensor tensor parallelism after torch's tutorial, with a vocabulary-parallel loss."""
    torch.manual_seed(0)
    mesh = init_device_mesh("cpu", (dist.get_world_size(),))
    model = PlainGPT(shape)
    model.blocks = nn.ModuleList(
        SplitHeadsBlock(shape.hidden_size, shape.num_heads) for _ in range(shape.num_layers)
    )
    model.head = nn.Linear(shape.hidden_size, shape.vocab_size, bias=False)
    plan = {"tokens": RowwiseParallel(input_layouts=Replicate())}
    plan["head"] = ColwiseParallel(output_layouts=Shard(-1), use_local_output=False)
    for i in range(shape.num_layers):
        for name in ("q", "k", "v", "up"):
            plan[f"blocks.{i}.{name}"] = ColwiseParallel()
        for name in ("out", "down"):
            plan[f"blocks.{i}.{name}"] = RowwiseParallel()
    parallelize_module(model, mesh, plan)
    tokens, targets = random_batch(shape)
    # fused and foreach AdamW refuse a mix of DTensor and plain parameters: one optimizer for each
    optimizers = [
        torch.optim.AdamW(parameters, lr=LEARNING_RATE, fused=True)
        for parameters in _by_kind(model)
    ]

    def step() -> float:
        with loss_parallel():
            loss = F.cross_entropy(model(tokens).flatten(0, 1), targets.flatten())
            loss.backward()
        for optimizer in optimizers:
            optimizer.step()
            optimizer.zero_grad(set_to_none=True)
        return float(loss.item())

    return step


def _by_kind(model: nn.Module) -> list[list[nn.Parameter]]:
    kinds: dict[type, list[nn.Parameter]] = {}
    for parameter in model.parameters():
        kinds.setdefault(type(parameter.data), []).append(parameter)
    return list(kinds.values())
