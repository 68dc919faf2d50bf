"""Why a trainer's run failed, from the words of its log: the same for all trainers."""

import re
import time
from collections.abc import Sequence
from dataclasses import dataclass

from trainer.contract import FailureKind, FailureReport, Phase
from tuner.adapters.log_lines import LogLine

_MAX_MESSAGE = 500


@dataclass(frozen=True)
class FailurePattern:
    """A line that names a failure.

    Attributes:
        kind: What it means.
        regex: What the line contains. A group `rank` is the rank that it speaks of.
        source: Who prints it.
        example: A line of this kind.
    """

    kind: FailureKind
    regex: re.Pattern[str]
    source: str
    example: str


def _pattern(kind: FailureKind, source: str, regex: str, example: str) -> FailurePattern:
    return FailurePattern(kind, re.compile(regex), source, example)


# Order matters: the first that matches a line gives its kind.
FAILURE_PATTERNS: Sequence[FailurePattern] = (
    _pattern(
        FailureKind.OOM, "torch on CUDA and ROCm",
        r"(?:OutOfMemoryError|RuntimeError): (?:CUDA|HIP) out of memory"
        r"|(?:CUDA|HIP) out of memory\. Tried to allocate",
        "torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 2.00 GiB. GPU 3 has a total "
        "capacity of 79.15 GiB of which 1.31 GiB is free.",
    ),
    _pattern(
        FailureKind.OOM, "torch on CPU",
        r"DefaultCPUAllocator: (?:can't|cannot|not enough) |std::bad_alloc|^MemoryError\b"
        r"|could not create a memory object",
        "RuntimeError: [enforce fail at alloc_cpu.cpp:124] . DefaultCPUAllocator: can't allocate "
        "memory: you tried to allocate 68719476736 bytes. Error code 12 (Cannot allocate memory)",
    ),
    _pattern(
        FailureKind.OOM, "CUDA libraries and NCCL",
        r"CUBLAS_STATUS_ALLOC_FAILED|CUDNN_STATUS_ALLOC_FAILED|cudaErrorMemoryAllocation"
        r"|(?:Cuda|CUDA|HIP) (?:failure|error):? (?:\d+ )?'?out of memory",
        "RuntimeError: CUDA error: CUBLAS_STATUS_ALLOC_FAILED when calling `cublasCreate(handle)`",
    ),
    _pattern(
        FailureKind.OOM, "Slurm and the kernel",
        r"oom[-_ ]kill|Out Of Memory|Killed process \d+ .*(?:anon|total)-",
        "slurmstepd: error: Detected 1 oom_kill event in StepId=4711.0. Some of the step tasks "
        "have been OOM Killed.",
    ),
    _pattern(
        FailureKind.DIVERGED, "Megatron's check of loss and gradients",
        r"(?:[Rr]ank (?P<rank>\d+)[:,].*)?found (?:NaN|Inf) in local (?:forward loss|grad)"
        r"|Unexpected result (?:nan|inf)",
        "AssertionError: Rank 5: found NaN in local forward loss calculation. Device: 5, node: n1",
    ),
    _pattern(
        FailureKind.DIVERGED, "torchtitan, DeepSpeed and scripts",
        r"(?i)\bloss (?:is|became|was) (?:nan|inf(?:inite)?|not finite)"
        r"|Current loss scale already at minimum",
        "Exception: Current loss scale already at minimum - cannot decrease scale anymore. "
        "Exiting run.",
    ),
    _pattern(
        FailureKind.ILLEGAL, "Megatron's, torchtitan's and DeepSpeed's checks of a layout",
        r"(?:AssertionError|ValueError|RuntimeError|Exception): .*"
        r"(?:(?:is |must be |should be )?(?:not )?(?:divisible|a multiple)|Check batch related"
        r"|not supported with|can only be used with|is incompatible with|Invalid parallel dims)",
        "AssertionError: num_attention_heads (14) must be a multiple of "
        "tensor_model_parallel_size (4).",
    ),
    _pattern(
        FailureKind.COMM, "NCCL and RCCL",
        r"\[[Rr]ank (?P<rank>\d+)\].*Watchdog caught collective operation timeout"
        r"|Watchdog caught collective operation timeout"
        r"|DistBackendError: |NCCL error|NCCL WARN .*(?:failed|[Tt]imeout)|unhandled system error",
        "[rank3]:[E1201 07:31:24.178 ProcessGroupNCCL.cpp:616] [Rank 3] Watchdog caught collective "
        "operation timeout: WorkNCCL(SeqNum=42, OpType=ALLREDUCE, Timeout(ms)=600000) ran for "
        "600032 milliseconds before timing out.",
    ),
    _pattern(
        FailureKind.COMM, "gloo and the rendezvous",
        r"gloo/.*(?:Connection closed|Connection reset|Timed out|timeout)|\bConnection (?:closed|"
        r"reset) by peer|DistNetworkError|DistStoreError|RendezvousTimeoutError|EADDRINUSE"
        r"|The server socket has failed to",
        "RuntimeError: [../third_party/gloo/gloo/transport/tcp/pair.cc:534] Connection closed by "
        "peer [127.0.0.1]:41873",
    ),
    _pattern(
        FailureKind.PREEMPTED, "Slurm",
        r"CANCELLED AT .* DUE TO (?:PREEMPTION|NODE FAILURE)",
        "slurmstepd: error: *** STEP 4711.0 ON n7 CANCELLED AT 2026-11-30T10:11:12 DUE TO "
        "PREEMPTION ***",
    ),
    _pattern(
        FailureKind.CRASH, "argparse",
        r"\berror: (?:unrecognized arguments|argument |the following arguments are required)",
        "pretrain_gpt.py: error: unrecognized arguments: --no-such-flag",
    ),
    _pattern(
        FailureKind.CRASH, "Python",
        r"^\s*(?:[A-Za-z_][\w.]*\.)?[A-Z]\w*(?:Error|Exception|Interrupt)(?:: |$)",
        "FileNotFoundError: [Errno 2] No such file or directory: 'corpus.bin'",
    ),
    _pattern(
        FailureKind.CRASH, "torchrun",
        r"traceback : Signal \d+ \((?P<signal>SIG\w+)\) received by PID",
        "  traceback : Signal 11 (SIGSEGV) received by PID 4711",
    ),
)  # fmt: skip
# What torchrun itself raises once a rank has failed: an echo of what that rank said.
_ECHO = re.compile(r"ChildFailedError|SignalException|torch\.distributed\.elastic|ProcessRaisedEx")
_OWN_RANK = re.compile(r"\[[Rr]ank ?(\d+)\]|\brank ?[:=]? ?(\d+)\b", re.IGNORECASE)


def failure_in(line: LogLine, phase: Phase, step: int | None) -> FailureReport | None:
    """The failure that a line of the log names; none for the usual lines.

    Args:
        line: The line.
        phase: How far the trial had come.
        step: Steps that had ended.
    """
    if _ECHO.search(line.text):
        return None
    for pattern in FAILURE_PATTERNS:
        match = pattern.regex.search(line.text)
        if match is not None:
            return FailureReport(
                failure=pattern.kind, phase=phase, rank=_rank(line, match), step=step,
                message=line.text.strip()[:_MAX_MESSAGE], time_s=time.time(),
            )  # fmt: skip
    return None


def _rank(line: LogLine, match: re.Match[str]) -> int | None:
    named = match.groupdict().get("rank")
    if named is not None:
        return int(named)
    if line.rank is not None:
        return line.rank
    own = _OWN_RANK.search(line.text)
    return int(next(filter(None, own.groups()))) if own else None


def worth_keeping(failures: Sequence[FailureReport]) -> list[FailureReport]:
    """Failures in the order of belief: a plain crash is an echo where anything else was said."""
    return sorted(failures, key=lambda report: report.failure is FailureKind.CRASH)
