"""`python -m trainer.peak`: the best matrix-multiplication rate of one device, the base of MFU.

On CPU no data sheet says what a share of the cores can do, so it is measured: square and tall
GEMMs of transformer sizes, best of several repeats, with the thread count of one rank.
"""

import argparse
import json
import time

import torch

_DTYPES = {"fp32": torch.float32, "bf16": torch.bfloat16, "fp16": torch.float16}
# (rows, inner, columns): large enough to reach the plateau, small enough to take milliseconds
_SHAPES = ((1024, 1024, 1024), (2048, 768, 3072), (2048, 2048, 2048))


def measure_peak_flops_per_s(
    dtype: str, num_threads: int, device: str = "cpu", duration_s: float = 0.6
) -> float:
    """Highest FLOP/s of one GEMM over `_SHAPES`, each repeated for `duration_s / 3`.

    A GEMM of (m, k) by (k, n) counts `2 * m * k * n` operations.
    """
    torch.set_num_threads(num_threads)
    best = 0.0
    for rows, inner, columns in _SHAPES:
        a_MK = torch.randn(rows, inner, device=device).to(_DTYPES[dtype])
        b_KN = torch.randn(inner, columns, device=device).to(_DTYPES[dtype])
        out_MN = torch.empty(rows, columns, dtype=_DTYPES[dtype], device=device)
        torch.matmul(a_MK, b_KN, out=out_MN)
        end_s = time.perf_counter() + duration_s / len(_SHAPES)
        while (start_s := time.perf_counter()) < end_s:
            torch.matmul(a_MK, b_KN, out=out_MN)
            if device != "cpu":
                torch.cuda.synchronize()
            best = max(best, 2.0 * rows * inner * columns / (time.perf_counter() - start_s))
    return best


def main() -> None:
    """Print one JSON object: `peak_flops_per_s`, by precision."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--device", default="cpu", choices=["cpu", "cuda"])
    parser.add_argument("--dtypes", nargs="+", default=["fp32"], choices=sorted(_DTYPES))
    options = parser.parse_args()
    peaks = {
        dtype: measure_peak_flops_per_s(dtype, options.threads, options.device)
        for dtype in options.dtypes
    }
    print(json.dumps({"peak_flops_per_s": peaks}))  # noqa: T201 -- the result


if __name__ == "__main__":
    main()
