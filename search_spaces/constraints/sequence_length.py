"""The model can take sequences as long as the recipe's.

No knob mends this: learned positions are a table of fixed length, and the kernel attends to all
earlier tokens, which equals a sliding window only up to the window's length.
"""

from search_spaces.constraints.base import Constraint, Setting
from search_spaces.parallel_config import ParallelConfig


def _allows(config: ParallelConfig, setting: Setting) -> bool:
    return not _reason(config, setting)


def _reason(config: ParallelConfig, setting: Setting) -> str:
    model, length = setting.model, setting.training.sequence_length
    if model.family == "gpt2" and length > model.max_positions:
        return (
            f"sequence_length {length} exceeds the {model.max_positions} learned positions of "
            f"{model.name}; legal: 1 to {model.max_positions}"
        )
    if model.sliding_window is not None and length > model.sliding_window:
        return (
            f"sequence_length {length} exceeds the sliding window of {model.sliding_window} tokens "
            f"of {model.name}, which the kernel does not cut; legal: 1 to {model.sliding_window}"
        )
    return ""


RULE = Constraint("sequence_length", (), _allows, _reason)
