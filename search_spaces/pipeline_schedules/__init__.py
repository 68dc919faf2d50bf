"""Pipeline schedules as lists of actions, which the trainer runs and the cost model replays.

A new schedule is one file with a class that follows `PipelineSchedule`, and one line in
`SCHEDULES`; the laws in the tests are parametrised over that table.
"""

from functools import lru_cache

from search_spaces.errors import SpaceError
from search_spaces.pipeline_schedules.action import Action, Op, PipelineSchedule
from search_spaces.pipeline_schedules.gpipe import GPipe
from search_spaces.pipeline_schedules.interleaved import Interleaved
from search_spaces.pipeline_schedules.one_f_one_b import OneFOneB
from search_spaces.pipeline_schedules.zbv import ZBV
from search_spaces.pipeline_schedules.zero_bubble import ZeroBubble

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

SCHEDULES: dict[str, PipelineSchedule] = {
    schedule.name: schedule
    for schedule in (GPipe(), OneFOneB(), Interleaved(), ZeroBubble(), ZBV())
}


def _schedule(name: str) -> PipelineSchedule:
    if name not in SCHEDULES:
        raise SpaceError(f"unknown pipeline schedule {name!r}", f"one of {', '.join(SCHEDULES)}")
    return SCHEDULES[name]


def check(name: str, num_pipeline_ranks: int, num_microbatches: int, virtual_stages: int) -> str:
    """Why a schedule cannot run with these sizes; an empty text when it can.

    Raises:
        SpaceError: the name is unknown.
    """
    schedule = _schedule(name)
    if min(num_pipeline_ranks, num_microbatches, virtual_stages) < 1:
        return "pipeline ranks, micro-batches and virtual stages must each be 1 or more"
    return schedule.check(num_pipeline_ranks, num_microbatches, virtual_stages)


def build_actions(
    name: str,
    num_pipeline_ranks: int,
    pipeline_rank: int,
    num_microbatches: int,
    virtual_stages: int = 1,
) -> list[Action]:
    """What one rank does in one optimizer step, in order.

    A forward-only workload runs the F actions alone, in the same order.

    Raises:
        SpaceError: the name is unknown, or `check` gives a reason against the sizes.
    """
    reason = check(name, num_pipeline_ranks, num_microbatches, virtual_stages)
    if reason:
        raise SpaceError(reason)
    if not 0 <= pipeline_rank < num_pipeline_ranks:
        raise SpaceError(f"pipeline rank {pipeline_rank} is not below {num_pipeline_ranks}")
    return list(
        _cached_actions(name, num_pipeline_ranks, pipeline_rank, num_microbatches, virtual_stages)
    )


@lru_cache(maxsize=4096)
def _cached_actions(
    name: str,
    num_pipeline_ranks: int,
    pipeline_rank: int,
    num_microbatches: int,
    virtual_stages: int,
) -> tuple[Action, ...]:
    return tuple(
        SCHEDULES[name].actions(num_pipeline_ranks, pipeline_rank, num_microbatches, virtual_stages)
    )


def stage_to_rank(name: str, stage: int, num_pipeline_ranks: int, virtual_stages: int = 1) -> int:
    """Pipeline rank that holds a stage: round the ranks, or down and back up under zbv.

    Raises:
        SpaceError: the name is unknown or there is no such stage.
    """
    num_stages = num_pipeline_ranks * virtual_stages
    if not 0 <= stage < num_stages:
        raise SpaceError(f"stage {stage} does not exist", f"there are {num_stages}, from 0")
    return _schedule(name).stage_to_rank(stage, num_pipeline_ranks, virtual_stages)


def stages_of_rank(
    name: str, pipeline_rank: int, num_pipeline_ranks: int, virtual_stages: int = 1
) -> list[int]:
    """Stages that a pipeline rank holds, in rising order."""
    return [
        stage
        for stage in range(num_pipeline_ranks * virtual_stages)
        if stage_to_rank(name, stage, num_pipeline_ranks, virtual_stages) == pipeline_rank
    ]
