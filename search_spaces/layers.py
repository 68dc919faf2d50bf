"""How decoder layers are dealt to pipeline stages."""

from search_spaces.parallel_config import ParallelConfig


def stage_layer_counts(num_layers: int, config: ParallelConfig) -> tuple[int, ...]:
    """Decoder layers of each of the `pp * virtual_stages` stages, in model order.

    An explicit `stage_layers` is taken as it is. Otherwise layers are spread evenly; a remainder
    (which the rules refuse for real runs) goes one each to the first stages, never dropped.
    """
    if config.stage_layers is not None:
        return config.stage_layers
    base, rest = divmod(num_layers, config.num_stages)
    return tuple(base + (stage < rest) for stage in range(config.num_stages))


def max_layers_per_stage(num_layers: int, config: ParallelConfig) -> int:
    """Layers of the fullest stage."""
    return max(stage_layer_counts(num_layers, config))
