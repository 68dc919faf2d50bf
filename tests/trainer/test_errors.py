"""Every exception has a reason that a trial can report."""

import pytest
import torch
import torch.distributed as dist

from trainer.contract import FailureKind
from trainer.errors import (
    DivergedError,
    ImplausibleError,
    InjectedFaultError,
    JobError,
    TrainerError,
    UnsupportedConfigError,
    classify,
)


@pytest.mark.parametrize(
    ("error", "kind"),
    [
        (MemoryError(), FailureKind.OOM),
        (torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 2 GiB"), FailureKind.OOM),
        (RuntimeError("HIP out of memory."), FailureKind.OOM),
        (
            RuntimeError("[enforce fail] DefaultCPUAllocator: can't allocate memory: you tried"),
            FailureKind.OOM,
        ),
        (RuntimeError("std::bad_alloc"), FailureKind.OOM),
        (RuntimeError("NCCL error: unhandled cuda error, out of memory"), FailureKind.OOM),
        (RuntimeError("[gloo/transport/tcp/pair.cc] Connection closed by peer"), FailureKind.COMM),
        (dist.DistNetworkError("The client socket has timed out"), FailureKind.COMM),
        (ConnectionResetError(), FailureKind.COMM),
        (UnsupportedConfigError("no"), FailureKind.ILLEGAL),
        (ImplausibleError("no"), FailureKind.IMPLAUSIBLE),
        (DivergedError("no"), FailureKind.DIVERGED),
        (JobError("no"), FailureKind.LAUNCH),
        (InjectedFaultError("no"), FailureKind.CRASH),
        (ZeroDivisionError("gloo"), FailureKind.CRASH),
        (RuntimeError("shape mismatch"), FailureKind.CRASH),
    ],
)
def test_the_reason_of_an_exception(error, kind):
    assert classify(error) == kind


def test_the_real_allocator_is_recognised():
    with pytest.raises(RuntimeError) as caught:
        torch.empty(2**50, dtype=torch.uint8)
    assert classify(caught.value) == FailureKind.OOM


def test_the_hint_follows_the_message():
    assert str(TrainerError("wrong", hint="do this")) == "wrong (do this)"
    assert str(TrainerError("wrong")) == "wrong"
