"""Hybrid sharding: shard sets of fewer ranks than the data group (HSDP, MiCS: arXiv 2205.00119).

The data group are the `dp x cp` ranks that hold equal parameters. A degree of 1 shards nothing and
one of its size is the whole group: both have another name already.
"""

from search_spaces.constraints.base import Constraint, Setting
from search_spaces.parallel_config import ParallelConfig


def _problem(config: ParallelConfig, setting: Setting) -> str:
    degree = config.zero_shard_degree
    if degree == 0:
        return ""
    if config.zero_stage == 0:
        return f"zero_shard_degree {degree} needs zero_stage 1 or more"
    group = config.dp * config.cp
    if group % degree:
        return f"zero_shard_degree {degree} does not divide dp x cp = {group}"
    if degree == group:
        return f"zero_shard_degree {degree} is the whole data group, which is written 0"
    if degree == 1:
        return "zero_shard_degree 1 shards nothing, which is written zero_stage 0"
    return ""


def _allows(config: ParallelConfig, setting: Setting) -> bool:
    return config.zero_shard_degree == 0 or not _problem(config, setting)


RULE = Constraint(
    "zero_shard_degree", ("zero_shard_degree", "zero_stage", "dp", "cp"), _allows, _problem
)
