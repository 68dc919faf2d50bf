"""ZBV: zero bubble on a V (Qi et al., 2024, arXiv:2405.15362; arXiv:2401.10241, section 6).

Every rank holds two stages: `r` on the way down and `2p - 1 - r` on the way back, so the first
rank has both the embedding and the head. With F = I = W no rank idles between its first and last
action; at most `2p` halves, hence `p` whole micro-batches, are held on any rank.
"""

from search_spaces.pipeline_schedules.action import Action, Op, without_phantoms


class ZBV:
    """Zero bubble with the two stages of a rank on the two arms of a V."""

    name = "zbv"

    def check(self, num_pipeline_ranks: int, num_microbatches: int, virtual_stages: int) -> str:
        """Why these sizes cannot run; an empty text when they can."""
        if virtual_stages == 2:
            return ""
        return f"schedule zbv needs virtual_stages 2 (the arms of the V), not {virtual_stages}"

    def stage_to_rank(self, stage: int, num_pipeline_ranks: int, virtual_stages: int) -> int:
        """Pipeline rank that holds a stage."""
        return min(stage, 2 * num_pipeline_ranks - 1 - stage)

    def actions(
        self,
        num_pipeline_ranks: int,
        pipeline_rank: int,
        num_microbatches: int,
        virtual_stages: int,
    ) -> list[Action]:
        """The rank's list of actions; fewer than `2p - 1` micro-batches are padded and cut."""
        padded = max(num_microbatches, 2 * num_pipeline_ranks - 1)
        writer = _Writer(num_pipeline_ranks, pipeline_rank)
        _warm_up(writer)
        _steady(writer, padded)
        _cool_down(writer)
        return without_phantoms(writer.actions, num_microbatches)


class _Writer:
    """Appends actions to a list and counts the micro-batches that each arm's op has seen."""

    def __init__(self, num_pipeline_ranks: int, pipeline_rank: int) -> None:
        self.ranks_behind = num_pipeline_ranks - pipeline_rank
        self.rank = pipeline_rank
        self.stages = (pipeline_rank, 2 * num_pipeline_ranks - 1 - pipeline_rank)
        self.counts: dict[tuple[Op, int], int] = {}
        self.actions: list[Action] = []

    def count(self, op: Op, arm: int) -> int:
        return self.counts.get((op, arm), 0)

    def add(self, ops: tuple[Op, ...], arm: int) -> None:
        for op in ops:
            microbatch = self.count(op, arm)
            self.counts[op, arm] = microbatch + 1
            self.actions.append(Action(op, microbatch, self.stages[arm]))


def _warm_up(writer: _Writer) -> None:
    """Fill the way down, then the way back, then start the backwards of the last stages."""
    for _ in range(2 * writer.ranks_behind - 1):
        writer.add(("F",), 0)
    for _ in range(writer.rank):
        writer.add(("F",), 1)
        writer.add(("F",), 0)
    for _ in range(writer.ranks_behind):
        writer.add(("F", "I", "W"), 1)


def _steady(writer: _Writer, num_microbatches: int) -> None:
    """One forward and one backward on each arm in turn, until the forwards are through."""
    while writer.count("F", 1) < writer.count("F", 0) or writer.count("F", 0) < num_microbatches:
        if writer.count("F", 0) < num_microbatches:
            writer.add(("F",), 0)
        writer.add(("I", "W"), 0)
        writer.add(("F", "I", "W"), 1)


def _cool_down(writer: _Writer) -> None:
    """Input gradients first, since others wait for them; weight gradients fill the rest."""
    for _ in range(writer.rank):
        writer.add(("I",), 0)
        writer.add(("I",), 1)
    for _ in range(writer.ranks_behind):
        writer.add(("I", "W"), 0)
    for arm in (1, 0):
        while writer.count("W", arm) < writer.count("I", arm):
            writer.add(("W",), arm)
