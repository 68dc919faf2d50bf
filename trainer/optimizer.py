"""The optimizer over the shards of all units, with loss scaling for fp16 and optional offload.

It sees a few large flat tensors instead of one per parameter: two views of each unit's fp32 master
shard (matrices, which decay, and vectors, which do not), so one fused kernel call updates all.
"""

from dataclasses import dataclass

import torch
from torch import Tensor

from search_spaces.training_spec import TrainingSpec
from trainer.parallel.collectives import Group
from trainer.parallel.zero import ShardedUnit

WEIGHT_DECAY = 0.1
BETAS = (0.9, 0.95)
EPSILON = 1e-8


class LossScaler:
    """Dynamic loss scaling (arXiv 1710.03740): halve on overflow, double after a quiet while."""

    def __init__(self, *, is_active: bool, growth_interval: int = 1000) -> None:
        self.is_active = is_active
        self.scale = 2.0**16 if is_active else 1.0
        self._growth_interval, self._num_quiet = growth_interval, 0

    def unscale(self, grads: list[Tensor], world: Group) -> bool:
        """Divide the gradients by the scale; true if no rank of the world found an overflow."""
        if not self.is_active:
            return True
        device = grads[0].device
        found = torch.zeros(1, device=device)
        inverse = torch.full((1,), 1.0 / self.scale, device=device)
        torch._amp_foreach_non_finite_check_and_unscale_(grads, found, inverse)
        world.all_reduce(found, maximum=True).wait()
        return self._update(is_finite=not bool(found.item()))

    def _update(self, *, is_finite: bool) -> bool:
        self._num_quiet = self._num_quiet + 1 if is_finite else 0
        if not is_finite:
            self.scale = max(1.0, self.scale / 2)
        elif self._num_quiet >= self._growth_interval:
            self.scale, self._num_quiet = self.scale * 2, 0
        return is_finite


@dataclass
class _Slice:
    """One flat range that is updated alike: a weight, its gradient and Adam's moments."""

    weight: Tensor
    grad: Tensor
    mean: Tensor
    square: Tensor
    step: Tensor


class ShardedOptimizer:
    """AdamW (arXiv 1711.05101) or SGD on the master shards of the units.

    The fused kernel of torch is called directly: `torch.optim` would import torch's compiler, which
    costs every trial more than a second.

    With `offloads`, masters and states live in host memory: gradients are copied there, and the
    units bring the new weights back when they publish them.
    """

    def __init__(self, units: list[ShardedUnit], training: TrainingSpec, *, offloads: bool) -> None:
        self._units, self._training, self._offloads = units, training, offloads
        self._host_grads: list[tuple[Tensor, Tensor]] = []
        self._decayed: list[_Slice] = []
        self._plain: list[_Slice] = []
        for unit in units:
            border = max(0, min(unit.shard_size, unit.num_decayed - unit.shard_start))
            grad = self._gradient_of(unit)
            self._add(self._decayed, unit.master[:border], grad[:border])
            self._add(self._plain, unit.master[border:], grad[border:])
        self.num_steps = 0

    def _gradient_of(self, unit: ShardedUnit) -> Tensor:
        assert unit.gradient_shard is not None
        if not self._offloads:
            return unit.gradient_shard
        host = torch.zeros_like(unit.master)
        self._host_grads.append((host, unit.gradient_shard))
        return host

    def _add(self, group: list[_Slice], weight: Tensor, grad: Tensor) -> None:
        if not weight.numel():
            return
        has_states = self._training.optimizer == "adamw"
        mean, square = (torch.zeros_like(weight if has_states else weight[:0]) for _ in range(2))
        step = torch.zeros((), device=weight.device)
        group.append(_Slice(weight, grad, mean, square, step))

    @property
    def gradients(self) -> list[Tensor]:
        """Gradient shards on the device."""
        return [unit.gradient_shard for unit in self._units if unit.gradient_shard is not None]

    @torch.no_grad()
    def step(self) -> None:
        """Update the masters; the caller publishes the weights."""
        for host, device in self._host_grads:
            host.copy_(device)
        if self._training.optimizer == "adamw":
            self._adamw(self._decayed, WEIGHT_DECAY)
            self._adamw(self._plain, 0.0)
        else:
            slices = self._decayed + self._plain
            torch._foreach_add_(
                [item.weight for item in slices],
                [item.grad for item in slices],
                alpha=-self._training.learning_rate,
            )
        self.num_steps += 1

    def _adamw(self, slices: list[_Slice], weight_decay: float) -> None:
        if not slices:
            return
        steps = [item.step for item in slices]
        torch._foreach_add_(steps, 1)
        torch._fused_adamw_(
            [item.weight for item in slices], [item.grad for item in slices],
            [item.mean for item in slices], [item.square for item in slices], [], steps,
            lr=self._training.learning_rate, beta1=BETAS[0], beta2=BETAS[1],
            weight_decay=weight_decay, eps=EPSILON, amsgrad=False, maximize=False,
        )  # fmt: skip

    @property
    def state_bytes(self) -> int:
        """Bytes of the optimizer's own states."""
        return sum(x.numel() * x.element_size() for x in self.moments)

    @property
    def moments(self) -> list[Tensor]:
        """Adam's running means and mean squares, or nothing in as many empty tensors."""
        return [x for item in self._decayed + self._plain for x in (item.mean, item.square)]
