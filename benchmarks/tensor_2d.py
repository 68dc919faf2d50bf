"""2D tensor parallelism (Optimus, arXiv 2104.05343) against 1D (Megatron-LM), measured here.

* volume: elements and calls per layer that the ranks' collectives really moved, against theory:
  (7 b s h + 12 h^2) / q forward, three times that backward with recomputation;
* memory: peak activation memory of a rank under 1D and 2D against the cost model's, and the largest
  batch of each under one limit, on 4 and 9 ranks, layers recomputed as in the paper;
* time: a step of 1D and 2D on 4 ranks over a fast and over a slow link (network namespaces, needs
  root), for few and for many tokens, and both ways to move panels;
* model: the cost model's crossover with the number of devices on two described clusters.

`--part` runs some of them. gloo, fp32, one thread per rank.
"""

import argparse
from collections.abc import Callable
from typing import Any

from benchmarks.harness import Timing, finish, interleave, paired_ratio, parser
from benchmarks.links import INTERFACE, LinkError, Links
from benchmarks.mesh_ranks import MeshRanks
from benchmarks.tensor_2d_model import predict
from benchmarks.tensor_2d_volume import measure_volume
from search_spaces.cluster_spec import ClusterSpec
from search_spaces.cost_models.analytic import AnalyticCostModel
from search_spaces.model_spec import ModelSpec
from search_spaces.parallel_config import ParallelConfig
from search_spaces.training_spec import TrainingSpec

PARTS = ("volume", "memory", "time", "model")
SLOW_MEGABIT_PER_S = 25.0
HIDDEN = {"fast": 128, "slow": 64}
"""On the slow link the smaller one: two ranks that swap more than about a megabyte over gloo use a
limited veth one way at a time (1.3 to 1.9 times the seconds of the bytes; a ring of four does not),
which is a trait of that pair and not of the layouts."""
VARIANTS = ("broadcast", "gather")
MODELLED = "gather"
"""The way of panels that trials use, and so the one whose buffers the cost model counts."""
LEAN = "broadcast"
"""The way of panels whose memory is compared, the paper's; the other holds q panels at a time."""
FULL_RECOMPUTE = {"recompute": "full"}
LAYOUTS: dict[str, dict[str, Any]] = {"1d": {}, "2d": {"tp_layout": "2d"}}


def main() -> None:
    """Measure and print."""
    options = parser(__doc__)
    options.add_argument("--part", nargs="+", choices=PARTS, default=list(PARTS))
    options.add_argument("--rounds", type=int, default=0, help="rounds; 0 for the usual number")
    args = options.parse_args()
    measures: dict[str, Callable[[argparse.Namespace], dict[str, float]]] = {
        "volume": lambda args: measure_volume(is_quick=args.quick),
        "memory": measure_memory,
        "time": measure_time,
        "model": lambda args: predict(),
    }
    figures: dict[str, float] = {}
    for part in args.part:
        print(f"--- {part}")
        figures |= measures[part](args)
    finish(args, figures)


def model_of(hidden: int, num_layers: int, num_heads: int) -> ModelSpec:
    """A GPT-2 with a small vocabulary, so that layers are what is measured."""
    return ModelSpec(
        name="mesh-benchmark", family="gpt2", num_layers=num_layers, hidden_size=hidden,
        num_heads=num_heads, num_kv_heads=num_heads, head_dim=hidden // num_heads,
        ffn_size=4 * hidden, vocab_size=144, max_positions=1024, tied_embeddings=True,
    )  # fmt: skip


def _subject(
    model: ModelSpec, length: int, batch: int, knobs: dict[str, Any], workload: str = "training"
) -> dict[str, Any]:
    return {
        "model": model.model_dump(),
        "training": _training(length, batch, workload).model_dump(),
        "knobs": {"micro_batch_size": batch, **knobs},
    }


def _training(length: int, batch: int, workload: str = "training") -> TrainingSpec:
    return TrainingSpec(
        sequence_length=length, global_batch_size=batch, workload=workload, optimizer="sgd"
    )  # type: ignore[arg-type]


# -------------------------------------------------------------------- memory
def measure_memory(args: argparse.Namespace) -> dict[str, float]:
    """Activation memory and largest batches on 4 and 9 ranks."""
    figures: dict[str, float] = {}
    batch, length = (12, 128) if args.quick else (12, 256)
    for num_ranks in (4,) if args.quick else (4, 9):
        model = model_of(288, 8, 36)
        with MeshRanks(num_ranks) as ranks:
            figures |= _memory_on(ranks, num_ranks, model, length, batch)
    return figures


def _memory_on(
    ranks: MeshRanks, num_ranks: int, model: ModelSpec, length: int, batch: int
) -> dict[str, float]:
    def knobs_of(layout: str, **changed: Any) -> dict[str, Any]:
        return {"tp": num_ranks, **FULL_RECOMPUTE, **LAYOUTS[layout], **changed}

    def peak(layout: str, batch: int, **changed: Any) -> tuple[float, float]:
        """Mebibytes of the fullest rank: activations, and all."""
        variant = changed.pop("variant", None)
        knobs = knobs_of(layout, **changed)
        found = ranks.ask("memory", variant=variant, **_subject(model, length, batch, knobs))
        fullest = max(found, key=lambda answer: sum(answer.values()))
        return fullest["activations"] / 2**20, sum(fullest.values()) / 2**20

    print(
        f"{num_ranks} ranks, {model.num_layers} layers, h={model.hidden_size}, batch {batch} x "
        f"{length} tokens; MiB of activations of the fullest rank"
    )
    errors = []
    for recompute in ("full", "none"):
        flat = peak("1d", batch, recompute=recompute)[0]
        meshes = {v: peak("2d", batch, recompute=recompute, variant=v)[0] for v in VARIANTS}
        shown = ", ".join(f"2D by {v} {m:.1f} ({flat / m:.2f} x less)" for v, m in meshes.items())
        print(f"  recompute {recompute}: 1D {flat:.1f}, {shown}")
        told = [
            _predicted(model, length, batch, knobs_of(layout, recompute=recompute))
            for layout in LAYOUTS
        ]
        print(f"    cost model: 1D {told[0]:.1f}, 2D by {MODELLED} {told[1]:.1f}")
        errors += [abs(told[0] / flat - 1), abs(told[1] / meshes[MODELLED] - 1)]
    activations, limit = peak("1d", batch)
    mesh = peak("2d", batch, variant=LEAN)[0]
    step = int(num_ranks**0.5)
    largest = _largest_batch(lambda b: peak("2d", b, variant=LEAN)[1], limit, batch, step)
    print(f"  under the {limit:.0f} MiB that 1D takes for {batch}: 2D by {LEAN} fits {largest}")
    return {
        f"activation_memory_1d_over_2d_{num_ranks}_ranks": activations / mesh,
        f"max_batch_2d_over_1d_{num_ranks}_ranks": largest / batch,
        f"activation_memory_cost_model_max_error_{num_ranks}_ranks": max(errors),
    }


def _predicted(model: ModelSpec, length: int, batch: int, knobs: dict[str, Any]) -> float:
    """Mebibytes beside the states, as the cost model says."""
    costs = AnalyticCostModel(model, _training(length, batch), ClusterSpec(devices_per_node=16))
    config = ParallelConfig(micro_batch_size=batch, **knobs)
    parts = costs.estimate(config).memory_parts_bytes
    return sum(parts[name] for name in ("activations", "logits", "buffers")) / 2**20


def _largest_batch(peak: Callable[[int], float], limit: float, batch: int, step: int) -> int:
    """Largest multiple of `step` whose measured peak is within the limit, found from `batch` on.

    A line through two measured batches gives the first guess; then real runs decide.
    """
    low, high = peak(batch), peak(2 * batch)
    if high <= low:
        raise RuntimeError(f"twice the batch took {high:.1f} MiB instead of {low:.1f}")
    slope = (high - low) / batch
    guess = int((limit - low) / slope + batch) // step * step
    guess = min(max(guess, step), 64 * batch)
    while guess > step and peak(guess) > limit:
        guess -= step
    while peak(guess + step) <= limit:
        guess += step
    return guess


# -------------------------------------------------------------------- time
def measure_time(args: argparse.Namespace) -> dict[str, float]:
    """Steps of both layouts over both links; nothing where links cannot be made."""
    try:
        with Links(4) as links, MeshRanks(4, INTERFACE, links.prefix) as ranks:
            figures = _time_on(ranks, args, "fast")
            links.limit(SLOW_MEGABIT_PER_S)
            return figures | _time_on(ranks, args, "slow")
    except LinkError as error:
        print(f"skipped: no artificial links here: {error}")
        return {}


def _time_on(ranks: MeshRanks, args: argparse.Namespace, link: str) -> dict[str, float]:
    hidden, length = HIDDEN[link], 96
    model = model_of(hidden, 2, 4)
    rounds = args.rounds or (2 if args.quick else 3)
    speed = f"{SLOW_MEGABIT_PER_S:.0f} Mbit/s per rank" if link == "slow" else "not limited"
    print(f"{link} link ({speed}): 4 ranks, {model.num_layers} layers, h={model.hidden_size}")
    figures: dict[str, float] = {}
    # tokens of 3, 12 and 48 times the hidden size
    batches = [hidden // 2] if args.quick else [hidden // 32, hidden // 8, hidden // 2]
    for batch in batches:
        ratio = batch * length / model.hidden_size
        timings = _steps(ranks, _subjects(model, length, batch), rounds)
        print(f"  b s = {ratio:.0f} h ({batch} x {length} tokens)")
        for kind in ("forward", "train", "recompute"):
            flat, mesh = timings[f"{kind} 1d"], timings[f"{kind} 2d"]
            speedup = paired_ratio(flat, mesh)
            print(
                f"    {kind:9s} 1D {flat}, 2D {mesh}: 2D is {speedup:.2f} x as fast; "
                f"by volume {volume_ratio(kind, ratio):.2f}"
            )
            if batch == batches[-1]:
                figures[f"{kind}_speedup_2d_over_1d_{link}_link"] = speedup
    variants = _variants(ranks, model, length, batches[-1], rounds)
    figures |= {f"{name}_{link}_link": value for name, value in variants.items()}
    figures[f"train_speedup_2d_over_1d_{link}_link"] = figures.pop(
        f"recompute_speedup_2d_over_1d_{link}_link"
    )
    return figures


def volume_ratio(kind: str, ratio: float, side: int = 2) -> float:
    """Bytes that a rank receives in a layer under 1D over those under 2D, for b s = ratio x h.

    1D: 4 (p-1)/p b s h forward, as much backward; 2D: (q-1)/q x (7 b s h + 12 h^2)/q forward, twice
    that backward; recomputation repeats the forward.
    """
    size = side * side
    flat = 4 * (size - 1) / size * ratio
    mesh = (side - 1) / size * (7 * ratio + 12)
    flat_passes, mesh_passes = {"forward": (1, 1), "train": (2, 3), "recompute": (3, 4)}[kind]
    return flat_passes * flat / (mesh_passes * mesh)


def _subjects(model: ModelSpec, length: int, batch: int) -> dict[str, dict[str, Any]]:
    kinds: dict[str, tuple[dict[str, Any], str]] = {
        "forward": ({}, "inference"), "train": ({}, "training"),
        "recompute": (FULL_RECOMPUTE, "training"),
    }  # fmt: skip
    return {
        f"{kind} {layout}": _subject(model, length, batch, {"tp": 4, **knobs, **changed}, workload)
        for kind, (changed, workload) in kinds.items()
        for layout, knobs in LAYOUTS.items()
    }


def _steps(ranks: MeshRanks, subjects: dict[str, dict[str, Any]], rounds: int) -> dict[str, Timing]:
    """Time subjects in turn; they live in the same ranks."""
    for name, subject in subjects.items():
        ranks.ask("build", name=name, **subject)
    calls = {name: (lambda name=name: ranks.ask("step", name=name)) for name in subjects}
    timings = interleave(calls, rounds)
    ranks.ask("drop")
    return timings


def _variants(
    ranks: MeshRanks, model: ModelSpec, length: int, batch: int, rounds: int
) -> dict[str, float]:
    """Broadcast panel by panel against one all-gather per operand."""
    subject = _subject(model, length, batch, {"tp": 4, **FULL_RECOMPUTE, **LAYOUTS["2d"]})
    subjects = {name: {**subject, "variant": name} for name in VARIANTS}
    timings = _steps(ranks, subjects, rounds)
    for name, timing in timings.items():
        print(f"    panels by {name:9s} {timing}")
    return {"broadcast_over_gather": paired_ratio(timings["broadcast"], timings["gather"])}


if __name__ == "__main__":
    main()
