"""Parameters: what each one is in the whole model, and which piece of it a rank holds.

A `ParameterSpec` describes a full parameter independently of any layout. Each of its dimensions is
a row of `Part`s: a fused query-key-value matrix, for example, has the parts `heads`, `kv_heads` and
`kv_heads` in its first dimension. A tensor-parallel form turns each part into a range, so the same
description serves every layout.

Values come from a periodic table of random numbers whose phase is a hash of the parameter's name:
element `k` of a parameter is `table[(phase + k) % period]`. Any rank can fill any piece without
making the whole, at the speed of a copy, and equal names give equal values under every layout.
"""

import hashlib
from collections.abc import Callable
from dataclasses import dataclass
from typing import Protocol

import torch
from torch import Tensor, nn

ROW_BIAS = ".row_bias"  # names of the biases of row linear layers end so
ROUTER = ".router.weight"  # and so those of the routers of mixtures of experts
_PERIOD = 1_000_003  # a prime, so that rows of no usual width repeat


@dataclass(frozen=True)
class Part:
    """`size` neighbouring indices of a dimension that a layout splits as one.

    Labels: `hidden`, `position`, `vocab`, `heads` (query heads x head_dim), `kv_heads`, `ffn`,
    `expert`. `granularity` is the number of indices that must stay together (head_dim for heads).
    """

    label: str
    size: int
    granularity: int = 1


@dataclass(frozen=True)
class Range:
    """Indices `start..stop` of a part that a rank holds, padded with zeros to `padded` indices.

    `is_owner` is true on exactly one rank of those that hold the same range; parameters are counted
    there.
    """

    start: int
    stop: int
    padded: int
    is_owner: bool = True

    @property
    def size(self) -> int:
        """Real indices, without padding."""
        return self.stop - self.start


@dataclass(frozen=True)
class ParameterSpec:
    """A full parameter: name, parts per dimension, and how it is initialised.

    With `std` the values are normal with that deviation, otherwise all equal `constant`.
    """

    name: str
    dims: tuple[tuple[Part, ...], ...]
    std: float | None = None
    constant: float = 0.0

    @property
    def shape(self) -> tuple[int, ...]:
        """Shape of the whole parameter."""
        return tuple(sum(part.size for part in parts) for parts in self.dims)


class Layout(Protocol):
    """The part of a tensor-parallel form that says which piece of a parameter this rank holds."""

    def range_of(self, spec: ParameterSpec, dim: int, part: Part) -> Range:
        """Range of `part` (in dimension `dim` of `spec`) that this rank holds."""


class GradientSink(Protocol):
    """Where a parameter's gradients go; a ZeRO unit."""

    def accumulate(self, parameter: "ShardParameter", grad: Tensor) -> None:
        """Add a gradient of the parameter's shape."""

    def accumulate_product(self, parameter: "ShardParameter", left: Tensor, right: Tensor) -> None:
        """Add `left.T @ right`, now or, under a split backward pass, when weights' turn comes."""

    def accumulate_now(self, parameter: "ShardParameter", left: Tensor, right: Tensor) -> None:
        """Add `left.T @ right` now, deferral or not."""

    def accumulate_result(self, parameter: "ShardParameter", compute: Callable[[], Tensor]) -> None:
        """Add what `compute` returns, now or when weights' turn comes."""

    @property
    def is_deferring(self) -> bool:
        """Whether weights' turn comes later."""

    def accumulate_rows(self, parameter: "ShardParameter", index: Tensor, rows: Tensor) -> None:
        """Add `rows[k]` to row `index[k]` of the gradient, for all k."""


class ShardParameter(nn.Parameter):
    """This rank's piece of a parameter; its storage lies in the flat buffer of its unit."""

    spec: ParameterSpec
    sink: GradientSink


def local_ranges(spec: ParameterSpec, layout: Layout) -> list[list[tuple[int, Range]]]:
    """Held ranges of every dimension, with the offset of their part in the full one."""
    result = []
    for dim, parts in enumerate(spec.dims):
        offset, ranges = 0, []
        for part in parts:
            ranges.append((offset, layout.range_of(spec, dim, part)))
            offset += part.size
        result.append(ranges)
    return result


def local_shape(spec: ParameterSpec, layout: Layout) -> tuple[int, ...]:
    """Shape of the piece that this rank holds, padding included."""
    return tuple(sum(held.padded for _, held in ranges) for ranges in local_ranges(spec, layout))


def num_owned(spec: ParameterSpec, layout: Layout) -> int:
    """Real elements that are counted on this rank; over ranks they add up to the whole."""
    count = 1
    for ranges in local_ranges(spec, layout):
        count *= sum(held.size for _, held in ranges if held.is_owner)
    return count


def num_held(spec: ParameterSpec, layout: Layout) -> int:
    """Real elements that this rank holds, whether others hold them too or not."""
    count = 1
    for ranges in local_ranges(spec, layout):
        count *= sum(held.size for _, held in ranges)
    return count


def cut(full: Tensor, spec: ParameterSpec, layout: Layout, first_dim: int = 0) -> Tensor:
    """This rank's piece of a full tensor of the parameter's shape (weights or gradients).

    Dimensions before `first_dim` are taken as cut already.
    """
    for dim, ranges in enumerate(local_ranges(spec, layout)):
        if dim < first_dim:
            continue
        pieces = []
        for offset, held in ranges:
            pieces.append(full.narrow(dim, offset + held.start, held.size))
            if held.padded > held.size:
                shape = list(full.shape)
                shape[dim] = held.padded - held.size
                pieces.append(full.new_zeros(shape))
        full = pieces[0] if len(pieces) == 1 else torch.cat(pieces, dim)
    return full


class Initializer:
    """Fills parameters with values that depend on the seed and the parameter's name alone."""

    def __init__(self, seed: int, device: torch.device) -> None:
        generator = torch.Generator().manual_seed(seed)
        table = torch.randn(_PERIOD, generator=generator)
        self._seed, self._table = seed, torch.cat([table, table]).to(device)

    def full(self, spec: ParameterSpec) -> Tensor:
        """The whole parameter in fp32."""
        return self._rows(spec, 0, spec.shape[0])

    def fill(self, out: Tensor, spec: ParameterSpec, layout: Layout) -> None:
        """Write this rank's piece into `out`, made in blocks of rows to spare memory."""
        row_ranges = local_ranges(spec, layout)[0]
        out.zero_()
        position = 0
        width = max(1, sum(spec.shape[1:]))
        step = max(1, _PERIOD // width)
        for offset, held in row_ranges:
            for start in range(held.start, held.stop, step):
                stop = min(start + step, held.stop)
                rows = self._rows(spec, offset + start, offset + stop)
                place = position + start - held.start
                out.narrow(0, place, stop - start).copy_(cut(rows, spec, layout, first_dim=1))
            position += held.padded

    def _rows(self, spec: ParameterSpec, start: int, stop: int) -> Tensor:
        shape = (stop - start, *spec.shape[1:])
        if spec.std is None:
            return self._table.new_full(shape, spec.constant)
        width = 1
        for size in spec.shape[1:]:
            width *= size
        values = self._table.new_empty((stop - start) * width)
        phase = self._phase(spec.name) + start * width
        for begin in range(0, values.numel(), _PERIOD):
            part = values[begin : begin + _PERIOD]
            at = (phase + begin) % _PERIOD
            torch.mul(self._table[at : at + part.numel()], spec.std, out=part)
        return values.view(shape)

    def _phase(self, name: str) -> int:
        digest = hashlib.sha256(f"{self._seed}:{name}".encode()).digest()
        return int.from_bytes(digest[:4], "little") % _PERIOD
