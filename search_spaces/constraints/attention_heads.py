"""1D tensor parallelism gives each rank whole attention heads.

Grouped KV heads are split evenly, or, when there are fewer of them than ranks, each is held by
`tp / num_kv_heads` ranks.
"""

from search_spaces.constraints.base import Constraint, Setting
from search_spaces.parallel_config import ParallelConfig


def _splits_kv_heads(num_kv_heads: int, tp: int) -> bool:
    return num_kv_heads % tp == 0 or tp % num_kv_heads == 0


def _allows(config: ParallelConfig, setting: Setting) -> bool:
    model = setting.model
    if config.tp_layout != "1d":
        return True
    return model.num_heads % config.tp == 0 and _splits_kv_heads(model.num_kv_heads, config.tp)


def _reason(config: ParallelConfig, setting: Setting) -> str:
    model = setting.model
    if model.num_heads % config.tp:
        return f"tp {config.tp} does not divide the {model.num_heads} attention heads"
    return f"tp {config.tp} neither divides nor is a multiple of the {model.num_kv_heads} KV heads"


RULE = Constraint("attention_heads", ("tp", "tp_layout"), _allows, _reason)
