"""1F1B, or PipeDream-Flush (Narayanan et al., 2021, arXiv:2104.04473, section 2.2.1).

Bubble `(p - 1)(F + B)` as in GPipe, but rank `r` holds at most `p - r` micro-batches' activations.
"""

from search_spaces.pipeline_schedules.action import Action
from search_spaces.pipeline_schedules.looped import OneStagePerRank


class OneFOneB(OneStagePerRank):
    """Warm up with as many forwards as there are ranks behind, then alternate."""

    name = "1f1b"

    def actions(
        self,
        num_pipeline_ranks: int,
        pipeline_rank: int,
        num_microbatches: int,
        virtual_stages: int,
    ) -> list[Action]:
        """The rank's list of actions."""
        num_warmup = min(num_pipeline_ranks - pipeline_rank - 1, num_microbatches)
        actions = [Action("F", i, pipeline_rank) for i in range(num_warmup)]
        for i in range(num_microbatches):
            if num_warmup + i < num_microbatches:
                actions.append(Action("F", num_warmup + i, pipeline_rank))
            actions.append(Action("B", i, pipeline_rank))
        return actions
