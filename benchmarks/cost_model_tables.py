"""Tables of measured training runs as columns of the cost model.

A table has one row per run, with the columns of the reference tables (model dimensions, device,
parallel configuration, `status`, `step_time_s`, `peak_memory_gb`, `source`); columns that a table
lacks take the value that most runs have.
"""

import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from difflib import get_close_matches
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pandas as pd
from numpy.typing import NDArray

from search_spaces.cluster_io import load_cluster_spec
from search_spaces.cost_models.constants import MEMORY_SPREADS, Constants
from search_spaces.cost_models.hardware import Hardware, hardware_of
from search_spaces.cost_models.points import (
    ATTENTIONS,
    INTERLEAVED,
    ONE_F_ONE_B,
    SCHEDULES,
    Points,
)

Array = NDArray[np.float64]

DEVICES = {
    "a100-80": "dgx-a100-80",
    "a100-40": "dgx-a100-40",
    "a100": "dgx-a100-80",
    "h100-80": "dgx-h100",
    "h100": "dgx-h100",
    "h200": "h200",
    "mi250x": "frontier",
    "mi250x-gcd": "frontier",
    "rtx5000": "frontera-rtx5000",
}
FALLBACK_PRESET = "dgx-a100-80"
DEFAULTS: dict[str, Any] = {
    "device": "a100-80", "vocab_size": 51200, "gated_mlp": 0, "tied_embeddings": 1,
    "sequence_length": 2048, "tp": 1, "pp": 1, "dp": 1, "cp": 1, "ep": 1, "virtual_stages": 1,
    "micro_batch_size": 1, "zero_stage": 0, "recompute": "none", "sequence_parallel": 0,
    "attention_kernel": "flash2", "norm_kernel": "fused", "status": "ok", "step_time_s": np.nan,
    "peak_memory_gb": np.nan, "source": "", "model": "unknown", "pipeline_schedule": "",
}  # fmt: skip
RECOMPUTES = {"none": 0.0, "sel": 1.0, "selective": 1.0, "full": 2.0}
FAILED = re.compile("oom|fail|memory", re.IGNORECASE)


@dataclass(frozen=True, kw_only=True)
class Stack:
    """What is documented of a training stack, and not fitted to its measurements."""

    name: str
    pattern: str
    """Found in a row's `source`."""
    constants: Constants
    memory_spreads: Mapping[str, float] = field(default_factory=lambda: MEMORY_SPREADS)
    """How far calibration may move the constants of its memory: little where its code tells."""
    reduce_bytes: float = 2.0
    balances_stages: bool = False
    """Deals layers to stages by cost, counting the output projection."""
    reads_first_rank: bool = False
    """Its memory readings are the first pipeline rank's, not the largest of all."""
    fills_pipeline: bool = False
    """Its 1F1B refuses fewer micro-batches than ranks less one."""


STACKS = (
    Stack(
        name="megatron-2022",
        pattern=r"2205\.05198",
        # gradients are added inside the GEMM; inputs stay sharded over the sequence (its section
        # 4.2.2); sums of the backward pass run beside weight gradients, at about half their cost
        constants=Constants(
            accumulation=0.01,
            tensor_exposed=0.5,
            gathered_memory=0.01,
            gathered_stage_memory=0.01,
        ),
    ),
    Stack(
        name="nanotron",
        pattern="nanotron|playbook",
        # bandwidth over nodes: the playbook's own all-gather measurements fall as nodes^-0.6;
        # sums gradients in fp32 beside the buckets of DistributedDataParallel, balances stages by
        # cost, gathers anew what sequence parallelism split, in collectives beside compute; its
        # 1F1B engine asserts that the micro-batches fill the pipeline
        constants=Constants(
            node_degradation=0.6,
            base_memory_bytes=5e8,
            fragmentation=1.01,
            transient_memory=1.0,
            activations_memory=0.9,
            logits_memory=0.72,
            gathered_memory=0.01,
            gathered_stage_memory=0.01,
            run_ahead_memory=0.9,
            run_ahead_stage_memory=0.5,
            pressure=1.8,
        ),
        memory_spreads={
            "weights_memory": 0.02,
            "activations_memory": 0.1,
            "run_ahead_memory": 0.1,
            "run_ahead_stage_memory": 0.1,
            "logits_memory": 0.15,
            "base_memory_bytes": 0.5,
            "transient_memory": 0.2,
        },
        reduce_bytes=4.0,
        balances_stages=True,
        reads_first_rank=True,
        fills_pipeline=True,
    ),
)
DEFAULT_STACK = Stack(name="other", pattern="", constants=Constants())


def find_reference(given: Path | None) -> Path | None:
    """The folder of reference tables: the given one, else one beside the repository; or none."""
    nearby = Path(__file__).resolve().parents[2] / "shared" / "reference"
    folder = given or nearby
    return folder if (folder / "measured").is_dir() else None


def read_table(path: Path) -> pd.DataFrame:
    """Read a table and fill in the columns that it lacks."""
    frame = pd.read_csv(path)
    for name, value in DEFAULTS.items():
        if name not in frame:
            frame[name] = value
        elif isinstance(value, str) or value == value:
            frame[name] = frame[name].fillna(value)
    if "kv_heads" not in frame:
        frame["kv_heads"] = frame["attention_heads"]
    if "ffn_size" not in frame:
        frame["ffn_size"] = 4 * frame["hidden_size"]
    if "devices" not in frame:
        frame["devices"] = frame["tp"] * frame["pp"] * frame["dp"] * frame["cp"]
    return frame


def hardware_by_name(device: str) -> Hardware:
    """Hardware of the preset that comes nearest to a device's name."""
    name = str(device).lower()
    match = next((key for key in sorted(DEVICES, key=len, reverse=True) if key in name), None)
    if match is None:
        close = get_close_matches(name, list(DEVICES), n=1, cutoff=0.4)
        match = close[0] if close else None
    return hardware_of(load_cluster_spec(DEVICES[match] if match else FALLBACK_PRESET))


def stack_by_source(source: str) -> Stack:
    """The stack that a row's source names."""
    for stack in STACKS:
        if re.search(stack.pattern, source, re.IGNORECASE):
            return stack
    return DEFAULT_STACK


def is_ok(frame: pd.DataFrame) -> NDArray[np.bool_]:
    """Rows that ran."""
    return (frame["status"].astype(str).str.lower() == "ok").to_numpy()


def is_failed(frame: pd.DataFrame) -> NDArray[np.bool_]:
    """Rows that ran out of memory, as far as their status tells."""
    return frame["status"].astype(str).str.contains(FAILED).to_numpy()


def points_of_table(frame: pd.DataFrame, stack: Stack) -> Points:
    """Rows of one stack as columns."""

    def column(name: str) -> Array:
        return frame[name].to_numpy(dtype=np.float64)

    gated = column("gated_mlp")
    schedule = _schedules(frame)
    first, middle, last = (-1.0, -1.0, -1.0)
    if stack.balances_stages:
        first, middle, last, _ = np.array(_dealt(frame), dtype=np.float64).T
    return Points(
        num_layers=column("layers"),
        hidden_size=column("hidden_size"),
        ffn_size=column("ffn_size"),
        num_heads=column("attention_heads"),
        num_kv_heads=column("kv_heads"),
        head_dim=column("hidden_size") / column("attention_heads"),
        vocab_size=column("vocab_size"),
        gated=gated,
        tied=column("tied_embeddings"),
        biased=1.0 - gated,
        learned_positions=(1.0 - gated) * column("sequence_length"),
        sequence_length=column("sequence_length"),
        global_batch_size=column("global_batch_size"),
        dp=column("dp"),
        tp=column("tp"),
        cp=column("cp"),
        ep=column("ep"),
        pp=column("pp"),
        virtual_stages=column("virtual_stages"),
        schedule=schedule,
        micro_batch_size=column("micro_batch_size"),
        zero_stage=column("zero_stage"),
        recompute=frame["recompute"].astype(str).str.lower().map(RECOMPUTES).fillna(0).to_numpy(),
        sequence_parallel=column("sequence_parallel"),
        attention=frame["attention_kernel"].map(ATTENTIONS).fillna(3.0).to_numpy(),
        fused_norm=(frame["norm_kernel"] == "fused").to_numpy(dtype=np.float64),
        dtype_bytes=2.0,
        reduce_bytes=stack.reduce_bytes,
        gradient_bytes=stack.reduce_bytes,
        first_layers=first,
        middle_layers=middle,
        last_layers=last,
    )


def _schedules(frame: pd.DataFrame) -> Array:
    """The schedule where a table names it; else interleaved where there are virtual stages."""
    named = frame["pipeline_schedule"].astype(str).map(SCHEDULES)
    usual = np.where(frame["virtual_stages"] > 1, INTERLEAVED, ONE_F_ONE_B)
    return named.where(named.notna(), pd.Series(usual, index=frame.index)).to_numpy(np.float64)


def _dealt(frame: pd.DataFrame) -> list["Dealt"]:
    """How nanotron deals every row's blocks: by cost, see `deal`.

    The output projection counts as `vocabulary * hidden`, a layer as
    `4 hidden^2 + 3 hidden * feed-forward`.
    """
    hidden, ffn = frame["hidden_size"].to_numpy(float), frame["ffn_size"].to_numpy(float)
    head = frame["vocab_size"].to_numpy(float) / (4.0 * hidden + 3.0 * ffn)
    return [
        deal(int(layers), int(ranks), cost)
        for layers, ranks, cost in zip(frame["layers"], frame["pp"], head, strict=True)
    ]


def is_illegal(frame: pd.DataFrame, stack: Stack) -> NDArray[np.bool_]:
    """Rows that cannot run: fewer layers than stages, idle ranks, what the schedule refuses."""
    short = (frame["pp"] * frame["virtual_stages"] > frame["layers"]).to_numpy()
    if stack.fills_pipeline:
        replicas = frame["dp"] * frame["micro_batch_size"]
        micro_batches = np.maximum(frame["global_batch_size"] / replicas, 1.0)
        short = short | (micro_batches < frame["pp"] - 1).to_numpy()
    if not stack.balances_stages:
        return short
    used = np.array([dealt.used for dealt in _dealt(frame)])
    return short | (used < frame["pp"].to_numpy())


class Dealt(NamedTuple):
    """What the ranks of a pipeline hold."""

    first: int
    """Layers of the first rank; -1 without a pipeline, as the other two."""
    middle: int
    """Of the fullest rank between."""
    last: int
    """Of the rank with the output projection."""
    used: int
    """Ranks that hold any block."""


def deal(layers: int, ranks: int, head_cost: float) -> Dealt:
    """Deal embedding, layers, norm, projection, cast and loss to ranks.

    A block goes to the rank at hand, which is full once its share of the cost is reached; free
    blocks move on too, so that many ranks for few layers leave the last without any.
    """
    if ranks == 1:
        return Dealt(-1, -1, -1, 1)
    costs = [0.0, *[1.0] * layers, 0.0, head_cost, 0.0, 0.0]
    share = (layers + head_cost) / ranks
    owners, rank, total = [], 0, 0.0
    for cost in costs:
        owners.append(rank)
        total += cost
        if total >= share * (rank + 1) - 1e-6 and rank < ranks - 1:
            rank += 1
    held = np.bincount(owners[1 : layers + 1], minlength=ranks)
    head = owners[-3]
    between = [int(held[rank]) for rank in range(1, ranks) if rank != head]
    return Dealt(int(held[0]), max(between, default=0), int(held[head]), owners[-1] + 1)
