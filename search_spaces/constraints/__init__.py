"""The rules of the space, one file each: which configurations can run, and why others cannot.

A new rule is one file with a `RULE` and one line in `CONSTRAINTS`; enumeration, explanations and
the laws in the tests follow from that.
"""

from search_spaces.cluster_spec import ClusterSpec
from search_spaces.constraints import (
    attention_heads,
    context_parallel,
    devices,
    expert_parallel,
    feed_forward,
    global_batch,
    inference,
    kernel_support,
    pipeline_schedule,
    recompute_layers,
    reduce_dtype,
    sequence_length,
    sequence_parallel,
    stage_layers,
    tensor_mesh,
    zero_shard_degree,
    zero_stage,
)
from search_spaces.constraints.base import Constraint, Setting, Violation
from search_spaces.model_spec import ModelSpec
from search_spaces.parallel_config import ParallelConfig
from search_spaces.training_spec import TrainingSpec

__all__ = ["CONSTRAINTS", "Constraint", "Setting", "Violation", "find_violations", "judge"]

CONSTRAINTS: tuple[Constraint, ...] = (
    sequence_length.RULE,
    devices.RULE,
    attention_heads.RULE,
    feed_forward.RULE,
    tensor_mesh.RULE,
    sequence_parallel.RULE,
    context_parallel.RULE,
    expert_parallel.RULE,
    stage_layers.RULE,
    global_batch.RULE,
    pipeline_schedule.RULE,
    zero_stage.RULE,
    zero_shard_degree.RULE,
    recompute_layers.RULE,
    reduce_dtype.RULE,
    inference.RULE,
    *kernel_support.RULES,
)


def find_violations(
    config: ParallelConfig,
    model: ModelSpec,
    training: TrainingSpec,
    cluster: ClusterSpec,
    *,
    use_all_devices: bool = True,
) -> list[Violation]:
    """All rules that a configuration breaks, in the order of `CONSTRAINTS`; none if it is legal."""
    return judge(config, Setting(model, training, cluster, use_all_devices))


def judge(config: ParallelConfig, setting: Setting) -> list[Violation]:
    """As `find_violations`; values suggested may change the number of ranks but break no rule."""
    rules = (*CONSTRAINTS, *setting.rules)
    broken = [rule for rule in rules if not rule.allows(config, setting)]
    kept = [rule for rule in rules if rule not in (*broken, devices.RULE)]
    return [found for rule in broken if (found := rule.check(config, setting, kept))]
