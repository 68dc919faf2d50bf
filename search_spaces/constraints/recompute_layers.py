"""Recomputation of a part of each stage's layers.

All layers are written by leaving `recompute_layers` out, and no layer by `recompute` none.
"""

from search_spaces.constraints.base import Constraint, Setting
from search_spaces.layers import max_layers_per_stage
from search_spaces.parallel_config import ParallelConfig


def _problem(config: ParallelConfig, setting: Setting) -> str:
    count = config.recompute_layers
    if count is None:
        return ""
    if config.recompute == "none":
        return f"recompute_layers {count} has no meaning with recompute none"
    if count == 0:
        return "recompute_layers 0 recomputes nothing, which is written recompute none"
    most = max_layers_per_stage(setting.model.num_layers, config)
    if count >= most:
        return (
            f"recompute_layers {count} covers all layers of a stage ({most} at most), which is "
            "written by leaving it out"
        )
    return ""


def _allows(config: ParallelConfig, setting: Setting) -> bool:
    return config.recompute_layers is None or not _problem(config, setting)


RULE = Constraint(
    "recompute_layers",
    ("recompute", "recompute_layers", "pp", "virtual_stages", "stage_layers"),
    _allows,
    _problem,
)
