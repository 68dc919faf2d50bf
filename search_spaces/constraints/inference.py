"""A forward-only workload has no gradients, no optimizer and no activations to keep.

The knobs of those keep their defaults, and schedules that differ in their backward passes alone
have one name: 1f1b, or interleaved with virtual stages.
"""

from search_spaces.constraints.base import Constraint, Setting, value_text
from search_spaces.parallel_config import ParallelConfig

_DEFAULTS = {
    name: ParallelConfig.model_fields[name].default
    for name in (
        "zero_stage", "zero_shard_degree", "recompute", "recompute_layers", "reduce_dtype",
        "optimizer_offload",
    )
}  # fmt: skip
_SCHEDULES = ("1f1b", "interleaved")


def _problem(config: ParallelConfig, setting: Setting) -> str:
    if setting.training.workload != "inference":
        return ""
    for knob, default in _DEFAULTS.items():
        value = getattr(config, knob)
        if value != default:
            return f"{knob} {value_text(value)} has no meaning for inference"
    if config.pipeline_schedule not in _SCHEDULES:
        return (
            f"schedule {config.pipeline_schedule} differs from others in its backward passes only"
        )
    return ""


def _allows(config: ParallelConfig, setting: Setting) -> bool:
    return setting.training.workload != "inference" or not _problem(config, setting)


RULE = Constraint("inference", (*_DEFAULTS, "pipeline_schedule"), _allows, _problem)
