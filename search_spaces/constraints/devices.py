"""The ranks of a configuration are the devices of the cluster."""

from search_spaces.constraints.base import Constraint, Setting
from search_spaces.parallel_config import ParallelConfig


def _allows(config: ParallelConfig, setting: Setting) -> bool:
    num_devices = setting.cluster.num_devices
    if setting.use_all_devices:
        return config.world_size == num_devices
    return config.world_size <= num_devices


def _reason(config: ParallelConfig, setting: Setting) -> str:
    factors = {"dp": config.dp, "tp": config.tp, "pp": config.pp}
    if config.cp > 1:
        factors["cp"] = config.cp
    product = " x ".join(f"{name} {value}" for name, value in factors.items())
    most = "" if setting.use_all_devices else "at most "
    return (
        f"{product} makes {config.world_size} ranks, but the cluster has "
        f"{most}{setting.cluster.num_devices} devices"
    )


RULE = Constraint("devices", ("tp", "cp", "pp", "dp"), _allows, _reason)
