"""Errors of the trainer, and how any exception maps to the reason that a trial reports.

TrainerError
├── JobError                a job file that cannot be read or speaks another contract version
├── UnsupportedConfigError  a point that the kernel cannot run (kind `illegal`)
├── ImplausibleError        what ran is not what the job asked for (kind `implausible`)
├── DivergedError           the loss is not a finite number (kind `diverged`)
└── InjectedFaultError      a crash that a test asked for
"""

from typing import ClassVar

import torch

from trainer.contract import FailureKind


class TrainerError(Exception):
    """Base of this package: a sentence that says what is wrong, and a hint that may help."""

    failure: ClassVar[FailureKind] = FailureKind.CRASH

    def __init__(self, message: str, hint: str = "") -> None:
        super().__init__(message)
        self.message = message
        self.hint = hint

    def __str__(self) -> str:
        return f"{self.message} ({self.hint})" if self.hint else self.message


class JobError(TrainerError):
    """The job file is missing, malformed, or of another contract version."""

    failure = FailureKind.LAUNCH


class UnsupportedConfigError(TrainerError):
    """The kernel cannot run this parallel configuration; the space should have refused it."""

    failure = FailureKind.ILLEGAL


class ImplausibleError(TrainerError):
    """Counts of what really ran differ from the job, or a figure is above what hardware can do."""

    failure = FailureKind.IMPLAUSIBLE


class DivergedError(TrainerError):
    """The loss became infinite or not a number."""

    failure = FailureKind.DIVERGED


class InjectedFaultError(TrainerError):
    """A crash asked for by the job's `fault`."""


_OOM_TEXTS = (
    "out of memory",
    "can't allocate memory",
    "cannot allocate memory",
    "not enough memory",
    "bad_alloc",
    "defaultcpuallocator",
    "could not create a memory",
)
_COMM_TEXTS = (
    "connection closed by peer",
    "connection reset",
    "connection refused",
    "broken pipe",
    "timed out waiting",
    "gloo/",
    "nccl",
    "processgroup",
    "tcpstore",
    "filestore",
    "socket",
)


def classify(error: BaseException) -> FailureKind:
    """Reason that a trial reports for an exception.

    Allocation failures come as `MemoryError`, `torch.OutOfMemoryError` (CUDA and ROCm) or a
    `RuntimeError` whose text names the allocator (CPU), so the text has to be read too.
    """
    if isinstance(error, TrainerError):
        return error.failure
    if isinstance(error, MemoryError | torch.OutOfMemoryError):
        return FailureKind.OOM
    text = str(error).lower()
    if any(part in text for part in _OOM_TEXTS):
        return FailureKind.OOM
    if isinstance(error, torch.distributed.DistError | ConnectionError):
        return FailureKind.COMM
    if isinstance(error, RuntimeError | OSError) and any(part in text for part in _COMM_TEXTS):
        return FailureKind.COMM
    return FailureKind.CRASH
