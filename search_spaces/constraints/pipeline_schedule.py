"""The pipeline schedule can run its stages and micro-batches.

Without a pipeline there is nothing to schedule, so that `pp` 1 has one name only: schedule 1f1b
with `virtual_stages` 1.
"""

from search_spaces import pipeline_schedules
from search_spaces.constraints.base import Constraint, Setting
from search_spaces.constraints.global_batch import num_microbatches
from search_spaces.parallel_config import ParallelConfig


def _problem(config: ParallelConfig, setting: Setting) -> str:
    name, virtual_stages = config.pipeline_schedule, config.virtual_stages
    if config.pp == 1:
        if name == "1f1b" and virtual_stages == 1:
            return ""
        return (
            f"pp 1 has no pipeline: schedule {name} with virtual_stages {virtual_stages} must be "
            "1f1b with virtual_stages 1"
        )
    # A batch that does not come out whole is the business of the rule global_batch.
    count = max(1, num_microbatches(config, setting))
    return pipeline_schedules.check(name, config.pp, count, virtual_stages)


def _allows(config: ParallelConfig, setting: Setting) -> bool:
    return not _problem(config, setting)


RULE = Constraint(
    "pipeline_schedule",
    ("pp", "pipeline_schedule", "virtual_stages", "dp", "micro_batch_size"),
    _allows,
    _problem,
)
