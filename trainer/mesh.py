"""`ParallelMesh`: a `ParallelConfig` bound to a world size; the arithmetic of ranks, without torch.

Ranks are numbered with tensor parallelism fastest, then context, data and pipeline parallelism:
`rank = tp + TP * (cp + CP * (dp + DP * pp))`. So the ranks that talk most are neighbours, on one
node where possible, and pipeline stages, which talk least, are farthest apart.
"""

from itertools import product

from search_spaces.parallel_config import ParallelConfig
from trainer.errors import UnsupportedConfigError

AXES = ("tp", "cp", "dp", "pp")


class ParallelMesh:
    """Coordinates and groups of the ranks of one configuration.

    Raises:
        UnsupportedConfigError: if the configuration does not occupy exactly `world_size` ranks.
    """

    def __init__(self, config: ParallelConfig, world_size: int) -> None:
        if config.world_size != world_size:
            raise UnsupportedConfigError(
                f"{config.short()} needs {config.world_size} ranks, but {world_size} were started",
                hint="tp * cp * dp * pp must equal the number of ranks",
            )
        self.config = config
        self.world_size = world_size
        self.sizes = {"tp": config.tp, "cp": config.cp, "dp": config.dp, "pp": config.pp}

    def coordinates(self, rank: int) -> dict[str, int]:
        """Position of a rank on every axis."""
        position = {}
        for axis in AXES:
            rank, position[axis] = divmod(rank, self.sizes[axis])
        return position

    def rank_at(self, coordinates: dict[str, int]) -> int:
        """Rank at a position; the inverse of `coordinates`."""
        rank = 0
        for axis in reversed(AXES):
            rank = rank * self.sizes[axis] + coordinates[axis]
        return rank

    def ranks_along(self, rank: int, axes: tuple[str, ...]) -> tuple[int, ...]:
        """Ranks that differ from `rank` on the given axes only, in rank order."""
        own = self.coordinates(rank)
        ranges = [range(self.sizes[axis]) for axis in axes]
        places = (dict(zip(axes, place, strict=True)) for place in product(*ranges))
        return tuple(sorted(self.rank_at({**own, **place}) for place in places))

    def data_ranks(self, rank: int) -> tuple[int, ...]:
        """Ranks whose gradients are summed: they hold equal parameters and see other tokens."""
        return self.ranks_along(rank, ("cp", "dp"))

    @property
    def shard_degree(self) -> int:
        """Ranks that share one set of ZeRO shards: `zero_shard_degree`, or the whole data group."""
        size = self.config.dp * self.config.cp
        degree = self.config.zero_shard_degree or size
        if size % degree:
            raise UnsupportedConfigError(
                f"zero_shard_degree={degree} does not divide the {size} data-parallel ranks",
                hint=f"use a divisor of {size}, or 0 for all of them",
            )
        return degree if self.config.zero_stage > 0 else 1

    def shard_ranks(self, rank: int) -> tuple[int, ...]:
        """Neighbouring data ranks that share one set of ZeRO shards."""
        ranks, degree = self.data_ranks(rank), self.shard_degree
        start = ranks.index(rank) // degree * degree
        return ranks[start : start + degree]

    def replicate_ranks(self, rank: int) -> tuple[int, ...]:
        """Data ranks that hold the same ZeRO shard as `rank`."""
        ranks, degree = self.data_ranks(rank), self.shard_degree
        return ranks[ranks.index(rank) % degree :: degree]
