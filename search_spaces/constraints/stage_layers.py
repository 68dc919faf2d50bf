"""Every layer of the model is in exactly one pipeline stage: none is ever dropped.

Without `stage_layers` the stages must come out equal. An explicit split gives every stage a layer
or more, adds up to the model, and is not the even split (that one is `stage_layers` left out).
"""

from search_spaces.constraints.base import Constraint, Setting, value_text
from search_spaces.layers import balanced_split
from search_spaces.parallel_config import ParallelConfig


def _allows(config: ParallelConfig, setting: Setting) -> bool:
    num_layers, num_stages = setting.model.num_layers, config.num_stages
    if config.stage_layers is None:
        return num_layers % num_stages == 0
    return not _problem_of_split(config.stage_layers, num_layers, num_stages)


def _problem_of_split(split: tuple[int, ...], num_layers: int, num_stages: int) -> str:
    shown = f"stage_layers {value_text(split)}"
    if len(split) != num_stages:
        return (
            f"{shown} has {len(split)} entries, but pp x virtual_stages makes {num_stages} stages"
        )
    if min(split) < 1:
        return f"{shown} leaves a stage without layers"
    if sum(split) != num_layers:
        return f"{shown} adds up to {sum(split)} layers, but the model has {num_layers}"
    if min(split) == max(split):
        return f"{shown} is the even split: leave stage_layers out"
    return ""


def _reason(config: ParallelConfig, setting: Setting) -> str:
    num_layers, num_stages = setting.model.num_layers, config.num_stages
    if config.stage_layers is not None:
        return _problem_of_split(config.stage_layers, num_layers, num_stages)
    stages = f"pp {config.pp} x virtual_stages {config.virtual_stages} = {num_stages} stages"
    if num_stages > num_layers:
        return f"{stages} are more than the model's {num_layers} layers"
    split = value_text(balanced_split(num_layers, num_stages))
    return f"{stages} do not divide the {num_layers} layers; stage_layers = {split} would be uneven"


RULE = Constraint("stage_layers", ("pp", "virtual_stages", "stage_layers"), _allows, _reason)
