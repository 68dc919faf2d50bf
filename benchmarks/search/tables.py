"""Tabular problems: published measured runs, one problem per model, devices, length and batch.

The prior of a group is the analytic cost model, its parts re-weighted by a fit to other groups
alone: those of the calibration table if one is given, else the other groups of the same table.
"""

import csv
import math
import statistics
from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from scipy.optimize import least_squares

from benchmarks.search.problem import Problem
from benchmarks.search.worlds import Floats
from search_spaces.cluster_io import load_cluster_spec
from search_spaces.cluster_spec import ClusterSpec
from search_spaces.cost_models.analytic import AnalyticCostModel, CostEstimate
from search_spaces.model_spec import ModelSpec
from search_spaces.parallel_config import ParallelConfig
from search_spaces.training_spec import TrainingSpec
from tuner.ports import Candidate

MIN_ROWS = 30
MEMORY_SPREAD = 0.15
_CLUSTERS = {"h100-80": "dgx-h100", "a100-80": "dgx-a100-80", "a100-40": "dgx-a100-40"}
_RECOMPUTE = {"none": "none", "full": "full", "sel": "selective", "selective": "selective"}


@dataclass(frozen=True)
class Group:
    """Rows of one model on one number of devices at one length and batch."""

    name: str
    model: ModelSpec
    training: TrainingSpec
    cluster: ClusterSpec
    configs: tuple[ParallelConfig, ...]
    step_time_s: Floats
    peak_memory_bytes: Floats

    def estimates(self) -> list[CostEstimate]:
        """What the cost model says without any calibration."""
        return AnalyticCostModel(self.model, self.training, self.cluster).estimate_many(
            self.configs
        )


def read_groups(path: Path, *, is_clean: bool = False, min_rows: int = MIN_ROWS) -> list[Group]:
    """Groups of at least `min_rows` configurations with at least one that ran.

    Args:
        path: a CSV file with the columns of the reference tables.
        is_clean: leave out rows that the table flags as `slow_pipeline_regime`.
        min_rows: smallest group.
    """
    with path.open(newline="") as file:
        rows = list(csv.DictReader(file))
    if is_clean:
        rows = [row for row in rows if row.get("slow_pipeline_regime", "") not in ("True", "1")]
    grouped: dict[tuple[str, ...], list[Mapping[str, str]]] = defaultdict(list)
    for row in rows:
        key = ("model", "device", "devices", "sequence_length", "global_batch_size")
        grouped[tuple(row[name] for name in key)].append(row)
    groups = [_group(" ".join(key), members) for key, members in grouped.items()]
    return [
        group
        for group in groups
        if len(group.configs) >= min_rows and np.isfinite(group.step_time_s).any()
    ]


def _group(name: str, rows: Sequence[Mapping[str, str]]) -> Group:
    first = rows[0]
    by_config: dict[ParallelConfig, list[Mapping[str, str]]] = defaultdict(list)
    for row in rows:
        by_config[_config(row)].append(row)
    return Group(
        name=name,
        model=_model(first),
        training=TrainingSpec(
            sequence_length=int(first["sequence_length"]),
            global_batch_size=int(first["global_batch_size"]),
            dtype="bf16",
        ),
        cluster=_cluster(first["device"], int(first["devices"])),
        configs=tuple(by_config),
        step_time_s=np.array([_step_time(members) for members in by_config.values()]),
        peak_memory_bytes=np.array([_peak(members) for members in by_config.values()]),
    )


def _config(row: Mapping[str, str]) -> ParallelConfig:
    chunks = int(row["virtual_stages"] or 1)
    return ParallelConfig(
        tp=int(row["tp"]),
        pp=int(row["pp"]),
        dp=int(row["dp"]),
        virtual_stages=chunks,
        pipeline_schedule="interleaved" if chunks > 1 else "1f1b",
        micro_batch_size=int(row["micro_batch_size"]),
        zero_stage=int(row["zero_stage"]),
        recompute=_RECOMPUTE[row["recompute"]],  # type: ignore[arg-type]
        sequence_parallel=row["sequence_parallel"] in ("1", "True") and int(row["tp"]) > 1,
        dtype="bf16",
    )


def _model(row: Mapping[str, str]) -> ModelSpec:
    hidden, heads = int(row["hidden_size"]), int(row["attention_heads"])
    return ModelSpec(
        name=row["model"],
        family="llama" if row["gated_mlp"] in ("1", "True") else "gpt2",
        num_layers=int(row["layers"]),
        hidden_size=hidden,
        num_heads=heads,
        num_kv_heads=int(row["kv_heads"]),
        head_dim=hidden // heads,
        ffn_size=int(row["ffn_size"]),
        vocab_size=int(row["vocab_size"]),
        max_positions=int(row["sequence_length"]),
        tied_embeddings=row["tied_embeddings"] in ("1", "True"),
    )


def _cluster(device: str, num_devices: int) -> ClusterSpec:
    cluster = load_cluster_spec(_CLUSTERS.get(device, "dgx-h100"))
    per_node = min(cluster.devices_per_node, num_devices)
    return cluster.model_copy(
        update={"num_nodes": max(1, num_devices // per_node), "devices_per_node": per_node}
    )


def _step_time(rows: Sequence[Mapping[str, str]]) -> float:
    times = [float(row["step_time_s"]) for row in rows if row["status"] == "ok"]
    return statistics.median(times) if times else math.inf


def _peak(rows: Sequence[Mapping[str, str]]) -> float:
    peaks = [float(row["peak_memory_gb"]) for row in rows if row.get("peak_memory_gb")]
    return max(peaks) * 1e9 if peaks else math.nan


@dataclass(frozen=True)
class Weights:
    """Factors on the parts of step time and memory, by name, and the memory's residual spread."""

    step_time: Mapping[str, float]
    memory: Mapping[str, float]
    memory_spread: float = MEMORY_SPREAD


def fit_weights(groups: Sequence[Group]) -> Weights:
    """Factors that bring the parts nearest to the rows of `groups`, held to 1 by a ridge."""
    times: list[tuple[dict[str, float], float]] = []
    peaks: list[tuple[dict[str, float], float]] = []
    for group in groups:
        for estimate, time, peak in zip(
            group.estimates(), group.step_time_s, group.peak_memory_bytes, strict=True
        ):
            if np.isfinite(time):
                times.append((estimate.parts_s, float(time)))
            if np.isfinite(peak):
                peaks.append((estimate.memory_parts_bytes, float(peak)))
    step_time, _ = _fit(times)
    memory, spread = _fit(peaks)
    return Weights(step_time, memory, max(spread, 0.05))


def _fit(rows: Sequence[tuple[dict[str, float], float]]) -> tuple[dict[str, float], float]:
    """Weights by robust least squares on the log, and the spread of what is left."""
    if len(rows) < 10:
        return {}, MEMORY_SPREAD
    names = list(rows[0][0])
    table = np.array([[parts[name] for name in names] for parts, _ in rows])
    target = np.log([value for _, value in rows])
    ridge = math.sqrt(len(rows)) * 0.02

    def residuals(logs: Floats) -> Floats:
        return np.r_[np.log(table @ np.exp(logs)) - target, ridge * logs]

    fit = least_squares(residuals, np.zeros(len(names)), loss="soft_l1", f_scale=0.1)
    left = residuals(fit.x)[: len(rows)]
    spread = float(np.median(np.abs(left)) * 1.48)
    return dict(zip(names, np.exp(fit.x).tolist(), strict=True)), spread


def problem_of(group: Group, weights: Weights) -> Problem:
    """The group with a calibrated prior."""
    limit = group.cluster.memory_bytes
    candidates = []
    for config, estimate in zip(group.configs, group.estimates(), strict=True):
        parts = {n: s * weights.step_time.get(n, 1.0) for n, s in estimate.parts_s.items()}
        memory = {
            n: size * weights.memory.get(n, 1.0) for n, size in estimate.memory_parts_bytes.items()
        }
        peak = sum(memory.values())
        score = math.log(limit / peak) / weights.memory_spread
        candidates.append(
            Candidate(
                config=config,
                step_time_s=sum(parts.values()),
                step_time_parts_s=parts,
                peak_memory_bytes=peak,
                peak_memory_parts_bytes=memory,
                probability_fits=0.5 * (1 + math.erf(score / math.sqrt(2))),
            )
        )
    return Problem(
        name=group.name,
        candidates=candidates,
        step_time_s=group.step_time_s,
        peak_memory_bytes=group.peak_memory_bytes,
        failure=None,
    )


def table_problems(path: Path, calibrate: Path | None, *, is_clean: bool = False) -> list[Problem]:
    """All groups of a table as problems; each prior is blind to its own group."""
    groups = read_groups(path, is_clean=is_clean)
    if calibrate is not None:
        names = {group.name for group in groups}
        others = [g for g in read_groups(calibrate, min_rows=1) if g.name not in names]
        weights = fit_weights(others)
        return [problem_of(group, weights) for group in groups]
    return [
        problem_of(group, fit_weights([other for other in groups if other is not group]))
        for group in groups
    ]
