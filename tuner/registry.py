"""Names of the exchangeable parts, loaded only when used. Outsiders add theirs as entry points."""

import difflib
import importlib
import logging
from collections.abc import Mapping
from importlib.metadata import EntryPoint, entry_points
from typing import Any

from tuner.errors import ConfigError

log = logging.getLogger(__name__)

SEARCHERS: Mapping[str, str] = {
    "cbo": "tuner.searchers.cbo:CboSearcher",
    "cbo-plain": "tuner.searchers.cbo_plain:CboPlainSearcher",
    "random": "tuner.searchers.random:RandomSearcher",
    "grid": "tuner.searchers.grid:GridSearcher",
    "prior": "tuner.searchers.prior:PriorSearcher",
    "optuna": "tuner.searchers.optuna:OptunaSearcher",
}
LAUNCHERS: Mapping[str, str] = {
    "ray": "tuner.launchers.ray_launcher:RayLauncher",
    "local": "tuner.launchers.local:LocalLauncher",
    "simulated": "tuner.launchers.simulated:SimulatedLauncher",
    "command": "tuner.launchers.command:CommandLauncher",
}
ADAPTERS: Mapping[str, str] = {
    "megatron-lm": "tuner.adapters.megatron_lm:MegatronLmAdapter",
    "megatron-deepspeed": "tuner.adapters.megatron_deepspeed:MegatronDeepSpeedAdapter",
    "deepspeed": "tuner.adapters.deepspeed:DeepSpeedAdapter",
    "torchtitan": "tuner.adapters.torchtitan:TorchtitanAdapter",
    "nanotron": "tuner.adapters.nanotron:NanotronAdapter",
    "hf-trainer": "tuner.adapters.hf_trainer:HfTrainerAdapter",
    "accelerate": "tuner.adapters.accelerate:AccelerateAdapter",
    "report": "tuner.adapters.report:ReportAdapter",
}
EXPORTERS: Mapping[str, str] = {
    "tuner": "tuner.exporters.own:OwnExporter",
    "megatron-lm": "tuner.exporters.megatron_lm:MegatronLmExporter",
    "megatron-deepspeed": "tuner.exporters.megatron_deepspeed:MegatronDeepSpeedExporter",
    "megatron-bridge": "tuner.exporters.megatron_bridge:MegatronBridgeExporter",
    "deepspeed": "tuner.exporters.deepspeed:DeepSpeedExporter",
    "gpt-neox": "tuner.exporters.gpt_neox:GptNeoxExporter",
    "torchtitan": "tuner.exporters.torchtitan:TorchtitanExporter",
    "torchtitan-toml": "tuner.exporters.torchtitan_toml:TorchtitanTomlExporter",
    "nanotron": "tuner.exporters.nanotron:NanotronExporter",
    "colossalai": "tuner.exporters.colossalai:ColossalAiExporter",
    "accelerate": "tuner.exporters.accelerate:AccelerateExporter",
    "axolotl": "tuner.exporters.axolotl:AxolotlExporter",
}
_GROUPS: Mapping[str, Mapping[str, str]] = {
    "exporters": EXPORTERS,
    "searchers": SEARCHERS,
    "launchers": LAUNCHERS,
    "adapters": ADAPTERS,
}


def _plug_ins(group: str) -> dict[str, EntryPoint]:
    """Entry points of outsiders; a name of ours, or one that two outsiders claim, is an error."""
    found: dict[str, EntryPoint] = {}
    for point in entry_points(group=f"tuner.{group}"):
        if point.name in _GROUPS[group] or point.name in found:
            raise ConfigError(
                f"two plug-ins are called {point.name!r} among the {group}",
                hint=f"uninstall one of them; the second is {point.value}",
            )
        found[point.name] = point
    return found


def names(group: str) -> list[str]:
    """All names that `load` knows in `group`, sorted."""
    return sorted({*_GROUPS[group], *_plug_ins(group)})


def load(group: str, name: str) -> Any:
    """The class behind `name` in `group` (a key of the table of groups, such as "searchers").

    Raises:
        ConfigError: the name is unknown (the legal ones are listed), or a plug-in cannot be loaded.
    """
    plug_ins = _plug_ins(group)
    if name in _GROUPS[group]:
        module, _, attribute = _GROUPS[group][name].partition(":")
        return getattr(importlib.import_module(module), attribute)
    if name in plug_ins:
        try:
            return plug_ins[name].load()
        except Exception as error:  # a plug-in may raise anything at import
            log.warning("plug-in %s cannot be loaded", name, exc_info=True)
            raise ConfigError(f"the plug-in {name!r} cannot be loaded: {error}") from error
    known = names(group)
    close = difflib.get_close_matches(name, known, n=1)
    hint = f"did you mean {close[0]!r}? " if close else ""
    raise ConfigError(
        f"unknown {group.removesuffix('s')} {name!r}", hint=f"{hint}known: {', '.join(known)}"
    )
