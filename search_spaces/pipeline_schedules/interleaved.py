"""Interleaved 1F1B over virtual stages (Narayanan et al., 2021, arXiv:2104.04473, section 2.2.2).

Rank `r` holds stages `r`, `r + p`, `r + 2p` ...; micro-batches pass in groups of `p` through one
stage of the rank after the other. Bubble `(p - 1)(F + B)` with F and B of one *virtual* stage, so
`v` times smaller than that of 1F1B, for `v` times the messages.
"""

from search_spaces.pipeline_schedules.action import Action, without_phantoms
from search_spaces.pipeline_schedules.looped import LoopedPlacement


class Interleaved(LoopedPlacement):
    """1F1B in which every rank holds several stages."""

    name = "interleaved"

    def check(self, num_pipeline_ranks: int, num_microbatches: int, virtual_stages: int) -> str:
        """Why these sizes cannot run; an empty text when they can."""
        if virtual_stages >= 2:
            return ""
        return "schedule interleaved needs virtual_stages of 2 or more: with 1 use schedule 1f1b"

    def actions(
        self,
        num_pipeline_ranks: int,
        pipeline_rank: int,
        num_microbatches: int,
        virtual_stages: int,
    ) -> list[Action]:
        """The rank's list of actions; a last group that is not full is padded and cut."""
        p, v = num_pipeline_ranks, virtual_stages
        total = -(-num_microbatches // p) * p * v

        def forward(k: int) -> Action:
            group, place = divmod(k, p * v)
            return Action("F", group * p + place % p, place // p * p + pipeline_rank)

        def backward(k: int) -> Action:
            group, place = divmod(k, p * v)
            return Action("B", group * p + place % p, (v - 1 - place // p) * p + pipeline_rank)

        num_warmup = min(2 * (p - pipeline_rank - 1) + (v - 1) * p, total)
        actions = [forward(k) for k in range(num_warmup)]
        for k in range(total):
            if num_warmup + k < total:
                actions.append(forward(num_warmup + k))
            actions.append(backward(k))
        return without_phantoms(actions, num_microbatches)
