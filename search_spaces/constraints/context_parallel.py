"""Context parallelism cuts each sequence into `2 cp` equal chunks.

Rank `r` holds chunks `r` and `2 cp - 1 - r`, so that the causal mask leaves all ranks equal work.
"""

from search_spaces.constraints.base import Constraint, Setting
from search_spaces.parallel_config import ParallelConfig


def _allows(config: ParallelConfig, setting: Setting) -> bool:
    return config.cp == 1 or setting.training.sequence_length % (2 * config.cp) == 0


def _reason(config: ParallelConfig, setting: Setting) -> str:
    return (
        f"cp {config.cp} cuts the sequence of {setting.training.sequence_length} tokens into "
        f"{2 * config.cp} chunks, which does not go evenly"
    )


RULE = Constraint("context_parallel", ("cp",), _allows, _reason)
