"""What is taken from another trainer's file, and the errors of reading one."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from search_spaces.layers import max_layers_per_stage
from search_spaces.model_spec import ModelSpec
from search_spaces.parallel_config import ParallelConfig
from tuner.errors import ConfigError


@dataclass(frozen=True, kw_only=True)
class Baseline:
    """A configuration in use, with what its file says of model and batch.

    What the file does not say is none; `notes` are sentences on what was left out or assumed.
    """

    trainer: str
    config: ParallelConfig
    model: ModelSpec | None = None
    model_source: str | None = None
    """A preset, where the file names a model that is one."""
    sequence_length: int | None = None
    global_batch_size: int | None = None
    optimizer: str | None = None
    learning_rate: float | None = None
    notes: tuple[str, ...] = field(default=())

    @property
    def devices(self) -> int:
        """Devices that the configuration takes."""
        return self.config.world_size


def replicas_of(devices: int | None, ranks_per_replica: int, trainer: str) -> int:
    """Replicas on that many devices.

    Raises:
        ConfigError: the number is not known, or the ranks of a replica do not divide it.
    """
    if devices is None:
        raise ConfigError(
            f"the {trainer} file does not say on how many devices it runs",
            hint=f"give --devices N; a replica takes {ranks_per_replica}",
        )
    if devices % ranks_per_replica or devices < ranks_per_replica:
        raise ConfigError(
            f"{devices} devices are not whole replicas of {ranks_per_replica} ranks (tp x cp x pp)",
            hint="check --devices against the file",
        )
    return devices // ranks_per_replica


def make_config(knobs: Mapping[str, Any], num_layers: int | None) -> ParallelConfig:
    """The knobs under their one name: what has no effect takes its neutral value."""
    config = ParallelConfig.model_validate(dict(knobs))
    group = config.dp * config.cp
    neutral: dict[str, Any] = {}
    if config.tp == 1:
        neutral["sequence_parallel"] = False
    if config.pp == 1:
        neutral |= {"virtual_stages": 1, "pipeline_schedule": "1f1b", "stage_layers": None}
    if group == 1:
        neutral |= {"zero_stage": 0, "reduce_dtype": "fp32", "optimizer_offload": False}
    if config.zero_stage == 0 or config.zero_shard_degree in (1, group):
        neutral["zero_shard_degree"] = 0
    if config.dtype == "fp32":
        neutral["reduce_dtype"] = "fp32"
    if config.recompute == "none":
        neutral["recompute_layers"] = None
    config = config.with_knobs(**neutral)
    split = config.stage_layers
    if split is not None and min(split) == max(split):
        config = config.with_knobs(stage_layers=None)
    if num_layers is not None and config.recompute_layers is not None:
        most = max_layers_per_stage(num_layers, config)
        if config.recompute_layers >= most:
            config = config.with_knobs(recompute_layers=None)
    return config


def whole(value: Any, name: str, trainer: str) -> int:
    """A count of 1 or more from a file; `ConfigError` names the key."""
    try:
        number = int(str(value))
    except ValueError:
        number = 0
    if number < 1:
        raise ConfigError(f"{name} of the {trainer} file is {value!r}, must be a positive integer")
    return number
