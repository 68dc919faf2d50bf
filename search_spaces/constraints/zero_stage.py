"""ZeRO (arXiv 1910.02054) shards over replicas, so it needs some."""

from search_spaces.constraints.base import Constraint, Setting
from search_spaces.parallel_config import ParallelConfig


def _allows(config: ParallelConfig, setting: Setting) -> bool:
    return config.zero_stage == 0 or config.dp * config.cp > 1


def _reason(config: ParallelConfig, setting: Setting) -> str:
    return f"zero_stage {config.zero_stage} has nothing to shard over: dp x cp is 1"


RULE = Constraint("zero_stage", ("zero_stage", "dp", "cp"), _allows, _reason)
