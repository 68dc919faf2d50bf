"""What tensor-parallel ranks really send per layer, by collective, against the papers' counts."""

from collections import defaultdict
from typing import Any

from benchmarks.mesh_ranks import MeshRanks
from search_spaces.model_spec import ModelSpec
from search_spaces.training_spec import TrainingSpec

BYTES = 4  # fp32
Counts = dict[str, tuple[float, float]]  # calls and elements by axis.operation


def measure_volume(*, is_quick: bool) -> dict[str, float]:
    """Count on 4 and 9 ranks and print beside theory; the worst ratio is the figure."""
    worst: list[float] = []
    for num_ranks in (4,) if is_quick else (4, 9):
        with MeshRanks(num_ranks) as ranks:
            for variant in ("broadcast", "gather"):
                worst += _compare_2d(ranks, num_ranks, variant)
            worst += _compare_1d(ranks, num_ranks)
    return {"volume_measured_over_theory": max(worst, key=lambda ratio: abs(ratio - 1))}


def _subject(num_layers: int, workload: str, knobs: dict[str, Any]) -> dict[str, Any]:
    """b=6, s=32, h=72: divisible by both meshes."""
    model = ModelSpec(
        name="volume", family="gpt2", num_layers=num_layers, hidden_size=72, num_heads=36,
        num_kv_heads=36, head_dim=2, ffn_size=288, vocab_size=72, max_positions=32,
        tied_embeddings=True,
    )  # fmt: skip
    recipe = {"sequence_length": 32, "global_batch_size": 6, "workload": workload}
    training = TrainingSpec.model_validate({**recipe, "optimizer": "sgd"})
    recompute = {"recompute": "full"} if workload == "training" else {}
    return {
        "model": model.model_dump(),
        "training": training.model_dump(),
        "knobs": {"micro_batch_size": 6, **recompute, **knobs},
    }


TOKENS, HIDDEN = 6 * 32, 72


def _counts(ranks: MeshRanks, workload: str, knobs: dict[str, Any], variant: str) -> Counts:
    """Calls and elements of one layer: a run with two layers less a run with one; all ranks alike.

    Raises:
        RuntimeError: ranks count differently.
    """
    by_layers = []
    for num_layers in (1, 2):
        subject = _subject(num_layers, workload, knobs)
        ranks.ask("build", name="volume", variant=variant, **subject)
        logs = [answer["collectives"] for answer in ranks.ask("step", name="volume")]
        by_layers.append(
            [{k: (v["calls"], v["bytes"] / BYTES) for k, v in log.items()} for log in logs]
        )
    ranks.ask("drop")
    layers = [_less(two, one) for one, two in zip(*by_layers, strict=True)]
    if any(layer != layers[0] for layer in layers):
        raise RuntimeError(f"ranks count differently: {layers}")
    return layers[0]


def _less(left: Counts, right: Counts) -> Counts:
    differences = {
        name: (calls - right.get(name, (0, 0))[0], elements - right.get(name, (0, 0))[1])
        for name, (calls, elements) in left.items()
    }
    return {name: difference for name, difference in differences.items() if any(difference)}


def _by_purpose(counts: Counts, side: int) -> dict[str, float]:
    """Elements of panels, vectors and statistics; a gather counts every block that arrives."""
    totals: dict[str, float] = defaultdict(float)
    for name, (_, elements) in counts.items():
        axis, operation = name.split(".")
        if operation == "all_reduce":
            totals["statistics"] += elements
        elif axis == "tp_vector":
            totals["vectors"] += elements
        else:
            totals["panels"] += elements * (side if operation == "all_gather" else 1)
    return totals


def _compare_2d(ranks: MeshRanks, num_ranks: int, variant: str) -> list[float]:
    side = round(num_ranks**0.5)
    knobs = {"tp": num_ranks, "tp_layout": "2d"}
    forward = _counts(ranks, "inference", knobs, variant)
    backward = _less(_counts(ranks, "training", knobs, variant), forward)
    panels = (7 * TOKENS * HIDDEN + 12 * HIDDEN**2) / side
    # vectors: 9h of biases and 4h of norms; statistics: two norms of two sums per token of the row
    theory = {"panels": panels, "vectors": 13 * HIDDEN / side, "statistics": 4 * TOKENS / side}
    # the backward pass reruns the forward; then panels move twice, vectors and statistics once
    factors = {"panels": 3, "vectors": 2, "statistics": 2}
    print(
        f"{num_ranks} ranks, 2D by {variant}, b s={TOKENS}, h={HIDDEN}; elements per rank and layer"
    )
    ratios = []
    for phase, counts in (("forward", forward), ("backward", backward)):
        found = _by_purpose(counts, side)
        for purpose, elements in theory.items():
            wanted = elements * (1 if phase == "forward" else factors[purpose])
            print(f"  {phase:8s} {purpose:10s} {found[purpose]:9.0f} theory {wanted:9.0f}")
            ratios.append(found[purpose] / wanted)
        calls = {name: int(entry[0]) for name, entry in counts.items()}
        print(f"  {phase:8s} calls {calls}")
    return ratios


def _compare_1d(ranks: MeshRanks, num_ranks: int) -> list[float]:
    """All-reduces of b s h elements, each of which moves 2 (p-1)/p of them per rank."""
    knobs = {"tp": num_ranks}
    forward = _counts(ranks, "inference", knobs, "gather")
    backward = _less(_counts(ranks, "training", knobs, "gather"), forward)
    moved = 2 * (num_ranks - 1) / num_ranks
    ratios = []
    for phase, counts, passes in (("forward", forward, 1), ("backward", backward, 2)):
        calls, payload = counts["tp.all_reduce"]
        wanted = passes * 2 * moved * TOKENS * HIDDEN
        print(
            f"{num_ranks} ranks, 1D {phase:8s} {moved * payload:9.0f} theory {wanted:9.0f} "
            f"in {calls:.0f} all-reduces"
        )
        ratios.append(moved * payload / wanted)
    return ratios
