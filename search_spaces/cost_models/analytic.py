"""`AnalyticCostModel`: predicted step time and memory of configurations, with their parts."""

import math
from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np

from search_spaces.cluster_spec import ClusterSpec
from search_spaces.cost_models.constants import Constants
from search_spaces.cost_models.data_parallel import data_parallel_s
from search_spaces.cost_models.hardware import Hardware, hardware_of
from search_spaces.cost_models.head import end_times
from search_spaces.cost_models.layer import layer_times
from search_spaces.cost_models.memory import MemoryParts, peak_memory, rank_parameters
from search_spaces.cost_models.optimizer import optimizer_s
from search_spaces.cost_models.pipeline import pipeline_times
from search_spaces.cost_models.points import (
    ATTENTION_FLASH2,
    Array,
    Column,
    Points,
    points_of,
)
from search_spaces.cost_models.stages import stage_layers
from search_spaces.model_spec import ModelSpec
from search_spaces.parallel_config import ParallelConfig
from search_spaces.training_spec import TrainingSpec

PARTS = (
    "compute", "tensor_parallel", "context_parallel", "expert_parallel", "pipeline_bubble",
    "pipeline_p2p", "data_parallel", "optimizer", "host",
)  # fmt: skip


@dataclass(frozen=True, kw_only=True)
class Prediction:
    """Predictions for N points; every array has N entries."""

    step_time_s: Array
    parts_s: dict[str, Array]
    peak_memory_bytes: Array
    memory_parts_bytes: dict[str, Array]


@dataclass(frozen=True, kw_only=True)
class CostEstimate:
    """What the model says of one configuration."""

    step_time_s: float
    peak_memory_bytes: float
    parts_s: dict[str, float] = field(default_factory=dict)
    """Addends of the step time in seconds; they sum to `step_time_s`."""
    memory_parts_bytes: dict[str, float] = field(default_factory=dict)
    """Addends of the peak memory in bytes, of the pipeline rank where it is reached."""
    step_time_low_s: float
    """Lower end of the 90 % interval."""
    step_time_high_s: float
    """Upper end of the 90 % interval."""


def predict(points: Points, hardware: Hardware, constants: Constants) -> Prediction:
    """Step time and memory of all points at once; the vectorised heart of the model."""
    layer = layer_times(points, hardware, constants)
    ends = end_times(points, hardware, constants)
    stages = stage_layers(points)
    pipe = pipeline_times(points, stages, layer, ends, hardware, constants)
    single = np.asarray(np.asarray(points.pp) <= 1, dtype=np.float64)
    held = np.maximum(
        rank_parameters(points, stages.first, 1.0, single),
        rank_parameters(points, stages.last, single, 1.0),
    )
    reduction = data_parallel_s(points, held, pipe.slowest_layers, layer, hardware, constants)
    update = optimizer_s(points, held, hardware, constants)
    micro_batches = points.num_microbatches
    per_layer = micro_batches * pipe.slowest_layers
    doublings = np.log2(np.maximum(points.num_devices / hardware.devices_per_node, 1.0))
    slower = 1.0 + constants.straggler * doublings
    host = (
        per_layer * layer.host_s + micro_batches * constants.host_micro_batch_s
        + constants.host_step_s + constants.host_parameter_s * held
    )  # fmt: skip
    parts: dict[str, Column] = {
        "compute": per_layer * layer.compute_s + micro_batches * pipe.slowest_ends_s,
        "tensor_parallel": per_layer * layer.tensor_parallel_s,
        "context_parallel": per_layer * layer.context_parallel_s,
        "expert_parallel": per_layer * layer.expert_parallel_s,
        "pipeline_bubble": pipe.bubble_s,
        "pipeline_p2p": pipe.hops_s,
        "data_parallel": reduction,
        "optimizer": update,
        "host": host,
    }
    memory, memory_parts = peak_memory(points, stages, hardware, constants)
    size = points.size
    arrays = {name: np.broadcast_to(parts[name] * slower, (size,)) for name in PARTS}
    return Prediction(
        step_time_s=np.sum([arrays[name] for name in PARTS], axis=0),
        parts_s=arrays,
        peak_memory_bytes=np.broadcast_to(memory, (size,)),
        memory_parts_bytes={
            name: np.broadcast_to(getattr(memory_parts, name), (size,))
            for name in MemoryParts.__dataclass_fields__
        },
    )


class AnalyticCostModel:
    """Predicts step time and peak memory of one model and recipe on one cluster."""

    def __init__(
        self,
        model: ModelSpec,
        training: TrainingSpec,
        cluster: ClusterSpec,
        constants: Constants | None = None,
        *,
        time_spread: float = 0.35,
        memory_spread: float = 0.15,
    ) -> None:
        """Set up; the spreads are half-widths of 90 % intervals, of logarithms."""
        self.model = model
        self.training = training
        self.cluster = cluster
        self.constants = constants or Constants()
        self.hardware = hardware_of(cluster)
        self.time_spread = time_spread
        self.memory_spread = memory_spread

    def points(self, configs: Sequence[ParallelConfig]) -> Points:
        """The configurations as columns."""
        return points_of(self.model, self.training, configs, attention=ATTENTION_FLASH2)

    def predict(self, points: Points) -> Prediction:
        """Predictions for columns: the fast path."""
        return predict(points, self.hardware, self.constants)

    def estimate(self, config: ParallelConfig) -> CostEstimate:
        """Predict one configuration."""
        return self.estimate_many([config])[0]

    def estimate_many(self, configs: Sequence[ParallelConfig]) -> list[CostEstimate]:
        """Predict many configurations in one pass."""
        if not configs:
            return []
        result = self.predict(self.points(configs))
        low, high = math.exp(-self.time_spread), math.exp(self.time_spread)
        times = result.step_time_s.tolist()
        peaks = result.peak_memory_bytes.tolist()
        parts = zip(*(column.tolist() for column in result.parts_s.values()), strict=True)
        memory = zip(*(c.tolist() for c in result.memory_parts_bytes.values()), strict=True)
        return [
            CostEstimate(
                step_time_s=time,
                peak_memory_bytes=peak,
                parts_s=dict(zip(result.parts_s, part, strict=True)),
                memory_parts_bytes=dict(zip(result.memory_parts_bytes, held, strict=True)),
                step_time_low_s=time * low,
                step_time_high_s=time * high,
            )
            for time, peak, part, held in zip(times, peaks, parts, memory, strict=True)
        ]

    def probability_fits(self, config: ParallelConfig, limit_bytes: float) -> float:
        """Probability, 0..1, that the peak memory stays below the limit."""
        return self.fit_probability(self.estimate(config).peak_memory_bytes, limit_bytes)

    def fit_probability(self, peak_memory_bytes: float, limit_bytes: float) -> float:
        """The same for a peak that was already predicted; a normal law on its logarithm."""
        deviation = max(self.memory_spread, 1e-6) / 1.645
        score = math.log(limit_bytes / peak_memory_bytes) / deviation
        return 0.5 * (1.0 + math.erf(score / math.sqrt(2.0)))
