"""Details of the fastest configurations: ranks, stages, where a step's time went, its timeline.

A trial of a thousand ranks reports a thousand rows a table, so sums and maxima are left to the
database and the timeline is read for the ranks of one pipeline.
"""

from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from sqlalchemy import Connection, func, select

from results_db.schema import (
    breakdowns,
    collectives,
    rank_coordinates,
    ranks,
    timeline,
)

MAX_ACTIONS = 20_000
"""Actions of a timeline that are read at most."""


@dataclass(frozen=True, slots=True)
class StageMemory:
    """Memory of the ranks at one place of the pipeline.

    Where each rank holds several stages (virtual stages) they share its memory, so it is told by
    pipeline rank.
    """

    pp_rank: int
    num_ranks: int
    peak_memory_bytes: int
    """Largest over those ranks."""
    state_memory_bytes: int
    """Largest of parameters, gradients and optimizer states together."""


@dataclass(frozen=True, slots=True)
class Collective:
    """One kind of collective in one step, mean over the ranks that ran it."""

    name: str
    calls: float
    sent_bytes: float
    time_s: float


@dataclass(frozen=True, slots=True)
class Action:
    """One action of the pipeline in the last measured step, seconds since the step began."""

    pp_rank: int
    rank: int
    op: str
    """F forward, B backward, I input gradient, W weight gradient."""
    micro_batch: int
    stage: int
    start_s: float
    end_s: float


@dataclass(frozen=True, kw_only=True)
class LeaderDetails:
    """What one trial of a leading configuration reported of its ranks."""

    config_key: str
    trial_number: int
    num_ranks: int
    parts_s: Mapping[str, float]
    """Mean over ranks of a step's seconds by part: forward, backward, bubble, ..."""
    collectives: Sequence[Collective]
    stages: Sequence[StageMemory]
    timeline: Sequence[Action]
    """Of the first pipeline, by rank and start."""


def read_leaders(
    connection: Connection, trials: Mapping[str, tuple[int, int]]
) -> dict[str, LeaderDetails]:
    """Details by configuration key from `trials`: key -> (trial number, trial id)."""
    return {
        key: LeaderDetails(
            config_key=key,
            trial_number=number,
            num_ranks=_num_ranks(connection, trial_id),
            parts_s=_parts(connection, trial_id),
            collectives=_collectives(connection, trial_id),
            stages=_stages(connection, trial_id),
            timeline=_timeline(connection, trial_id),
        )
        for key, (number, trial_id) in trials.items()
    }


def _num_ranks(connection: Connection, trial_id: int) -> int:
    query = select(func.count()).select_from(ranks).where(ranks.c.trial_id == trial_id)
    return int(connection.execute(query).scalar_one())


def _parts(connection: Connection, trial_id: int) -> dict[str, float]:
    """Means over ranks; a part that a rank does not have took no time there."""
    num_ranks = _num_ranks(connection, trial_id)
    query = (
        select(breakdowns.c.part, func.sum(breakdowns.c.time_s))
        .where(breakdowns.c.trial_id == trial_id)
        .group_by(breakdowns.c.part)
    )
    rows = connection.execute(query).all()
    return {part: float(total or 0.0) / max(num_ranks, 1) for part, total in rows}


def _collectives(connection: Connection, trial_id: int) -> list[Collective]:
    c = collectives.c
    query = (
        select(c.collective, func.avg(c.calls), func.avg(c.bytes), func.avg(c.seconds))
        .where(c.trial_id == trial_id)
        .group_by(c.collective)
        .order_by(c.collective)
    )
    return [
        Collective(name, *(float(value or 0.0) for value in means))
        for name, *means in connection.execute(query)
    ]


def _stages(connection: Connection, trial_id: int) -> list[StageMemory]:
    place = rank_coordinates
    query = (
        select(
            place.c.coordinate,
            func.count(),
            func.max(ranks.c.peak_memory_bytes),
            func.max(ranks.c.state_memory_bytes),
        )
        .join(
            ranks,
            (ranks.c.trial_id == place.c.trial_id) & (ranks.c.rank == place.c.rank),
        )
        .where(place.c.trial_id == trial_id, place.c.axis == "pp")
        .group_by(place.c.coordinate)
        .order_by(place.c.coordinate)
    )
    return [StageMemory(*row) for row in connection.execute(query)]


def _first_pipeline(connection: Connection, trial_id: int) -> dict[int, int]:
    """Pp coordinate by rank, of the ranks that are first on every other axis."""
    query = select(
        rank_coordinates.c.rank, rank_coordinates.c.axis, rank_coordinates.c.coordinate
    ).where(rank_coordinates.c.trial_id == trial_id)
    places: dict[int, dict[str, int]] = defaultdict(dict)
    for rank, axis, coordinate in connection.execute(query):
        places[rank][axis] = coordinate
    return {
        rank: axes.get("pp", 0)
        for rank, axes in sorted(places.items())
        if not any(place for axis, place in axes.items() if axis != "pp")
    }


def _timeline(connection: Connection, trial_id: int) -> list[Action]:
    pipeline = _first_pipeline(connection, trial_id)
    t = timeline.c
    query = (
        select(t.rank, t.op, t.micro_batch, t.stage, t.start_s, t.end_s)
        .where(t.trial_id == trial_id, t.rank.in_(list(pipeline)))
        .order_by(t.rank, t.position)
        .limit(MAX_ACTIONS)
    )
    return [Action(pipeline[row.rank], *row) for row in connection.execute(query)]
