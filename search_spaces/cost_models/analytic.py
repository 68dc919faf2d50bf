"""`AnalyticCostModel`: predicted step time and memory of configurations, with their parts."""

import math
from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np

from search_spaces.cluster_spec import ClusterSpec
from search_spaces.cost_models.calibration import Calibration
from search_spaces.cost_models.constants import Constants
from search_spaces.cost_models.hardware import hardware_of
from search_spaces.cost_models.points import Points, points_of
from search_spaces.cost_models.prediction import Prediction
from search_spaces.model_spec import ModelSpec
from search_spaces.parallel_config import ParallelConfig
from search_spaces.training_spec import TrainingSpec

NORMAL_90 = 1.645
"""Half-width of a normal law's 90 % interval in standard deviations."""


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
    memory_half_width: float
    """Half-width of the 90 % interval of the peak memory's logarithm."""

    def probability_fits(self, limit_bytes: float) -> float:
        """Probability, 0..1, that the peak stays below the limit: a normal law of its logarithm."""
        deviation = max(self.memory_half_width, 1e-6) / NORMAL_90
        score = math.log(limit_bytes / self.peak_memory_bytes) / deviation
        return 0.5 * (1.0 + math.erf(score / math.sqrt(2.0)))


def prior_constants(cluster: ClusterSpec) -> Constants:
    """The constants before any trial: the usual ones, and what was measured of the machine."""
    measured = {
        "host_forward_s": cluster.host_forward_s,
        "host_backward_s": cluster.host_backward_s,
    }
    known = {name: value for name, value in measured.items() if value is not None}
    if cluster.device_kind == "cpu":
        known["fragmentation"] = 1.0  # resident memory: what is freed is gone
    return Constants(**known)


class AnalyticCostModel:
    """Predicts step time and peak memory of one model and recipe on one cluster."""

    def __init__(
        self,
        model: ModelSpec,
        training: TrainingSpec,
        cluster: ClusterSpec,
        constants: Constants | None = None,
        *,
        calibration: Calibration | None = None,
        is_kernel: bool = True,
    ) -> None:
        """Set up with the prior's constants, with others, or with what `refit` learnt.

        `is_kernel`: the tuner's own kernel is to run the configurations; of other trainers only
        what is published of such stacks is known.
        """
        self.model = model
        self.training = training
        self.cluster = cluster
        self.is_kernel = is_kernel
        self.hardware = hardware_of(cluster)
        self.prior: Constants = constants or prior_constants(cluster)
        self.calibration = calibration or Calibration(constants=self.prior)

    @property
    def constants(self) -> Constants:
        """The free numbers in use."""
        return self.calibration.constants

    def with_calibration(self, calibration: Calibration) -> "AnalyticCostModel":
        """The same model, prior and cluster with something else learnt."""
        return AnalyticCostModel(
            self.model,
            self.training,
            self.cluster,
            self.prior,
            calibration=calibration,
            is_kernel=self.is_kernel,
        )

    def points(self, configs: Sequence[ParallelConfig]) -> Points:
        """The configurations as columns."""
        return points_of(self.model, self.training, configs, is_kernel=self.is_kernel)

    def predict(self, points: Points, *, has_parts: bool = True) -> Prediction:
        """Predictions for columns: the fast path, faster still without the parts."""
        return self.calibration.predict(points, self.hardware, has_parts=has_parts)

    def estimate(self, config: ParallelConfig) -> CostEstimate:
        """Predict one configuration."""
        return self.estimate_many([config])[0]

    def estimate_many(self, configs: Sequence[ParallelConfig]) -> list[CostEstimate]:
        """Predict many configurations in one pass."""
        if not configs:
            return []
        result = self.predict(self.points(configs))
        low = result.step_time_s * np.exp(-result.step_time_half_width)
        high = result.step_time_s * np.exp(result.step_time_half_width)
        parts = zip(*(column.tolist() for column in result.parts_s.values()), strict=True)
        memory = zip(*(c.tolist() for c in result.memory_parts_bytes.values()), strict=True)
        rows = zip(
            result.step_time_s.tolist(), result.peak_memory_bytes.tolist(),
            result.memory_half_width.tolist(), low.tolist(), high.tolist(), parts, memory,
            strict=True,
        )  # fmt: skip
        return [
            CostEstimate(
                step_time_s=time,
                peak_memory_bytes=peak,
                parts_s=dict(zip(result.parts_s, part, strict=True)),
                memory_parts_bytes=dict(zip(result.memory_parts_bytes, held, strict=True)),
                step_time_low_s=lowest,
                step_time_high_s=highest,
                memory_half_width=half,
            )
            for time, peak, half, lowest, highest, part, held in rows
        ]

    def probability_fits(self, config: ParallelConfig, limit_bytes: float) -> float:
        """Probability, 0..1, that the peak memory stays below the limit."""
        return self.estimate(config).probability_fits(limit_bytes)
