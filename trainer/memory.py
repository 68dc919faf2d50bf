"""Peak memory of a rank, and its limit.

On an accelerator the caching allocator keeps the count. On CPU the kernel does: writing 5 to
`/proc/self/clear_refs` resets the high-water mark of resident memory, which is then read. Pages of
files (torch's libraries, read in bit by bit) and the anonymous memory before the model was built
are subtracted. That is honest only if freed tensors leave the process: glibc must serve them by
mmap, as `return_freed_memory` makes it do. It costs page faults, so the peak is taken in a warm-up
step and `keep_freed_memory` is called before the clock.
"""

import ctypes
import resource
from pathlib import Path

import torch

_MMAP_THRESHOLD, _TRIM_THRESHOLD, _TOP_PAD = -3, -1, -2  # of mallopt(3)
_SMALL, _LARGE = 64 * 2**10, 32 * 2**20  # glibc takes no mmap threshold above 32 MiB
_STATUS = Path("/proc/self/status")
_CLEAR_REFS = Path("/proc/self/clear_refs")


def _mallopt(option: int, value: int) -> None:
    call = getattr(ctypes.CDLL(None), "mallopt", None)
    if call is not None:
        call(option, value)


def return_freed_memory() -> None:
    """Make glibc give every freed tensor back to the system."""
    _mallopt(_MMAP_THRESHOLD, _SMALL)
    _mallopt(_TRIM_THRESHOLD, _SMALL)


def keep_freed_memory() -> None:
    """Make glibc keep freed tensors for the next allocation, which spares page faults."""
    _mallopt(_MMAP_THRESHOLD, _LARGE)
    _mallopt(_TRIM_THRESHOLD, 2**31 - 1)
    _mallopt(_TOP_PAD, _LARGE)


def _status_bytes(key: str) -> int:
    for line in _STATUS.read_text().splitlines():
        if line.startswith(key + ":"):
            return int(line.split()[1]) * 1024
    return 0


class MemoryMeter:
    """Peak bytes of this rank on its device, above what it held before the model was built."""

    def __init__(self, device: torch.device) -> None:
        self._device = device
        self._is_cpu = device.type == "cpu"
        self._base = _status_bytes("RssAnon") if self._is_cpu else 0

    def reset(self) -> None:
        """Forget the peak so far."""
        if not self._is_cpu:
            torch.cuda.reset_peak_memory_stats(self._device)
            return
        try:
            _CLEAR_REFS.write_text("5")
        except OSError:  # some containers forbid it; the mark then covers the whole life
            return

    def peak_bytes(self) -> int:
        """Peak since `reset`."""
        if not self._is_cpu:
            return int(torch.cuda.max_memory_allocated(self._device))
        files = _status_bytes("RssFile") + _status_bytes("RssShmem")
        return max(0, _status_bytes("VmHWM") - files - self._base)


def limit_memory(limit_bytes: int) -> None:
    """Let this process allocate no more than `limit_bytes` beyond what it holds now (CPU).

    The limit is on private writable memory (RLIMIT_DATA), so an allocation beyond it fails with an
    error that names the rank, where a cgroup would kill without a word.
    """
    _, hard = resource.getrlimit(resource.RLIMIT_DATA)
    soft = _status_bytes("VmData") + limit_bytes
    if hard != resource.RLIM_INFINITY:
        soft = min(soft, hard)
    resource.setrlimit(resource.RLIMIT_DATA, (soft, hard))
