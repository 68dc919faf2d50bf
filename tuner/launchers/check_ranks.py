"""What the ranks of a cluster check do: meet, reduce, and compute a little, each timed.

`run_rank` has the worker's signature. It reports one `RankReport` line whose `breakdown_s` holds
`compute` (a fixed matrix product), `all_reduce` (4 MB over all ranks) and `meet` (rendezvous).
"""

import importlib
import socket
import statistics
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from trainer.contract import (
    JOB_FILE,
    FailureKind,
    FailureReport,
    Phase,
    RankReport,
    TrialJob,
    report_file,
)

_REPEATS = 5
_SIZE = 512
_REDUCED_FLOATS = 1 << 20
CHECK_FLOPS = 2 * _SIZE**3
"""Operations of the timed matrix product."""
CHECK_REDUCED_BYTES = 4 * _REDUCED_FLOATS
"""Bytes of the timed all-reduce."""


def run_rank(folder: str, rank: int, world_size: int, local_rank: int, init_method: str) -> int:
    """Check one rank; the exit code is 0 when all went well."""
    report = Path(folder) / report_file(rank)
    job = TrialJob.model_validate_json((Path(folder) / JOB_FILE).read_text())
    try:
        line: RankReport | FailureReport = _check(job, rank, world_size, local_rank, init_method)
    except Exception as error:
        line = FailureReport(
            failure=FailureKind.COMM, phase=Phase.INIT, rank=rank, time_s=time.time(),
            message=f"{type(error).__name__}: {error}".splitlines()[0],
        )  # fmt: skip
    with report.open("a") as stream:
        stream.write(line.model_dump_json() + "\n")
    return 0 if isinstance(line, RankReport) else 1


def _check(
    job: TrialJob, rank: int, world_size: int, local_rank: int, init_method: str
) -> RankReport:
    torch: Any = importlib.import_module("torch")
    distributed: Any = importlib.import_module("torch.distributed")
    is_gpu = job.device_kind != "cpu"
    device = torch.device("cuda", local_rank) if is_gpu else torch.device("cpu")
    if is_gpu:
        torch.cuda.set_device(device)
    started_s = time.perf_counter()
    distributed.init_process_group(
        "nccl" if is_gpu else "gloo", init_method=init_method, rank=rank, world_size=world_size
    )
    distributed.barrier()
    meet_s = time.perf_counter() - started_s
    wait = torch.cuda.synchronize if is_gpu else _nothing
    square = torch.ones(_SIZE, _SIZE, device=device)
    compute_s = _median_s(lambda: square @ square, wait)
    reduced = torch.ones(_REDUCED_FLOATS, device=device)
    reduce_s = _median_s(lambda: distributed.all_reduce(reduced), wait)
    total = torch.tensor([float(rank)], device=device)
    distributed.all_reduce(total)
    if int(total.item()) != world_size * (world_size - 1) // 2:
        raise RuntimeError(f"an all-reduce gave {total.item()}: the collectives compute wrongly")
    distributed.destroy_process_group()
    return RankReport(
        rank=rank, hostname=socket.gethostname(), device=str(device), coordinates={"dp": rank},
        stages=[0], layers=[], num_parameters=0, peak_memory_bytes=0, state_memory_bytes=0,
        breakdown_s={"compute": compute_s, "all_reduce": reduce_s, "meet": meet_s},
    )  # fmt: skip


def _median_s(action: Callable[[], object], wait: Callable[[], object]) -> float:
    seconds = []
    for _ in range(_REPEATS):
        started_s = time.perf_counter()
        action()
        wait()
        seconds.append(time.perf_counter() - started_s)
    return statistics.median(seconds)


def _nothing() -> None:
    """On CPU nothing is under way when a call returns."""
