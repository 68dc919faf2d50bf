"""`python -m trainer.calibrate --json`: measure one node, for the description of a cluster.

Every rank of the node measures at the same time, as ranks of a trial share its cores, memory and
links: the rate of matrix products by shape, memory bandwidth, all-reduces and point-to-point
messages over groups of every size, and the host's time for a layer too small to compute on.
"""

import argparse
import json
import os
import socket
import statistics
import time
from collections.abc import Callable
from functools import partial
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, multiprocessing, nn

from trainer.peak import measure_peak_flops_per_s

GEMM_ROWS = (4, 16, 64, 256, 1024, 2048)
GEMM_WIDTH = 1024
STREAM_BYTES = {"cpu": 32 * 2**20, "cuda": 1024 * 2**20}
SMALL_BYTES, LARGE_BYTES = 4096, 8 * 2**20
_SIZES = (SMALL_BYTES, LARGE_BYTES)
REPEATS = 5


def median_s(work: Callable[[], Any], device: str, repeats: int = REPEATS) -> float:
    """Median seconds of `work`, after one run that does not count."""
    times = []
    for attempt in range(repeats + 1):
        _wait(device)
        start = time.perf_counter()
        work()
        _wait(device)
        if attempt:
            times.append(time.perf_counter() - start)
    return statistics.median(times)


def _wait(device: str) -> None:
    if device == "cuda":
        torch.cuda.synchronize()


def gemm_curve(dtype: torch.dtype, device: str) -> list[dict[str, float]]:
    """FLOP/s of `[rows, width] @ [width, width]`: small products do not fill a device."""
    weight = torch.randn(GEMM_WIDTH, GEMM_WIDTH, device=device).to(dtype)
    curve = []
    for rows in GEMM_ROWS:
        x = torch.randn(rows, GEMM_WIDTH, device=device).to(dtype)
        seconds = median_s(partial(torch.matmul, x, weight), device)
        rate = 2.0 * rows * GEMM_WIDTH**2 / seconds
        curve.append(
            {"rows": rows, "inner": GEMM_WIDTH, "columns": GEMM_WIDTH, "flops_per_s": rate}
        )
    return curve


def memory_bandwidth(device: str) -> float:
    """Bytes per second of an element-wise sum: two streams read, one written."""
    count = STREAM_BYTES[device] // 4
    a, b, c = (torch.ones(count, device=device) for _ in range(3))
    return 3.0 * 4.0 * count / median_s(lambda: torch.add(a, b, out=c), device)


def host_times(device: str) -> tuple[float, float]:
    """Seconds of a decoder layer of almost no work, forward and backward."""
    layer = nn.TransformerEncoderLayer(32, 2, 64, dropout=0.0, batch_first=True, device=device)
    x = torch.randn(1, 4, 32, device=device, requires_grad=True)
    forward = median_s(lambda: layer(x), device, 30)
    both = median_s(lambda: layer(x).sum().backward(), device, 30)
    return forward, max(both - forward, 0.0)


def _message_s(num_bytes: int, rank: int, device: str) -> float:
    """Half of a round trip between ranks 0 and 1; 0 on the others."""
    data = torch.zeros(num_bytes // 4, device=device)
    dist.barrier()
    if rank > 1:
        return 0.0
    first, second = (dist.send, dist.recv) if rank == 0 else (dist.recv, dist.send)

    def round_trip() -> None:
        first(data, 1 - rank)
        second(data, 1 - rank)

    return 0.5 * median_s(round_trip, device)


def link_of(small_s: float, large_s: float, moved_share: float) -> dict[str, float]:
    """Latency and bandwidth of the alpha-beta model from a small and a large transfer."""
    moved = moved_share * (LARGE_BYTES - SMALL_BYTES)
    return {"alpha_s": small_s, "bytes_per_s": moved / max(large_s - small_s, 1e-9)}


def mesh_axes(world: int) -> list[tuple[int, int]]:
    """Size and stride of the groups that a mesh of `world` ranks may be cut into, by powers of two.

    Neighbours come first, the whole world among them.
    """
    powers = [2**power for power in range(world.bit_length())]
    neighbours = [(size, 1) for size in sorted({*powers, world}) if size > 1]
    apart = [(size, stride) for stride in powers[1:] for size in powers[1:]]
    return neighbours + [axis for axis in apart if axis[0] * axis[1] <= world]


def measure_links(rank: int, world: int, device: str) -> dict[str, dict[str, float]]:
    """Links of all-reduces along every axis a mesh may have, and of messages between two ranks.

    An axis is a group of `size` ranks `stride` apart: the inner axes of a mesh have neighbours, the
    outer ones ranks that may lie on other sockets or switches.
    """
    links = {}
    for size, stride in mesh_axes(world):
        ranks = list(range(0, size * stride, stride))
        group = dist.new_group(ranks)
        if rank in ranks:
            small, large = (_in_group_s(num_bytes, group, device) for num_bytes in _SIZES)
            name = f"all_reduce_{size}" + (f"_stride_{stride}" if stride > 1 else "")
            links[name] = link_of(small, large, 2.0 * (size - 1) / size)
        dist.barrier()
    if world > 1:
        small, large = (_message_s(num_bytes, rank, device) for num_bytes in _SIZES)
        links["message"] = link_of(small, large, 1.0)
    return links


def _in_group_s(num_bytes: int, group: Any, device: str) -> float:
    data: Tensor = torch.zeros(num_bytes // 4, device=device)
    dist.all_reduce(data, group=group)
    return median_s(lambda: dist.all_reduce(data, group=group), device)


def measure_rank(rank: int, world: int, options: argparse.Namespace) -> dict[str, Any]:
    """All measurements of one rank, in step with the others."""
    torch.set_num_threads(options.threads)
    if options.device == "cuda":
        torch.cuda.set_device(rank)
    dtypes = {"fp32": torch.float32, "bf16": torch.bfloat16}
    report: dict[str, Any] = {"peak_flops_per_s": {}, "gemm_curve": {}}
    for name, dtype in dtypes.items():
        dist.barrier()
        peak = measure_peak_flops_per_s(name, options.threads, options.device, 0.5)
        report["peak_flops_per_s"][name] = peak
        report["gemm_curve"][name] = gemm_curve(dtype, options.device)
    dist.barrier()
    report["memory_bytes_per_s"] = memory_bandwidth(options.device)
    dist.barrier()
    forward, backward = host_times(options.device)
    report["host_forward_s"], report["host_backward_s"] = forward, backward
    report["links"] = measure_links(rank, world, options.device)
    return report


def _run(rank: int, options: argparse.Namespace, port: int, queue: Any) -> None:
    """One rank's process."""
    os.environ.update(MASTER_ADDR="127.0.0.1", MASTER_PORT=str(port))
    backend = "nccl" if options.device == "cuda" else "gloo"
    dist.init_process_group(backend, rank=rank, world_size=options.ranks)
    try:
        report = measure_rank(rank, options.ranks, options)
    finally:
        dist.destroy_process_group()
    if rank == 0:
        queue.put(report)


def measure(options: argparse.Namespace) -> dict[str, Any]:
    """Start the ranks and return what rank 0 saw."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    context = multiprocessing.get_context("spawn")
    queue = context.SimpleQueue()
    processes = [
        context.Process(target=_run, args=(rank, options, port, queue))
        for rank in range(options.ranks)
    ]
    for process in processes:
        process.start()
    for process in processes:
        process.join()
    if any(process.exitcode for process in processes):
        raise SystemExit("a rank of the measurement failed; its traceback is above")
    report: dict[str, Any] = queue.get()
    return report


def main() -> None:
    """Print one JSON object."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--ranks", type=int, default=2)
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--device", default="cpu", choices=["cpu", "cuda"])
    parser.add_argument("--json", action="store_true", help="the default and only form")
    print(json.dumps(measure(parser.parse_args())))  # noqa: T201 -- the result


if __name__ == "__main__":
    main()
