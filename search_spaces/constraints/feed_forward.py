"""1D tensor parallelism cuts the feed-forward width into equal parts."""

from search_spaces.constraints.base import Constraint, Setting
from search_spaces.parallel_config import ParallelConfig


def _allows(config: ParallelConfig, setting: Setting) -> bool:
    return config.tp_layout != "1d" or setting.model.ffn_size % config.tp == 0


def _reason(config: ParallelConfig, setting: Setting) -> str:
    return f"tp {config.tp} does not divide the feed-forward width {setting.model.ffn_size}"


RULE = Constraint("feed_forward", ("tp", "tp_layout"), _allows, _reason)
