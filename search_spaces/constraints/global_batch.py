"""The global batch is micro-batch size x accumulation x data-parallel replicas, exactly."""

from search_spaces.constraints.base import Constraint, Setting
from search_spaces.parallel_config import ParallelConfig


def num_microbatches(config: ParallelConfig, setting: Setting) -> int:
    """Micro-batches of one replica in one optimizer step."""
    return setting.training.global_batch_size // (config.micro_batch_size * config.dp)


def _allows(config: ParallelConfig, setting: Setting) -> bool:
    return setting.training.global_batch_size % (config.micro_batch_size * config.dp) == 0


def _reason(config: ParallelConfig, setting: Setting) -> str:
    return (
        f"micro_batch_size {config.micro_batch_size} x dp {config.dp} does not divide the global "
        f"batch of {setting.training.global_batch_size} sequences"
    )


RULE = Constraint("global_batch", ("dp", "micro_batch_size"), _allows, _reason)
