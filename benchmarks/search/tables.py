"""Tabular problems: published measured runs, one problem per model, devices, length and batch.

The prior of a group is the analytic cost model, its parts re-weighted by a fit to other groups
alone: those of the calibration table if one is given, else the other groups of the same table.
"""

import math
import statistics
from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
from numpy.typing import NDArray
from pydantic import ValidationError
from scipy.optimize import least_squares, minimize
from scipy.special import ndtr

from benchmarks.search.problem import Problem
from benchmarks.search.table_rows import Row, count, flag, positive, read_rows
from benchmarks.search.worlds import Floats
from search_spaces.cluster_io import load_cluster_spec
from search_spaces.cluster_spec import ClusterSpec
from search_spaces.cost_models.analytic import AnalyticCostModel, CostEstimate
from search_spaces.model_spec import ModelSpec
from search_spaces.parallel_config import ParallelConfig, Recompute
from search_spaces.training_spec import TrainingSpec
from tuner.errors import ConfigError
from tuner.ports import Candidate

MIN_ROWS = 30
MEMORY_SPREAD = 0.15
_RECOMPUTE: Mapping[str, Recompute] = {
    "none": "none",
    "full": "full",
    "sel": "selective",
    "selective": "selective",
}
BYTES_PER_GB = 2**30
"""The tables' gigabytes: what torch's allocator calls so."""


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

    @property
    def num_ran(self) -> int:
        """Configurations with a step time."""
        return int(np.isfinite(self.step_time_s).sum())

    def estimates(self) -> list[CostEstimate]:
        """What the cost model says without any calibration."""
        return AnalyticCostModel(
            self.model, self.training, self.cluster, is_kernel=False
        ).estimate_many(self.configs)


def read_groups(path: Path, *, is_clean: bool = False, min_rows: int = MIN_ROWS) -> list[Group]:
    """Groups of at least `min_rows` configurations with at least one that ran.

    Args:
        path: a CSV file with the columns of the reference tables.
        is_clean: leave out rows that the table flags as `slow_pipeline_regime`.
        min_rows: smallest group.
    """
    rows = read_rows(path)
    if is_clean:
        rows = [row for row in rows if not flag(row, "slow_pipeline_regime")]
    grouped: dict[tuple[str, ...], list[Row]] = defaultdict(list)
    for row in rows:
        sizes = (str(count(row, name, 1)) for name in _GROUP_SIZES)
        grouped[(row["model"], row["device"], *sizes)].append(row)
    return [
        group
        for key, members in grouped.items()
        if len(members) >= min_rows
        and (group := _checked_group(path, " ".join(key), members)).num_ran > 0
    ]


def _checked_group(path: Path, name: str, rows: Sequence[Row]) -> Group:
    try:
        return _group(name, rows)
    except (ValueError, ZeroDivisionError) as error:
        raise ConfigError(f"{path.name}, group {name}: {_first_line(error)}") from None


def _first_line(error: Exception) -> str:
    if isinstance(error, ValidationError):
        first = error.errors()[0]
        return f"{'.'.join(map(str, first['loc']))}: {first['msg']}"
    return str(error).splitlines()[0]


_GROUP_SIZES = ("devices", "sequence_length", "global_batch_size")


def _group(name: str, rows: Sequence[Row]) -> Group:
    first = rows[0]
    by_config: dict[ParallelConfig, list[Row]] = defaultdict(list)
    for row in rows:
        by_config[_config(row)].append(row)
    return Group(
        name=name,
        model=_model(first),
        training=TrainingSpec(
            sequence_length=count(first, "sequence_length", 1),
            global_batch_size=count(first, "global_batch_size", 1),
            dtype="bf16",
        ),
        cluster=_cluster(first["device"], count(first, "devices", 1)),
        configs=tuple(by_config),
        step_time_s=np.array([_step_time(members) for members in by_config.values()]),
        peak_memory_bytes=np.array([_peak(members) for members in by_config.values()]),
    )


def _config(row: Row) -> ParallelConfig:
    chunks, tp, pp = (count(row, name, 1) for name in ("virtual_stages", "tp", "pp"))
    return ParallelConfig(
        tp=tp,
        pp=pp,
        dp=count(row, "dp", max(1, count(row, "devices", 1) // (tp * pp))),
        virtual_stages=chunks,
        pipeline_schedule="interleaved" if chunks > 1 else "1f1b",
        micro_batch_size=count(row, "micro_batch_size", 1),
        zero_stage=count(row, "zero_stage", 0),
        recompute=_RECOMPUTE.get(row.get("recompute", ""), "none"),
        sequence_parallel=flag(row, "sequence_parallel") and tp > 1,
        dtype="bf16",
    )


def _model(row: Row) -> ModelSpec:
    hidden, heads = count(row, "hidden_size", 1), count(row, "attention_heads", 1)
    return ModelSpec(
        name=row["model"],
        family="llama" if flag(row, "gated_mlp") else "gpt2",
        num_layers=count(row, "layers", 1),
        hidden_size=hidden,
        num_heads=heads,
        num_kv_heads=count(row, "kv_heads", heads),
        head_dim=hidden // heads,
        ffn_size=count(row, "ffn_size", 4 * hidden),
        vocab_size=count(row, "vocab_size", 1),
        max_positions=count(row, "sequence_length", 1),
        tied_embeddings=flag(row, "tied_embeddings"),
    )


def _cluster(device: str, num_devices: int) -> ClusterSpec:
    name = device.lower()
    if "a100" in name:
        preset = "dgx-a100-40" if "40" in name.partition("a100")[2] else "dgx-a100-80"
    else:
        preset = "frontier" if "mi250" in name else "dgx-h100"
    cluster = load_cluster_spec(preset)
    per_node = min(cluster.devices_per_node, num_devices)
    return cluster.model_copy(
        update={"num_nodes": max(1, num_devices // per_node), "devices_per_node": per_node}
    )


def _step_time(rows: Sequence[Row]) -> float:
    times = positive(rows, "step_time_s")
    return statistics.median(times) if times else math.inf


def _peak(rows: Sequence[Row]) -> float:
    peaks = positive(rows, "peak_memory_gb")
    return max(peaks) * BYTES_PER_GB if peaks else math.nan


@dataclass(frozen=True)
class Weights:
    """What was fitted: factors on the parts of step time and memory, by name, and when memory ends.

    `memory_limit` is the predicted peak, as a share of the device's capacity, that half of the
    runs survive; `memory_spread` the standard deviation of the log about it.
    """

    step_time: Mapping[str, float]
    memory: Mapping[str, float]
    memory_limit: float = 1.0
    memory_spread: float = MEMORY_SPREAD

    def peak_bytes(self, estimate: CostEstimate) -> dict[str, float]:
        """Corrected parts of the peak."""
        parts = estimate.memory_parts_bytes
        return {name: size * self.memory.get(name, 1.0) for name, size in parts.items()}


def fit_weights(groups: Sequence[Group]) -> Weights:
    """Factors that bring the parts nearest to the rows of `groups`, held to 1 by a ridge."""
    times: list[tuple[dict[str, float], float, float]] = []
    peaks: list[tuple[dict[str, float], float, float]] = []
    outcomes: list[tuple[CostEstimate, float, bool]] = []
    for group in groups:
        capacity = group.cluster.memory_bytes
        for estimate, time, peak in zip(
            group.estimates(), group.step_time_s, group.peak_memory_bytes, strict=True
        ):
            outcomes.append((estimate, capacity, bool(np.isfinite(time))))
            if np.isfinite(time):
                times.append((estimate.parts_s, float(time), 1.0))
            if np.isfinite(peak):
                # Small peaks are no risk, so their error counts for less.
                weight = float(np.clip(2 * peak / capacity, 0.2, 1.0))
                peaks.append((estimate.memory_parts_bytes, float(peak), weight))
    weights = Weights(_fit(times), _fit(peaks))
    ratios = [sum(weights.peak_bytes(e).values()) / capacity for e, capacity, _ in outcomes]
    limit, spread = _fit_limit(np.log(ratios), np.array([ran for _, _, ran in outcomes]))
    return replace(weights, memory_limit=limit, memory_spread=spread)


def _fit(rows: Sequence[tuple[dict[str, float], float, float]]) -> dict[str, float]:
    """Factors by robust least squares on the log of (parts, total, weight)."""
    if len(rows) < 10:
        return {}
    names = list(rows[0][0])
    table = np.array([[parts[name] for name in names] for parts, _, _ in rows])
    target = np.log([total for _, total, _ in rows])
    weight = np.array([weight for _, _, weight in rows])
    ridge = math.sqrt(len(rows)) * 0.02

    def residuals(logs: Floats) -> Floats:
        return np.r_[weight * (np.log(table @ np.exp(logs)) - target), ridge * logs]

    fit = least_squares(residuals, np.zeros(len(names)), loss="soft_l1", f_scale=0.1)
    return dict(zip(names, np.exp(fit.x).tolist(), strict=True))


def _fit_limit(log_ratios: Floats, ran: NDArray[np.bool_]) -> tuple[float, float]:
    """Median limit and spread by which outcomes follow from predicted peaks (probit regression).

    Some runs fail for other reasons, whatever their memory; the fit allows for a share of them.
    """
    if len(ran) < 10 or ran.all():
        return 1.0, MEMORY_SPREAD

    def loss(point: Floats) -> float:
        limit, spread, other = point[0], math.exp(point[1]), 0.5 / (1 + math.exp(-point[2]))
        runs = (1 - other) * ndtr((limit - log_ratios) / spread)
        chance = np.where(ran, runs, 1 - runs)
        pull = (limit / 0.1) ** 2 + (point[1] - math.log(MEMORY_SPREAD)) ** 2
        return float(0.5 * pull - np.log(np.maximum(chance, 1e-9)).sum())

    fit = minimize(loss, np.array([-0.05, math.log(MEMORY_SPREAD), -2.0]), method="Nelder-Mead")
    return math.exp(fit.x[0]), float(np.clip(math.exp(fit.x[1]), 0.05, 0.4))


def problem_of(group: Group, weights: Weights) -> Problem:
    """The group with a calibrated prior."""
    limit = group.cluster.memory_bytes * weights.memory_limit
    candidates = []
    for config, estimate in zip(group.configs, group.estimates(), strict=True):
        parts = {n: s * weights.step_time.get(n, 1.0) for n, s in estimate.parts_s.items()}
        memory = weights.peak_bytes(estimate)
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
