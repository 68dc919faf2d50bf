"""ZB-H1: 1F1B with the backward split (Qi et al., 2023, arXiv:2401.10241, section 2.1).

The gradient of the input (I) goes to the previous rank at once; the gradient of the weights (W),
which nobody waits for, fills what would be the bubble at the end. Bubble `(p - 1)(F + I - W)` for
F >= W; rank `r` holds at most `p` micro-batches, the most that 1F1B holds anywhere.
"""

from search_spaces.pipeline_schedules.action import Action
from search_spaces.pipeline_schedules.looped import OneStagePerRank
from search_spaces.pipeline_schedules.one_f_one_b import OneFOneB


class ZeroBubble(OneStagePerRank):
    """1F1B whose rank `r` lets its weight gradients lag `r` micro-batches behind."""

    name = "zero_bubble"

    def actions(
        self,
        num_pipeline_ranks: int,
        pipeline_rank: int,
        num_microbatches: int,
        virtual_stages: int,
    ) -> list[Action]:
        """The rank's list of actions."""
        plain = OneFOneB().actions(num_pipeline_ranks, pipeline_rank, num_microbatches, 1)
        actions: list[Action] = []
        for action in plain:
            if action.op == "F":
                actions.append(action)
                continue
            actions.append(Action("I", action.microbatch, pipeline_rank))
            if action.microbatch >= pipeline_rank:
                actions.append(Action("W", action.microbatch - pipeline_rank, pipeline_rank))
        num_done = max(num_microbatches - pipeline_rank, 0)
        rest = [Action("W", i, pipeline_rank) for i in range(num_done, num_microbatches)]
        return actions + rest
