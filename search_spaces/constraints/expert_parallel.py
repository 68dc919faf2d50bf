"""Expert parallelism deals the experts of a mixture to `ep` of the data-parallel ranks."""

from search_spaces.constraints.base import Constraint, Setting
from search_spaces.parallel_config import ParallelConfig


def _problem(config: ParallelConfig, setting: Setting) -> str:
    num_experts = setting.model.num_experts
    if config.ep == 1:
        return ""
    if num_experts == 0:
        return f"ep {config.ep} needs a mixture of experts; {setting.model.name} has none"
    if num_experts % config.ep:
        return f"ep {config.ep} does not divide the {num_experts} experts"
    if config.dp % config.ep:
        return f"ep {config.ep} does not divide dp {config.dp}, out of which it takes its ranks"
    return ""


def _allows(config: ParallelConfig, setting: Setting) -> bool:
    return config.ep == 1 or not _problem(config, setting)


RULE = Constraint("expert_parallel", ("ep", "dp"), _allows, _problem)
