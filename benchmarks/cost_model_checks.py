"""Parts of the cost model's benchmark that need no fit: speed, stages, and memory of known runs."""

import time
from itertools import product
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd

from search_spaces.cluster_io import load_cluster_spec
from search_spaces.cost_models.analytic import AnalyticCostModel
from search_spaces.cost_models.constants import Constants
from search_spaces.cost_models.hardware import hardware_of
from search_spaces.cost_models.memory import densities, layer_activation_bytes, stage_memory
from search_spaces.cost_models.points import (
    ATTENTION_FLASH1,
    ATTENTION_FUSED,
    Points,
    config_columns,
    model_columns,
    points_of,
    recipe_columns,
)
from search_spaces.cost_models.prediction import predict
from search_spaces.cost_models.stages import stage_layers
from search_spaces.model_io import load_model_spec
from search_spaces.parallel_config import ParallelConfig
from search_spaces.training_spec import TrainingSpec

Figures = dict[str, Any]
DEVICES = 512


def _gpt3_space() -> Points:
    """All ways to lay GPT-3 175B out on 512 devices with the usual knobs: about 65 thousand."""
    degrees = [2**power for power in range(10)]
    layouts = [
        (tp, pp, DEVICES // (tp * pp))
        for tp, pp in product(degrees[:6], degrees[:8])
        if tp * pp <= DEVICES
    ]
    knobs = list(product((1, 2, 3), (1, 2, 4, 8), range(4), range(3), (0, 1), range(4), (2, 4)))
    rows = np.array([(*layout, *rest) for layout in layouts for rest in knobs], dtype=np.float64)
    columns = dict(
        zip(
            ("tp", "pp", "dp", "virtual_stages", "micro_batch_size", "zero_stage", "recompute",
             "sequence_parallel", "schedule", "reduce_bytes"),
            rows.T.copy(),
            strict=True,
        )
    )  # fmt: skip
    keep = columns["pp"] * columns["virtual_stages"] <= 96
    model = load_model_spec("gpt3-175b")
    recipe = TrainingSpec(sequence_length=2048, global_batch_size=1536, dtype="bf16")
    return Points(
        **{**model_columns(model), **recipe_columns(recipe)},
        **{name: column[keep] for name, column in columns.items()},
        is_kernel=True,
    )


def speed(quick: bool) -> Figures:
    """Configurations a second on one core, and seconds to rank the space of 175B on 512 devices.

    Of every one the step time and the peak memory are predicted; in the second figure also all the
    parts of both.
    """
    space = _gpt3_space()
    hardware = hardware_of(load_cluster_spec("dgx-a100-80"))
    count = 100_000 if quick else 1_000_000
    many = space.take(np.random.RandomState(0).randint(0, space.size, count))
    predict(space.take(slice(0, 20_000)), hardware, Constants())
    elapsed = []
    for has_parts in (False, True):
        start = time.process_time()
        predict(many, hardware, Constants(), has_parts=has_parts)
        elapsed.append(time.process_time() - start)
    start = time.process_time()
    result = predict(space, hardware, Constants(), has_parts=False)
    fits = result.peak_memory_bytes < hardware.memory_bytes
    order = np.argsort(np.where(fits, result.step_time_s, np.inf))
    ranked = time.process_time() - start
    return {
        "configs_per_s": count / elapsed[0],
        "configs_per_s_with_parts": count / elapsed[1],
        "rank_space_configs": int(space.size),
        "rank_space_s": ranked,
        "rank_space_best_s": float(result.step_time_s[order[0]]),
    }


def uneven_stages() -> Figures:
    """Eight layers dealt 1, 2, 2, 3: time and memory must follow the fullest rank."""
    model = load_model_spec("llama-mini").model_copy(update={"num_layers": 8})
    recipe = TrainingSpec(sequence_length=256, global_batch_size=16)
    cluster = load_cluster_spec("laptop")
    costs = AnalyticCostModel(model, recipe, cluster)
    even = ParallelConfig(pp=4, micro_batch_size=1)
    skewed = even.with_knobs(stage_layers=(1, 2, 2, 3))
    fast, slow = costs.estimate(even), costs.estimate(skewed)
    layers = stage_layers(points_of(model, recipe, [skewed]))
    held = [float(np.asarray(column).ravel()[0]) for column in layers]
    return {
        "uneven_stage_layers": held,
        "uneven_over_even_time": slow.step_time_s / fast.step_time_s,
        "uneven_over_even_memory": slow.peak_memory_bytes / fast.peak_memory_bytes,
    }


def frontier_stages(folder: Path) -> Figures:
    """Peak memory of each of 16 stages of a 175B run on Frontier, against its published log."""
    path = folder / "papers" / "frontier_175b_stage_memory.csv"
    if not path.is_file():
        return {}
    log = pd.read_csv(path)
    model = load_model_spec("gpt3-175b").model_copy(
        update={"vocab_size": 50688, "max_positions": 2048}
    )
    recipe = TrainingSpec(sequence_length=2048, global_batch_size=320, dtype="fp16")
    config = ParallelConfig(
        tp=4, pp=16, dp=2, zero_stage=1, recompute="full", dtype="fp16", reduce_dtype="bf16"
    )
    points = points_of(model, recipe, [config], attention=ATTENTION_FLASH1, gradient_bytes=2.0)
    ranks = np.arange(16.0)
    # the log tells what the framework allocated: no context, nothing reserved beyond it
    constants = Constants(fragmentation=1.0, base_memory_bytes=1.0)
    hardware = hardware_of(load_cluster_spec("frontier"))
    density = densities(points, hardware, constants)
    parts = stage_memory(points, density, 6.0, ranks, ranks == 0, ranks == 15)
    predicted = np.asarray(parts.total) / 2**20
    errors = 100.0 * (predicted / log["max_allocated_mib"].to_numpy() - 1.0)
    return {
        "frontier_stage_memory_worst_error": float(np.abs(errors).max()),
        "frontier_stage_memory_mape": float(np.abs(errors).mean()),
    }


def selective_recompute(folder: Path) -> Figures:
    """Activations of the first stage in 2205.05198, figure 1, without and with recomputation."""
    path = folder / "papers" / "seqsel_2205_05198_fig1_memory.csv"
    if not path.is_file():
        return {}
    frame = pd.read_csv(path)
    sizes = {
        "megatron-22B": (48, 6144, 64), "gpt3-175B": (96, 12288, 96),
        "turing-530B": (105, 20480, 128), "megatron-1T": (128, 25600, 160),
    }  # fmt: skip
    unsharded = Constants(gathered_memory=0.0, gathered_stage_memory=0.0)
    errors = []
    for row in frame.itertuples():
        layers, hidden, heads = sizes[str(row.model)]
        selective = row.recompute_mode == "seqsel"
        config = ParallelConfig(
            tp=8, pp=int(row.pp), micro_batch_size=int(row.micro_batch_size_seqs),
            sequence_parallel=selective, recompute="selective" if selective else "none",
            dtype="fp16", reduce_dtype="bf16", virtual_stages=int(row.virtual_stages_per_device),
        )  # fmt: skip
        points = Points(
            **_gpt(layers, hidden, heads),
            **config_columns([config]),
            attention=ATTENTION_FUSED,
        )
        kept, _ = layer_activation_bytes(points, unsharded)
        pipe, chunks = float(row.pp), float(row.virtual_stages_per_device)
        waves = 1.0 + (pipe - 1.0) / (pipe * chunks) if chunks > 1 else 1.0
        predicted = float(np.asarray(kept).ravel()[0]) * layers * waves / 2**30
        errors.append(abs(predicted / float(row.activations_gib) - 1.0))
    return {"mape_activations_seqsel": 100.0 * float(np.mean(errors))}


def _gpt(layers: int, hidden: int, heads: int) -> dict[str, float]:
    """A GPT of the papers by its width."""
    return {
        "num_layers": layers, "hidden_size": hidden, "ffn_size": 4 * hidden, "num_heads": heads,
        "num_kv_heads": heads, "head_dim": hidden / heads, "vocab_size": 51200, "gated": 0.0,
        "tied": 1.0, "biased": 1.0, "learned_positions": 2048, "sequence_length": 2048,
        "global_batch_size": 512,
    }  # fmt: skip
