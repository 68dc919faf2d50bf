"""Where the cost model sees 2D overtake 1D on the clusters of the papers."""

from search_spaces.cluster_io import load_cluster_spec
from search_spaces.cost_models.analytic import AnalyticCostModel
from search_spaces.model_spec import ModelSpec
from search_spaces.parallel_config import ParallelConfig
from search_spaces.training_spec import TrainingSpec

CLUSTERS = ("frontera-rtx5000", "frontier")
# devices: hidden size, heads, and the batch of 1D and of 2D (weak scaling of Optimus, section 5)
SCALING = {4: (2048, 32, 60, 96), 16: (4096, 64, 60, 192), 64: (8192, 128, 30, 384)}
PAPER = {"training": 1.48, "inference": 1.78}  # arXiv 2104.05343, abstract: 64 devices


def predict() -> dict[str, float]:
    """Print the predicted speed-ups; the one of the paper's machine is the figure."""
    figures: dict[str, float] = {}
    for cluster in CLUSTERS:
        for workload in PAPER:
            speedups = {size: speedup(cluster, workload, size) for size in SCALING}
            shown = ", ".join(f"{size}: {value:.2f}" for size, value in speedups.items())
            print(f"{cluster}, {workload}: 2D over 1D by devices {shown}; {_crossing(speedups)}")
            if cluster == CLUSTERS[0]:
                print(f"  the paper measured {PAPER[workload]} on 64 of these")
                name = "train" if workload == "training" else "inference"
                figures[f"predicted_{name}_speedup_frontera_64"] = speedups[64]
    return figures


def _crossing(speedups: dict[int, float]) -> str:
    ahead = [size for size, value in speedups.items() if value > 1]
    return f"ahead from {ahead[0]} devices on" if ahead else "never ahead"


def speedup(cluster: str, workload: str, size: int) -> float:
    """Sequences per second of 2D over those of 1D, each with its own batch."""
    hidden, heads, flat_batch, mesh_batch = SCALING[size]
    model = ModelSpec(
        name="optimus", family="gpt2", num_layers=24, hidden_size=hidden, num_heads=heads,
        num_kv_heads=heads, head_dim=hidden // heads, ffn_size=4 * hidden, vocab_size=50304,
        max_positions=512,
    )  # fmt: skip

    def throughput(layout: str, batch: int) -> float:
        recipe = {"sequence_length": 512, "global_batch_size": batch, "workload": workload}
        training = TrainingSpec.model_validate(recipe)
        knobs = {"tp": size, "tp_layout": layout, "micro_batch_size": batch}
        if workload == "training":
            knobs["recompute"] = "full"
        cost_model = AnalyticCostModel(model, training, load_cluster_spec(cluster))
        return batch / cost_model.estimate(ParallelConfig.model_validate(knobs)).step_time_s

    return throughput("2d", mesh_batch) / throughput("1d", flat_batch)
