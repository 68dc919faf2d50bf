"""Sequence parallelism (arXiv 2205.05198) shards norms and dropout over the 1D tensor group."""

from search_spaces.constraints.base import Constraint, Setting
from search_spaces.parallel_config import ParallelConfig


def _problem(config: ParallelConfig, setting: Setting) -> str:
    if not config.sequence_parallel:
        return ""
    if config.tp == 1:
        return "sequence_parallel needs tp of 2 or more"
    if config.tp_layout != "1d":
        return f"sequence_parallel has no meaning under tp_layout {config.tp_layout}"
    length, parts = setting.training.sequence_length, config.tp * config.cp
    if length % parts:
        return (
            f"sequence_parallel cuts the sequence of {length} tokens into tp {config.tp} x cp "
            f"{config.cp} = {parts} parts, which does not go evenly"
        )
    return ""


def _allows(config: ParallelConfig, setting: Setting) -> bool:
    return not config.sequence_parallel or not _problem(config, setting)


RULE = Constraint(
    "sequence_parallel", ("sequence_parallel", "tp", "tp_layout", "cp"), _allows, _problem
)
