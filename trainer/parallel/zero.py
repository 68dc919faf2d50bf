"""Data parallelism and the three ZeRO stages (arXiv 1910.02054), on flat buffers.

A `ShardedUnit` is a set of parameters that are gathered, reduced and updated together: a decoder
layer, the embedding, a norm, the head. Its pieces lie one after the other in one flat buffer,
padded so that it splits evenly over the `shard` group. Per optimizer step of M micro-batches, one
unit runs

| stage | sharded over the shard group       | all-gathers | reduce-scatters | all-reduces         |
|-------|------------------------------------|-------------|-----------------|---------------------|
| 0     | nothing                            | 0           | 0               | 1, whole gradient   |
| 1     | optimizer states, fp32 masters     | 1           | 1               | 1 of a shard (HSDP) |
| 2     | + gradients                        | 1           | M               | 1 of a shard (HSDP) |
| 3     | + parameters                       | 2 M         | M               | 1 of a shard (HSDP) |

(embedding and head need their weights in one direction only: M gathers under stage 3). Under a
hybrid shard degree (HSDP, MiCS: arXiv 2205.00119) shards are spread over a part of the data group
and replicated across its other parts, which then all-reduce their shard once a step.

Gradients add up over micro-batches in fp32, whatever the compute precision; `reduce_dtype` is the
type in which they travel. Low-precision training keeps fp32 master weights in the shard.

When a unit's gradient is complete, in the backward pass of its last micro-batch (every one under
stages 2 and 3), its reduction starts at once and runs beside the rest of the backward pass.
"""

from collections import deque
from collections.abc import Callable
from functools import partial
from typing import cast

import torch
from torch import Tensor

from trainer.model.parameters import Initializer, ParameterSpec, ShardParameter, local_shape
from trainer.parallel.arrival import Arrival
from trainer.parallel.collectives import Done, Group, Pending
from trainer.parallel.tensor_form import GradientSum, TensorForm

MAX_SCATTERS_IN_FLIGHT = 2
"""Under stages 2 and 3: more would hold a gradient of every layer, and so save no memory."""
_ALIGNMENT = 16  # elements; NCCL is slow when a rank's bytes are not a multiple of 16


class UnitOptions:
    """What all units of a rank share: groups, ZeRO stage, precisions and device."""

    def __init__(
        self, *, shard: Group, replicate: Group, zero_stage: int, compute_dtype: torch.dtype,
        reduce_dtype: torch.dtype, device: torch.device, is_training: bool = True,
        offloads_optimizer: bool = False,
    ) -> None:  # fmt: skip
        self.shard, self.replicate = shard, replicate
        self.zero_stage = zero_stage if shard.size > 1 else 0
        self.compute_dtype, self.reduce_dtype = compute_dtype, reduce_dtype
        self.device, self.is_training = device, is_training
        self.offloads_optimizer = offloads_optimizer
        self._in_flight: deque[Arrival] = deque()

    def send_off(self, arrival: Arrival) -> None:
        """Note a gradient under way, and await old ones: each holds a whole unit's gradient."""
        self._in_flight.append(arrival)
        while len(self._in_flight) > MAX_SCATTERS_IN_FLIGHT:
            self._in_flight.popleft().wait()


class ShardedUnit:
    """Parameters in one flat buffer, with their gradients, shards and communication."""

    def __init__(
        self, name: str, specs: list[ParameterSpec], form: TensorForm, options: UnitOptions,
        initializer: Initializer,
    ) -> None:  # fmt: skip
        self.name, self.form, self.options = name, form, options
        # matrices first: weight decay then covers one range of the flat buffer
        self.specs = sorted(specs, key=lambda spec: len(spec.dims) == 1)
        self.parameters: dict[str, ShardParameter] = {}
        self.forward_next: ShardedUnit | None = None
        self.backward_next: ShardedUnit | None = None
        self._remaining = 0
        self._is_finished = False
        self._deferred: list[Callable[[], None]] | None = None
        self._gradient: Tensor | None = None
        self._touched: set[str] = set()
        self._reduction: Pending = Done()
        self._gather: Pending = Done()
        self._is_resident = True
        self._lay_out()
        self._allocate(initializer)

    # ---------------------------------------------------------------- construction
    def _lay_out(self) -> None:
        self.offsets: dict[str, int] = {}
        position = 0
        self.num_decayed = 0
        for spec in self.specs:
            self.offsets[spec.name] = position
            position += torch.Size(local_shape(spec, self.form)).numel()
            if len(spec.dims) > 1:
                self.num_decayed = position
        multiple = self.options.shard.size * _ALIGNMENT
        self.num_elements = position
        self.num_padded = -(-position // multiple) * multiple
        self.shard_size = self.num_padded // self.options.shard.size
        self.shard_start = self.shard_size * self.options.shard.rank

    def _allocate(self, initializer: Initializer) -> None:
        options = self.options
        device = options.device
        self.flat = torch.empty(self.num_padded, dtype=options.compute_dtype, device=device)
        self.flat[self.num_elements :].zero_()
        exact = options.is_training and options.compute_dtype != torch.float32
        source = torch.zeros(self.num_padded, device=device) if exact else self.flat
        for spec in self.specs:
            shape = local_shape(spec, self.form)
            start, count = self.offsets[spec.name], torch.Size(shape).numel()
            initializer.fill(source[start : start + count].view(shape), spec, self.form)
            self.parameters[spec.name] = self._make_parameter(spec, start, shape)
        if exact:
            self.flat.copy_(source)
        self.master = self._own_shard(source)
        if exact or options.zero_stage == 3:
            self.master = self.master.clone()
        if options.offloads_optimizer and options.is_training:
            self.master = self.master.to("cpu", copy=True)
        self.gradient_shard = self._allocate_gradients()
        self.release()

    def _make_parameter(
        self, spec: ParameterSpec, start: int, shape: tuple[int, ...]
    ) -> ShardParameter:
        parameter = ShardParameter(torch.empty(0, device=self.options.device))
        # set through .data, the view keeps a version counter of its own, so refilling the flat
        # buffer between forward and backward (stage 3) is not taken for a change of saved weights
        parameter.data = self.flat.narrow(0, start, torch.Size(shape).numel()).view(shape)
        parameter.spec, parameter.sink = spec, self
        if self.options.is_training:
            parameter.register_post_accumulate_grad_hook(self._take_autograd_gradient)
        else:
            parameter.requires_grad_(False)
        return parameter

    def _allocate_gradients(self) -> Tensor | None:
        if not self.options.is_training:
            return None
        if self.options.zero_stage >= 2:
            return torch.zeros(self.shard_size, device=self.options.device)
        self._gradient = torch.zeros(self.num_padded, device=self.options.device)
        return self._own_shard(self._gradient)

    def _own_shard(self, flat: Tensor) -> Tensor:
        return flat.narrow(0, self.shard_start, self.shard_size)

    # ---------------------------------------------------------------- weights
    def start_gather(self) -> None:
        """Begin to make all weights present (stage 3); free when they are."""
        if self._is_resident:
            return
        self._is_resident = True
        size = self.num_padded * self.flat.element_size()
        self.flat.untyped_storage().resize_(size)
        shard = self.master.to(self.flat.device, self.flat.dtype)
        self._gather = self.options.shard.all_gather(self.flat, shard, is_async=True)

    def gather(self) -> None:
        """Make all weights present."""
        self.start_gather()
        self._gather.wait()
        self._gather = Done()

    def release(self) -> None:
        """Give the memory of the weights back (stage 3)."""
        if self.options.zero_stage == 3 and self._is_resident:
            self._gather.wait()
            self.flat.untyped_storage().resize_(0)
            self._is_resident = False

    def publish(self) -> Pending:
        """After the optimizer step: bring the new weights to every rank (stages 0 to 2)."""
        if self.options.zero_stage == 3:
            return Done()
        own = self._own_shard(self.flat)
        if own.data_ptr() != self.master.data_ptr():
            own.copy_(self.master)
        return self.options.shard.all_gather(self.flat, own, is_async=True)

    # ---------------------------------------------------------------- gradients
    def accumulate(self, parameter: ShardParameter, grad: Tensor) -> None:
        """Add a gradient of the parameter's shape."""
        view, is_fresh = self._gradient_view(parameter)
        if is_fresh:
            view.copy_(grad)
        else:
            view.add_(grad)

    def accumulate_product(self, parameter: ShardParameter, left: Tensor, right: Tensor) -> None:
        """Add `left.T @ right`, or keep the operands while the unit defers."""
        if self._deferred is None:
            self.accumulate_now(parameter, left, right)
        else:
            self._deferred.append(partial(self.accumulate_now, parameter, left, right))

    @property
    def is_deferring(self) -> bool:
        """Whether products of weights' gradients are being put off."""
        return self._deferred is not None

    def accumulate_result(self, parameter: ShardParameter, compute: Callable[[], Tensor]) -> None:
        """Add what `compute` returns, or keep it to be called later while the unit defers."""
        if self._deferred is None:
            self.accumulate(parameter, compute())
        else:
            self._deferred.append(lambda: self.accumulate(parameter, compute()))

    def accumulate_now(self, parameter: ShardParameter, left: Tensor, right: Tensor) -> None:
        """Add `left.T @ right`."""
        if left.dtype != torch.float32:
            self.accumulate(parameter, left.t() @ right)
            return
        view, is_fresh = self._gradient_view(parameter)
        if is_fresh:
            torch.mm(left.t(), right, out=view)
        else:
            view.addmm_(left.t(), right)

    def accumulate_rows(self, parameter: ShardParameter, index: Tensor, rows: Tensor) -> None:
        """Add `rows[k]` to row `index[k]` of the gradient, for all k."""
        view, is_fresh = self._gradient_view(parameter)
        if is_fresh:
            view.zero_()
        view.index_add_(0, index, rows.to(view.dtype))

    def _take_autograd_gradient(self, parameter: Tensor) -> None:
        if parameter.grad is not None:
            # only these have the hook; a fake one is of a class of its own
            self.accumulate(cast("ShardParameter", parameter), parameter.grad)
            parameter.grad = None

    def _gradient_view(self, parameter: ShardParameter) -> tuple[Tensor, bool]:
        if self._gradient is None:
            self._gradient = torch.empty(self.num_padded, device=self.options.device)
            self._gradient[self.num_elements :].zero_()
        name = parameter.spec.name
        is_fresh = name not in self._touched
        self._touched.add(name)
        return self._view(self._gradient, name), is_fresh

    def _view(self, flat: Tensor, name: str) -> Tensor:
        parameter = self.parameters[name]
        return flat.narrow(0, self.offsets[name], parameter.numel()).view(parameter.shape)

    # ---------------------------------------------------------------- passes
    def begin_step(self, num_micro_batches: int, num_users: int) -> None:
        """Expect so many backward passes before the gradient is complete."""
        self._remaining = num_micro_batches * num_users
        self._touched.clear()
        if self.options.zero_stage >= 2 and self.gradient_shard is not None:
            self.gradient_shard.zero_()

    def defer(self) -> None:
        """Keep the weights' gradients of the coming backward pass for later (action I)."""
        self._deferred = []

    def take_deferred(self) -> list[Callable[[], None]]:
        """End of deferral: hand out what was kept, for `run_deferred`."""
        kept, self._deferred = self._deferred or [], None
        return kept

    @torch.no_grad()
    def run_deferred(self, kept: list[Callable[[], None]]) -> None:
        """Compute weights' gradients that were kept (action W), and count the pass as done."""
        for accumulate in kept:
            accumulate()
        self._finish_pass()

    def post_backward(self) -> None:
        """Called inside the backward pass once this unit's part is done."""
        self.release()
        if self._deferred is None:
            self._finish_pass()
            self._is_finished = True

    def finish_backward(self) -> None:
        """Called after the backward pass of a stage, for units that no autograd node called."""
        if self._is_finished:
            self._is_finished = False
        else:
            self.post_backward()
            self._is_finished = False

    def _finish_pass(self) -> None:
        self._remaining -= 1
        if self.options.zero_stage >= 2:
            if self._touched:
                self._start_scatter()
        elif self._remaining == 0:
            self._zero_untouched()
            self._start_reduction()

    def _zero_untouched(self) -> None:
        for name in self.parameters:
            if name not in self._touched and self._gradient is not None:
                self._view(self._gradient, name).zero_()

    def _start_reduction(self) -> None:
        """Stages 0 and 1: reduce the gradient accumulated over all micro-batches."""
        assert self._gradient is not None
        gradient, options = self._gradient, self.options
        travelling = gradient.to(options.reduce_dtype)
        if options.zero_stage == 0:
            pending = options.replicate.all_reduce(travelling, is_async=True)
            target = gradient
        else:
            target = self._own_shard(gradient)
            out = (
                self._own_shard(travelling)
                if travelling is gradient
                else travelling.new_empty(self.shard_size)
            )
            pending = options.shard.reduce_scatter(out, travelling, is_async=True)
            travelling = out
        self._reduction = Arrival(pending, travelling, target, adds=False)

    def _start_scatter(self) -> None:
        """Stages 2 and 3: reduce-scatter a micro-batch's gradient into the shard and free it."""
        self._zero_untouched()
        self._reduction.wait()
        assert self._gradient is not None
        assert self.gradient_shard is not None
        travelling = self._gradient.to(self.options.reduce_dtype)
        out = travelling.new_empty(self.shard_size)
        pending = self.options.shard.reduce_scatter(out, travelling, is_async=True)
        self._reduction = Arrival(pending, out, self.gradient_shard, adds=True)
        self.options.send_off(self._reduction)
        self._gradient = None
        self._touched.clear()

    def finish_reduction(self) -> None:
        """Wait for the reduction over the shard group, then reduce across replicas (HSDP)."""
        self._reduction.wait()
        self._reduction = Done()
        if self._remaining:
            raise RuntimeError(f"{self.name}: {self._remaining} backward passes are missing")
        if self.options.zero_stage == 0 or self.options.replicate.size == 1:
            return
        assert self.gradient_shard is not None
        travelling = self.gradient_shard.to(self.options.reduce_dtype)
        self.options.replicate.all_reduce(travelling).wait()
        if travelling is not self.gradient_shard:
            self.gradient_shard.copy_(travelling)

    def partial_sums(self) -> list[tuple[Group, Tensor]]:
        """Slices of the gradient shard that have to be summed over tensor-parallel peers."""
        result = []
        for spec in self.specs:
            for item in self.form.gradient_groups(spec):
                view = self._shard_slice(spec, item)
                if view.numel():
                    result.append((item.group, view))
        return result

    def _shard_slice(self, spec: ParameterSpec, item: GradientSum) -> Tensor:
        assert self.gradient_shard is not None
        rows = self.parameters[spec.name].shape[0]
        width = self.parameters[spec.name].numel() // rows
        start = self.offsets[spec.name] + item.start * width - self.shard_start
        stop = self.offsets[spec.name] + item.stop * width - self.shard_start
        start, stop = max(0, start), min(self.shard_size, stop)
        return self.gradient_shard[start : max(start, stop)]

    # ---------------------------------------------------------------- inspection
    @property
    def buffers(self) -> dict[str, list[Tensor]]:
        """What is held now of weights, masters and gradients; some may share their storage."""
        gradients = [x for x in (self._gradient, self.gradient_shard) if x is not None]
        return {"parameters": [self.flat], "gradients": gradients, "optimizer": [self.master]}

    @property
    def resident_bytes(self) -> int:
        """Bytes of weights, masters and gradients that stay allocated between steps."""
        storages = [x.untyped_storage() for part in self.buffers.values() for x in part]
        return sum({storage.data_ptr(): storage.nbytes() for storage in storages}.values())

    def full_gradient(self, name: str) -> Tensor:
        """This rank's piece of a parameter's reduced gradient, gathered over the shard group."""
        assert self.gradient_shard is not None
        return self._view(self._gathered(self.gradient_shard), name)

    def full_value(self, name: str) -> Tensor:
        """This rank's piece of a parameter in fp32, gathered over the shard group."""
        return self._view(self._gathered(self.master.float()), name)

    def _gathered(self, shard: Tensor) -> Tensor:
        full = torch.empty(self.num_padded, dtype=shard.dtype, device=shard.device)
        self.options.shard.all_gather(full, shard.contiguous()).wait()
        return full
