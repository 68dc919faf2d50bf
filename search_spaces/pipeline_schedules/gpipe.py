"""GPipe: all forwards, then all backwards (Huang et al., 2019, arXiv:1811.06965, section 2.3).

Bubble `(p - 1)(F + B)`; every micro-batch's activations are held at once.
"""

from search_spaces.pipeline_schedules.action import Action
from search_spaces.pipeline_schedules.looped import OneStagePerRank


class GPipe(OneStagePerRank):
    """All forwards in order, then all backwards in order."""

    name = "gpipe"

    def actions(
        self,
        num_pipeline_ranks: int,
        pipeline_rank: int,
        num_microbatches: int,
        virtual_stages: int,
    ) -> list[Action]:
        """The rank's list of actions."""
        forwards = [Action("F", i, pipeline_rank) for i in range(num_microbatches)]
        return forwards + [Action("B", i, pipeline_rank) for i in range(num_microbatches)]
