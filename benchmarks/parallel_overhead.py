"""What two ranks lose against one with the same cores, and against torch's own parallelism.

`dp2`, `tp2`, `pp2`: tokens/s of the kernel on 2 ranks of 1 thread each, as a fraction of one rank
with 2 threads (the same cores, the same global batch; pp2 with 4 micro-batches). `tp2_vs_dtensor`
and `dp2_vs_ddp`: how many times faster the kernel is than DTensor tensor parallelism and
`DistributedDataParallel` on the plain model, 2 ranks of 1 thread each. fp32, gloo over loopback;
all sets of ranks are alive at once and step in turn; medians over rounds.
"""

from contextlib import ExitStack

from benchmarks.harness import finish, interleave, paired_ratio, parser
from benchmarks.peers import Shape
from benchmarks.ranks import RankSet

# smaller than GPT-2 124M, so that seven sets of ranks fit into memory together
FULL = Shape(num_layers=6, vocab_size=16384, batch_size=8, sequence_length=256)
QUICK = Shape(num_layers=2, hidden_size=128, num_heads=4, vocab_size=2048, sequence_length=128)
KERNEL = "benchmarks.kernel_peer:kernel"
PEERS = "benchmarks.parallel_peers"


def main() -> None:
    """Measure and print."""
    options = parser(__doc__)
    options.add_argument("--rounds", type=int, default=0, help="rounds; 0 for the usual number")
    args = options.parse_args()
    shape = QUICK if args.quick else FULL
    rounds = args.rounds or (5 if args.quick else 7)
    print(f"{shape}, fp32, 2 ranks x 1 thread against 1 rank x 2 threads, {rounds} rounds")
    finish(args, measure(shape, rounds))


def measure(shape: Shape, rounds: int) -> dict[str, float]:
    """All figures, from sets of ranks that take their steps in turn."""
    per_rank = shape.batch_size // 2
    knobs = {
        "dp2": {"dp": 2, "micro_batch_size": per_rank},
        "tp2": {"tp": 2},
        "pp2": {"pp": 2, "micro_batch_size": max(1, shape.batch_size // 4)},
    }
    with ExitStack() as stack:
        sets = {"one": RankSet(KERNEL, 1, 2, {"shape": shape, "knobs": {}})}
        for name, changed in knobs.items():
            sets[name] = RankSet(KERNEL, 2, 1, {"shape": shape, "knobs": changed})
        for name in ("ddp", "dtensor_tensor_parallel"):
            sets[name] = RankSet(f"{PEERS}:{name}", 2, 1, {"shape": shape})
        for ranks in sets.values():
            stack.enter_context(ranks)
        timings = interleave({name: ranks.step for name, ranks in sets.items()}, rounds)
    for name, timing in timings.items():
        print(f"{name:26s} {timing}, {shape.tokens / timing.median_s:.0f} tokens/s")
    figures = {name: paired_ratio(timings["one"], timings[name]) for name in knobs}
    figures["tp2_vs_dtensor"] = paired_ratio(timings["dtensor_tensor_parallel"], timings["tp2"])
    figures["dp2_vs_ddp"] = paired_ratio(timings["ddp"], timings["dp2"])
    return figures


if __name__ == "__main__":
    main()
