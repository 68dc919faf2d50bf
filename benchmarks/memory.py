"""Peak memory per rank under each ZeRO stage and kind of recomputation, against theory.

GPT-2 shapes on 2 data-parallel ranks, one micro-batch in flight, AdamW. Measured are the bytes of
parameters, gradients and optimizer states as allocated (`state`), and the peak of resident memory
above the interpreter's during a step (`peak`); the theory of both is written out below. A measured
peak holds what theory leaves out: temporaries of single operations and small tensors. `cost_model`
is what the tuner's cost model predicts before anything runs.
"""

import multiprocessing
import os
import tempfile
from pathlib import Path
from typing import Any

from benchmarks.harness import finish, parser
from benchmarks.kernel_peer import model_of
from benchmarks.peers import Shape
from search_spaces.cluster_spec import ClusterSpec
from search_spaces.cost_models.analytic import AnalyticCostModel
from search_spaces.counts import layer_parameters, num_parameters
from search_spaces.model_spec import ModelSpec
from search_spaces.parallel_config import ParallelConfig
from search_spaces.training_spec import TrainingSpec
from trainer.contract import JOB_FILE, MeasureSpec, TrialJob, read_output
from trainer.worker import run_rank

FULL = Shape(num_layers=8, hidden_size=512, num_heads=8, vocab_size=8192, batch_size=8)
QUICK = Shape(
    num_layers=4, hidden_size=256, num_heads=4, vocab_size=4096, sequence_length=256, batch_size=8
)
NUM_RANKS = 2
RECOMPUTE = ("none", "selective", "full")


def state_theory_bytes(model: ModelSpec, zero_stage: int, num_ranks: int) -> float:
    """Persistent bytes of a rank in fp32: weights 4, gradients 4, Adam's moments 8 per parameter.

    Stage 1 shards the moments, 2 the gradients too, 3 the weights too (arXiv 1910.02054, figure 1).
    """
    whole, sharded = {0: (16, 0), 1: (8, 8), 2: (4, 12), 3: (0, 16)}[zero_stage]
    return num_parameters(model) * (whole + sharded / num_ranks)


def activation_theory_bytes(model: ModelSpec, tokens: int, recompute: str) -> float:
    """Bytes that the layers keep for the backward pass of one micro-batch of `tokens` in fp32.

    Of the 17 values of the hidden size per token and layer in arXiv 2205.05198, section 4.1 (34
    bytes at 2 each, without dropout masks; flash attention keeps no scores), the core's output and
    the next projection's input are one here: 16. Selective recomputation keeps no output of the
    activation: 12. Full keeps each layer's input and, for a while, one layer's 16 and 8 gradients.
    """
    values = {"none": 16 * model.num_layers, "selective": 12 * model.num_layers}
    return 4.0 * tokens * model.hidden_size * values.get(recompute, model.num_layers + 24)


def peak_theory_bytes(model: ModelSpec, config: ParallelConfig, tokens: int) -> float:
    """States, activations, and what is held for a while.

    The loss has one block of logits, except under full recomputation, whose peak comes later.
    Stages 2 and 3 have the whole gradient of the embedding (the largest unit) before it is reduced,
    stage 3 its whole weights besides.
    """
    states = state_theory_bytes(model, config.zero_stage, config.dp)
    largest = max(model.vocab_size * model.hidden_size, layer_parameters(model))
    passing = {0: 0, 1: 0, 2: 4 * largest, 3: 8 * largest}[config.zero_stage]
    logits = 0 if config.recompute == "full" else 4 * min(2**24, tokens * model.vocab_size)
    return states + passing + logits + activation_theory_bytes(model, tokens, config.recompute)


def measure(shape: Shape, config: ParallelConfig) -> tuple[int, int]:
    """Largest state and peak bytes over the ranks of one trial."""
    job = TrialJob(
        trial_id="memory",
        model=model_of(shape),
        training=_training(shape),
        config=config,
        measure=MeasureSpec(warmup_steps=2, measured_steps=1, deadline_s=600),
    )
    context = multiprocessing.get_context("forkserver")
    context.set_forkserver_preload(["trainer.worker"])
    with tempfile.TemporaryDirectory(prefix="memory-") as name:
        folder = Path(name)
        (folder / JOB_FILE).write_text(job.model_dump_json())
        start = (folder / "rendezvous").as_uri()
        ranks = [
            context.Process(target=run_rank, args=(name, rank, config.world_size, rank, start))
            for rank in range(config.world_size)
        ]
        for process in ranks:
            process.start()
        for process in ranks:
            process.join()
        output = read_output(folder)
    if output.result is None:
        raise SystemExit(f"{config.short()}: {[failure.message for failure in output.failures]}")
    return (
        max(rank.state_memory_bytes for rank in output.ranks),
        max(rank.peak_memory_bytes for rank in output.ranks),
    )


def _training(shape: Shape) -> TrainingSpec:
    return TrainingSpec(sequence_length=shape.sequence_length, global_batch_size=shape.batch_size)


def main() -> None:
    """Measure every cell of the table and print it."""
    args = parser(__doc__).parse_args()
    os.environ.setdefault("OMP_NUM_THREADS", "1")
    shape = QUICK if args.quick else FULL
    model = model_of(shape)
    size = shape.batch_size // NUM_RANKS
    cost_model = AnalyticCostModel(model, _training(shape), ClusterSpec(devices_per_node=NUM_RANKS))
    print(f"{shape}, {num_parameters(model) / 1e6:.1f} M parameters, dp {NUM_RANKS}, fp32; MiB")
    print("zero recompute     state theory    peak theory cost_model")
    figures: dict[str, Any] = {}
    state_errors, peak_errors, model_errors = [], [], []
    for zero_stage in range(4):
        for recompute in RECOMPUTE:
            config = ParallelConfig(
                dp=NUM_RANKS, micro_batch_size=size, zero_stage=zero_stage, recompute=recompute
            )
            state, peak = measure(shape, config)
            state_theory = state_theory_bytes(model, zero_stage, NUM_RANKS)
            peak_theory = peak_theory_bytes(model, config, size * shape.sequence_length)
            predicted = cost_model.estimate(config).peak_memory_bytes
            row = (state, state_theory, peak, peak_theory, predicted)
            print(f"{zero_stage:4d} {recompute:10s}" + "".join(f"{v / 2**20:8.0f}" for v in row))
            name = f"zero{zero_stage}_{recompute}"
            figures[f"{name}_state_mib"] = round(state / 2**20, 1)
            figures[f"{name}_peak_mib"] = round(peak / 2**20, 1)
            figures[f"{name}_peak_theory_mib"] = round(peak_theory / 2**20, 1)
            state_errors.append(abs(state / state_theory - 1))
            peak_errors.append(peak / peak_theory - 1)
            model_errors.append(abs(predicted / peak - 1))
    figures["state_error_max"] = max(state_errors)
    figures["peak_over_theory_min"], figures["peak_over_theory_max"] = (
        min(peak_errors),
        max(peak_errors),
    )
    figures["cost_model_mape"] = sum(model_errors) / len(model_errors)
    finish(args, figures)


if __name__ == "__main__":
    main()
