"""Coordinates in which measured points resemble each other, for the residual model."""

import numpy as np
from numpy.typing import NDArray

from search_spaces.cost_models.points import Column, Points
from search_spaces.cost_models.prediction import Prediction
from search_spaces.cost_models.residual import Features

Matrix = NDArray[np.float64]


def _columns(points: Points, weighted: list[tuple[Column, float]]) -> Matrix:
    """Columns times their weights, broadcast to all points."""
    size = points.size
    return np.stack([np.broadcast_to(np.asarray(c) * w, (size,)) for c, w in weighted], axis=1)


def _log(column: Column) -> Column:
    """Doublings."""
    return np.log2(np.maximum(column, 1e-9))


def _configuration(points: Points) -> list[tuple[Column, float]]:
    return [
        (_log(points.tp), 1.0),
        (_log(points.pp), 1.0),
        (_log(points.dp), 0.7),
        (_log(points.cp), 1.0),
        (_log(points.ep), 1.0),
        (_log(points.micro_batch_size), 0.7),
        (_log(points.num_microbatches), 0.3),
        (_log(points.virtual_stages), 0.5),
        (np.asarray(points.schedule), 0.3),
        (np.minimum(points.tp_layout, 1.0), 1.0),
        (_log(points.hidden_size), 0.7),
        (_log(points.num_layers), 0.3),
        (_log(points.sequence_length), 0.5),
        (np.asarray(points.recompute), 1.0),
        (np.minimum(points.zero_stage, 1.0), 0.5),
        (np.maximum(np.asarray(points.zero_stage) - 1.0, 0.0), 0.25),
        (_log(points.num_devices), 0.5),
        (_log(points.dtype_bytes), 1.0),
        (np.asarray(points.compiled), 1.0),
        (np.asarray(points.sequence_parallel), 0.5),
        (np.asarray(points.attention), 0.7),
        (np.asarray(points.fused_norm), 0.7),
    ]


def time_features(points: Points, prediction: Prediction) -> Features:
    """Configuration and predicted shares of the step; the shape of a rank's work."""
    parts = prediction.parts_s
    shares = ("tensor_parallel", "data_parallel", "pipeline_bubble", "host", "compute")
    smooth = _configuration(points)
    smooth += [(parts[name] / prediction.step_time_s, 4.0) for name in shares]
    shape: list[tuple[Column, float]] = [
        (_log(points.tp), 1.0),
        (_log(points.micro_batch_size), 1.0),
        (_log(points.hidden_size), 2.0),
        (_log(points.sequence_length), 2.0),
        (np.asarray(points.recompute), 2.0),
        (_log(points.dtype_bytes), 2.0),
        (np.minimum(points.tp_layout, 1.0), 2.0),
    ]
    return Features(smooth=_columns(points, smooth), shape=_columns(points, shape))


def memory_features(points: Points, prediction: Prediction) -> Features:
    """Configuration and predicted shares of the peak; the layout of the model."""
    parts = prediction.memory_parts_bytes
    shares = ("weights", "optimizer", "activations", "logits")
    smooth = _configuration(points)
    smooth += [(parts[name] / prediction.peak_memory_bytes, 4.0) for name in shares]
    smooth.append((_log(prediction.peak_memory_bytes), 0.5))
    shape: list[tuple[Column, float]] = [(_log(points.tp), 1.5), (_log(points.pp), 1.5)]
    return Features(smooth=_columns(points, smooth), shape=_columns(points, shape))


def share_features(points: Points) -> Matrix:
    """What tells how far a host runs ahead: the mesh, the size of the machine and of the work."""
    return _columns(
        points,
        [
            (_log(points.tp), 1.0),
            (_log(points.pp), 1.0),
            (_log(points.num_devices), 1.0),
            (_log(points.hidden_size), 0.5),
            (_log(points.micro_batch_size), 0.4),
            (np.minimum(points.zero_stage, 1.0), 0.4),
        ],
    )
