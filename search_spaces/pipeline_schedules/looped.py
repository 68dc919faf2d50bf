"""Placement of the schedules whose stages go round the ranks: stage `s` is on rank `s % p`."""


class LoopedPlacement:
    """Stages dealt to the ranks like cards, so that a rank's stages lie `p` apart."""

    def stage_to_rank(self, stage: int, num_pipeline_ranks: int, virtual_stages: int) -> int:
        """Pipeline rank that holds a stage."""
        return stage % num_pipeline_ranks


class OneStagePerRank(LoopedPlacement):
    """Base of the schedules that know no virtual stages."""

    name: str

    def check(self, num_pipeline_ranks: int, num_microbatches: int, virtual_stages: int) -> str:
        """Why these sizes cannot run; an empty text when they can."""
        if virtual_stages == 1:
            return ""
        return (
            f"schedule {self.name} has one stage per rank: virtual_stages {virtual_stages} is not 1"
        )
