"""`Action`: one thing that a pipeline rank does, and the protocol that every schedule follows."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal, Protocol

Op = Literal["F", "B", "I", "W"]


@dataclass(frozen=True, slots=True)
class Action:
    """One step of a rank's list.

    `op` is F (forward), B (whole backward), I (gradient of the stage's input alone) or W (gradient
    of its weights alone, which needs what I left behind). A micro-batch runs either B or I and W in
    a stage, never both. `stage` counts over the whole pipeline, virtual stages included.
    """

    op: Op
    microbatch: int
    stage: int

    def __str__(self) -> str:
        return f"{self.op}{self.microbatch}@{self.stage}"


class PipelineSchedule(Protocol):
    """Order in which ranks run the micro-batches of one optimizer step; pure arithmetic."""

    name: str

    def check(self, num_pipeline_ranks: int, num_microbatches: int, virtual_stages: int) -> str:
        """Why these sizes cannot run; an empty text when they can."""
        ...

    def stage_to_rank(self, stage: int, num_pipeline_ranks: int, virtual_stages: int) -> int:
        """Pipeline rank that holds a stage."""
        ...

    def actions(
        self,
        num_pipeline_ranks: int,
        pipeline_rank: int,
        num_microbatches: int,
        virtual_stages: int,
    ) -> list[Action]:
        """The rank's list, in the order in which it runs; the sizes have passed `check`."""
        ...


def without_phantoms(actions: Sequence[Action], num_microbatches: int) -> list[Action]:
    """Drop the actions of micro-batches that do not exist.

    A schedule that needs a certain number of micro-batches is written for that number and cut. All
    ranks drop the same ones, so what is left keeps its order and cannot deadlock.
    """
    return [action for action in actions if action.microbatch < num_microbatches]
