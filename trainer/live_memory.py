"""`LiveMemory`: bytes of live tensors and FLOPs, counted below autograd as operations run.

Every storage is counted from the operation that makes it until nothing holds it any more; views
count nothing. Works alike on real tensors and on fake ones, which have sizes but no data.
"""

import weakref
from collections.abc import Callable
from functools import cache
from typing import Any, Self

import torch
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves
from torch.utils.flop_counter import flop_registry

aten, c10d = torch.ops.aten, torch.ops.c10d

_CPU_ATTENTION = aten._scaled_dot_product_flash_attention_for_cpu
_CPU_ATTENTION_BACKWARD = aten._scaled_dot_product_flash_attention_for_cpu_backward
_UNINITIALISED = (
    aten.empty, aten.empty_like, aten.empty_strided, aten.new_empty, aten.new_empty_strided,
)  # fmt: skip
_GATHERS = (c10d._allgather_base_, c10d.allgather_)
_PRODUCTS = (aten.mm, aten.addmm, aten.addmm_, aten.bmm, aten.baddbmm)
COMPILED_BYTES = 560 * 2**10
"""What torch's CPU library keeps of a bf16 product that it compiled, of every shape and layout.

Measured with torch 2.13 on AVX-512: 0.51 to 0.60 MiB each for 31 products of 6 to 800 MFLOP.
fp32 and fp16 products keep nothing.
"""


def storage_key(x: Tensor) -> int:
    """What tells a tensor's storage from all others alive, also for tensors without data."""
    return int(x.untyped_storage()._cdata)


class LiveMemory(TorchDispatchMode):
    """Counts live bytes, their peaks by section of the program, and FLOPs.

    Args:
        as_resident: count what is resident on CPU under gloo. Uninitialised storages are counted
            from the first operation that writes to them. All-gather receives into a buffer of its
            own, as large as the result, which is added while it runs. What the library compiles
            for products in bf16 is counted from the first of each on, and stays.
        on_peak: called with the live bytes at every new highest count.

    Values read back from fake tensors are zero.
    """

    def __init__(
        self, *, as_resident: bool = False, on_peak: Callable[[int], None] | None = None
    ) -> None:
        super().__init__()
        self.live_bytes = self.peak_bytes = self.flops = self.num_ops = 0
        self.peaks: dict[str, int] = {}
        self.section = ""
        self.sizes: dict[int, int] = {}
        self._compiled: set[tuple[Any, ...]] = set()
        self._as_resident, self._on_peak = as_resident, on_peak
        self._resize: Any = None

    @property
    def compiled_bytes(self) -> int:
        """What of the live bytes is code and no storage."""
        return COMPILED_BYTES * len(self._compiled)

    def start(self) -> None:
        """Forget peaks and FLOPs; what is alive stays counted."""
        self.peak_bytes = self.flops = self.num_ops = 0
        self.peaks = {}

    def enter_section(self, name: str) -> None:
        """Count peaks under another name from now on."""
        self.section = name
        self._note_peak(0)

    def __enter__(self) -> Self:
        """Begin to count, resizes of storages included."""
        original = self._resize = torch.UntypedStorage.resize_

        def resize(storage: torch.UntypedStorage, size: int) -> Any:
            result = original(storage, size)
            self._set_size(storage)
            return result

        torch.UntypedStorage.resize_ = resize  # type: ignore[assignment,method-assign]
        super().__enter__()
        return self

    def __exit__(self, *exception: Any) -> None:
        """Stop counting."""
        torch.UntypedStorage.resize_ = self._resize  # type: ignore[method-assign]
        super().__exit__(*exception)

    def __torch_dispatch__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: Any = None
    ) -> Any:
        """Run an operation and count what it made."""
        packet = func._overloadpacket
        if packet is aten._local_scalar_dense and _is_fake(args[0]):
            return 0 if not args[0].is_floating_point() else 0.0
        out = func(*args, **(kwargs or {}))
        self.num_ops += 1
        self.flops += _flops(packet, args, kwargs or {}, out)
        for x in self._counted(func, args, out):
            if isinstance(x, Tensor):
                self._set_size(x.untyped_storage())
        if self._as_resident and packet in _GATHERS:
            self._note_peak(_num_bytes(args[0]))
        if self._as_resident and packet in _PRODUCTS:
            self._note_product(packet, [x for x in args if isinstance(x, Tensor)])
        return out

    def _counted(self, func: Any, args: Any, out: Any) -> list[Any]:
        """Tensors of an operation whose storages are in use from here on."""
        if not self._as_resident:
            return tree_leaves(out)
        if func.namespace == "c10d":  # whose schemas do not say what is written
            return tree_leaves(args)
        if func._overloadpacket in _UNINITIALISED or func.is_view:
            return []
        return tree_leaves([out, [args[at] for at in _written(func) if at < len(args)]])

    def _set_size(self, storage: torch.UntypedStorage) -> None:
        key, size = storage._cdata, storage.nbytes()
        known = self.sizes.get(key)
        if known == size:
            return
        if known is None:
            weakref.finalize(storage, self._forget, key).atexit = False
        self.sizes[key] = size
        self.live_bytes += size - (known or 0)
        self._note_peak(0)

    def _note_product(self, packet: Any, operands: list[Tensor]) -> None:
        """Count the code of a product that is run for the first time."""
        if operands[0].device.type != "cpu" or operands[0].dtype != torch.bfloat16:
            return
        known = len(self._compiled)
        self._compiled.add((packet, *((x.shape, x.stride()) for x in operands)))
        self.live_bytes += COMPILED_BYTES * (len(self._compiled) - known)
        self._note_peak(0)

    def _forget(self, key: int) -> None:
        self.live_bytes -= self.sizes.pop(key, 0)

    def _note_peak(self, passing_bytes: int) -> None:
        live = self.live_bytes + passing_bytes
        if live > self.peaks.get(self.section, 0):
            self.peaks[self.section] = live
        if live > self.peak_bytes:
            self.peak_bytes = live
            if self._on_peak is not None:
                self._on_peak(live)


@cache
def _written(func: Any) -> tuple[int, ...]:
    """Places of the arguments that an operation writes to; `out=` is its result anyway."""
    arguments = enumerate(func._schema.arguments)
    return tuple(at for at, x in arguments if x.alias_info is not None and x.alias_info.is_write)


def _is_fake(x: Tensor) -> bool:
    return type(x).__name__ == "FakeTensor"


def _num_bytes(tree: Any) -> int:
    return sum(x.numel() * x.element_size() for x in tree_leaves(tree) if isinstance(x, Tensor))


def _flops(packet: Any, args: tuple[Any, ...], kwargs: dict[str, Any], out: Any) -> int:
    """Multiplications and additions of matrix products; attention counts its full square."""
    if packet is aten.addmm_:
        return 2 * int(args[1].numel()) * int(args[2].shape[1])
    if packet is _CPU_ATTENTION:
        return _attention_flops(args[0], args[1], 2)
    if packet is _CPU_ATTENTION_BACKWARD:
        return _attention_flops(args[1], args[2], 4)
    if packet in flop_registry:
        return int(flop_registry[packet](*args, **kwargs, out_val=out))
    return 0


def _attention_flops(query: Tensor, key: Tensor, num_products: int) -> int:
    """Products of queries by keys: 2 forward, 4 backward; the kernel's repeated one is free."""
    return num_products * 2 * query.numel() * int(key.shape[2])
