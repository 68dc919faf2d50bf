"""How decoder layers are dealt to pipeline stages."""

from search_spaces.parallel_config import ParallelConfig


def stage_layer_counts(num_layers: int, config: ParallelConfig) -> tuple[int, ...]:
    """Decoder layers of each of the `pp * virtual_stages` stages, in model order.

    An explicit `stage_layers` is taken as it is. Otherwise layers are spread evenly; a remainder
    (which the rules refuse for real runs) goes to the middle stages, never dropped.
    """
    if config.stage_layers is not None:
        return config.stage_layers
    return balanced_split(num_layers, config.num_stages)


def balanced_split(num_layers: int, num_stages: int) -> tuple[int, ...]:
    """Layers per stage that differ by one at most; the fuller stages are the middle ones.

    The first stage has the embedding and the last one the head to carry besides its layers.
    """
    base, rest = divmod(num_layers, num_stages)
    first = (num_stages - rest + 1) // 2
    return tuple(base + (first <= stage < first + rest) for stage in range(num_stages))


def max_layers_per_stage(num_layers: int, config: ParallelConfig) -> int:
    """Layers of the fullest stage."""
    return max(stage_layer_counts(num_layers, config))
