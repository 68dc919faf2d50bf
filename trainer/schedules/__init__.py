"""Pipeline schedules, as the runner sees them; they live in `search_spaces.pipeline_schedules`.

The lists of actions are part of what is known about a point of the space (the cost model replays
them), and the space may not import the trainer.
"""

from search_spaces.pipeline_schedules import (
    SCHEDULES,
    Action,
    Op,
    PipelineSchedule,
    build_actions,
    check,
    stage_to_rank,
    stages_of_rank,
)

__all__ = [
    "SCHEDULES",
    "Action",
    "Op",
    "PipelineSchedule",
    "build_actions",
    "check",
    "stage_to_rank",
    "stages_of_rank",
]
