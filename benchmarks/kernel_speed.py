"""Single-process training speed of the kernel against `transformers` and a plain loop.

GPT-2 124M on 4 x 512 tokens, AdamW, on this machine's CPU with all its cores. All subjects live in
one process and take their steps in turn; a ratio is the median over rounds of the peer's seconds
divided by the kernel's, so above 1 the kernel is faster. The bf16 peers use autocast over fp32
weights, as their users do; the kernel keeps bf16 weights with fp32 masters. `*_bf16_weights` is a
peer with bf16 weights and no masters, less exact than the kernel. MFU is the kernel's model
FLOPs (6 per parameter and token, and attention; the head counted, embeddings not) over the best
matrix product that the machine was measured to do in the same precision.
"""

import os
from collections.abc import Callable

import torch

from benchmarks.harness import Timing, finish, interleave, paired_ratio, parser
from benchmarks.kernel_peer import kernel, model_of, training_of
from benchmarks.peers import Shape, plain_loop_step, transformers_step
from search_spaces.counts import model_flops_per_step
from trainer.peak import measure_peak_flops_per_s

QUICK = Shape(num_layers=2, hidden_size=128, num_heads=4, vocab_size=2048, sequence_length=128)


def main() -> None:
    """Measure and print."""
    options = parser(__doc__)
    options.add_argument("--threads", type=int, default=os.cpu_count() or 1)
    options.add_argument("--rounds", type=int, default=0, help="rounds; 0 for the usual number")
    options.add_argument("--dtypes", nargs="+", default=["fp32", "bf16"], choices=["fp32", "bf16"])
    args = options.parse_args()
    torch.set_num_threads(args.threads)
    shape = QUICK if args.quick else Shape()
    rounds = args.rounds or (3 if args.quick else 5)
    print(f"{shape}, {args.threads} threads, {rounds} rounds after one of warm-up")
    figures: dict[str, float] = {}
    for dtype in args.dtypes:
        figures |= measure(shape, dtype, rounds, args.threads)
    finish(args, figures)


def measure(shape: Shape, dtype: str, rounds: int, num_threads: int) -> dict[str, float]:
    """Figures of one precision."""
    subjects: dict[str, Callable[[], float]] = {
        "kernel": kernel(shape, {"dtype": dtype}),
        "transformers": transformers_step(shape, dtype),
        "plain_loop": plain_loop_step(shape, dtype),
    }
    if dtype == "bf16":
        subjects["transformers_bf16_weights"] = transformers_step(shape, dtype, bf16_weights=True)
    timings = interleave(subjects, rounds)
    for name, timing in timings.items():
        print(f"{dtype} {name:26s} {timing}, {shape.tokens / timing.median_s:.0f} tokens/s")
    ratios = {
        f"{dtype}_vs_{name}": paired_ratio(timing, timings["kernel"])
        for name, timing in timings.items()
        if name != "kernel"
    }
    return {**ratios, f"mfu_{dtype}": mfu(shape, dtype, timings["kernel"], num_threads)}


def mfu(shape: Shape, dtype: str, timing: Timing, num_threads: int) -> float:
    """Model FLOP/s of the kernel over the measured peak of one matrix product."""
    peak = measure_peak_flops_per_s(dtype, num_threads)
    print(f"{dtype} GEMM peak {peak / 1e9:.0f} GFLOP/s with {num_threads} threads")
    return model_flops_per_step(model_of(shape), training_of(shape)) / timing.median_s / peak


if __name__ == "__main__":
    main()
