"""Predicts a point just before it runs, by the cost model refitted to the study's own trials."""

import statistics
from collections.abc import Collection, Sequence

from results_db.records import PredictionRow
from search_spaces.cluster_spec import ClusterSpec
from search_spaces.cost_models.analytic import AnalyticCostModel, CostEstimate
from search_spaces.cost_models.calibrate import refit
from search_spaces.model_spec import ModelSpec
from search_spaces.parallel_config import ParallelConfig
from search_spaces.training_spec import TrainingSpec
from trainer.contract import FailureKind
from tuner.ports import Observation

PRIOR = "analytic"
CALIBRATED = "calibrated"
# A refit takes well under a second up to here; older trials add little to a few constants.
_MOST_TRIALS = 200


class Predictor:
    """The cost model of one study, before and after it learnt from trials."""

    def __init__(
        self,
        model: ModelSpec,
        training: TrainingSpec,
        cluster: ClusterSpec,
        is_kernel: bool = True,
    ) -> None:
        self._prior = AnalyticCostModel(model, training, cluster, is_kernel=is_kernel)
        self._calibrated = self._prior
        self._num_learnt = 0
        self._limit_bytes = cluster.memory_bytes

    def learn(self, observations: Collection[Observation]) -> None:
        """Refit to all that is known, where a trial ended since the last time."""
        known = [row for item in observations if (row := _fact(item)) is not None]
        if len(known) != self._num_learnt:
            self._num_learnt = len(known)
            self._calibrated = refit(self._prior, known[-_MOST_TRIALS:])

    def predict(self, configs: Sequence[ParallelConfig]) -> list[PredictionRow]:
        """What the prior says of points and, once there are trials, the refitted model."""
        models = [(PRIOR, self._prior)]
        if self._num_learnt:
            models.append((CALIBRATED, self._calibrated))
        return [
            self._row(name, config, estimate)
            for name, model in models
            for config, estimate in zip(configs, model.estimate_many(configs), strict=True)
        ]

    def _row(self, name: str, config: ParallelConfig, estimate: CostEstimate) -> PredictionRow:
        return PredictionRow(
            config_key=config.config_key,
            model_name=name,
            step_time_s=estimate.step_time_s,
            step_time_low_s=estimate.step_time_low_s,
            step_time_high_s=estimate.step_time_high_s,
            peak_memory_bytes=estimate.peak_memory_bytes,
            probability_fits=estimate.probability_fits(self._limit_bytes),
        )


def _fact(item: Observation) -> tuple[ParallelConfig, float | None, float | None] | None:
    """An observation as the refit takes it; none where it says nothing of time or memory."""
    if item.step_time_s is not None:
        return item.config, item.step_time_s, item.peak_memory_bytes
    if item.failure is FailureKind.OOM:
        return item.config, None, item.peak_memory_bytes
    return None


def median_error(
    predictions: Sequence[PredictionRow], measured_s: dict[str, float], model_name: str
) -> tuple[float, int] | None:
    """Median of |predicted / measured - 1| and the number of points; none without points."""
    errors = [
        abs(row.step_time_s / measured_s[row.config_key] - 1)
        for row in predictions
        if row.model_name == model_name and row.step_time_s and row.config_key in measured_s
    ]
    return (statistics.median(errors), len(errors)) if errors else None


def error_sentence(
    predictions: Sequence[PredictionRow], observations: Collection[Observation]
) -> str | None:
    """How far off the predictions were that were made before each point ran; none without any."""
    measured = {
        item.config.config_key: item.step_time_s
        for item in observations
        if item.step_time_s is not None
    }
    error = median_error(predictions, measured, CALIBRATED)
    if error is None:
        return None
    return (
        f"step times were predicted with a median error of {error[0]:.0%}"
        f" ({error[1]} points, each predicted before it ran)"
    )
