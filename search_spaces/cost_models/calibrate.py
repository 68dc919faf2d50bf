"""`refit`: move a cost model towards the trials that were measured."""

from collections.abc import Sequence

import numpy as np

from search_spaces.cost_models.analytic import AnalyticCostModel
from search_spaces.cost_models.calibration import Calibration, calibrate_memory, calibrate_time
from search_spaces.parallel_config import ParallelConfig

Observation = tuple[ParallelConfig, float | None, float | None]
"""A configuration, its step time in seconds and its peak memory in bytes.

No step time means that it ran out of memory: the peak is then a lower bound of what it needs, the
device's memory when it is not given either.
"""


def refit(model: AnalyticCostModel, observations: Sequence[Observation]) -> AnalyticCostModel:
    """A model whose constants and corrections follow the observations, in well under a second.

    Always starts from the prior, so that the order of the observations and earlier fits leave no
    trace; without observations the result is the prior.
    """
    calibration = Calibration(constants=model.prior)
    timed = [row for row in observations if row[1] is not None and row[1] > 0]
    if timed:
        points = model.points([config for config, _, _ in timed])
        seconds = np.array([time for _, time, _ in timed], dtype=np.float64)
        calibration = calibrate_time(calibration, points, model.hardware, seconds)
    known = [
        (config, peak or model.hardware.memory_bytes, time is None)
        for config, time, peak in observations
        if peak or time is None
    ]
    if known:
        points = model.points([config for config, _, _ in known])
        peaks = np.array([peak for _, peak, _ in known], dtype=np.float64)
        bounds = np.array([is_bound for _, _, is_bound in known])
        calibration = calibrate_memory(calibration, points, model.hardware, peaks, bounds)
    return model.with_calibration(calibration)
