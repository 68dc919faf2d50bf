"""Gradients are reduced in fp32, or in bf16 when they are computed in less than fp32.

One replica reduces nothing, which is written with the default.
"""

from search_spaces.constraints.base import Constraint, Setting
from search_spaces.parallel_config import ParallelConfig


def _problem(config: ParallelConfig, setting: Setting) -> str:
    if config.reduce_dtype == "fp32":
        return ""
    if config.dtype == "fp32":
        return f"reduce_dtype {config.reduce_dtype} would round the gradients of dtype fp32"
    if config.dp * config.cp == 1:
        return f"reduce_dtype {config.reduce_dtype} has nothing to reduce: dp x cp is 1"
    return ""


def _allows(config: ParallelConfig, setting: Setting) -> bool:
    return config.reduce_dtype == "fp32" or not _problem(config, setting)


RULE = Constraint("reduce_dtype", ("reduce_dtype", "dtype", "dp", "cp"), _allows, _problem)
