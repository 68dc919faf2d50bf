"""Checks of the searcher and launcher that a study names, before anything is stored."""

import inspect

from tuner import registry
from tuner.config import StudyConfig, TrainerSection, nearest
from tuner.errors import ConfigError

# What the tuner itself gives to a launcher; the rest of its parameters are the user's options.
_GIVEN = frozenset({"num_devices", "run_folder", "clock"})


def check_parts(config: StudyConfig) -> None:
    """Refuse unknown searchers and launchers, and options that they do not have.

    Raises:
        ConfigError: with the names that exist.
    """
    check_searcher(config)
    check_launcher(config)
    if config.trainer is not None:
        _check_trainer(config.trainer)


def check_searcher(config: StudyConfig) -> None:
    """Refuse an unknown searcher, and options that it does not have; `ConfigError` with a list."""
    search = config.search
    if search.searcher not in registry.names("searchers"):
        registry.load("searchers", search.searcher)  # says which names there are
    if search.options:
        # searchers check their options when they are made, which takes no candidates
        registry.load("searchers", search.searcher)((), seed=search.seed, **search.options)


def check_launcher(config: StudyConfig) -> None:
    """Refuse an unknown launcher, and options that it does not have; `ConfigError` with a list."""
    name = config.launcher.name
    if name not in registry.names("launchers"):
        registry.load("launchers", name)
    known = _launcher_options(name)
    if known is not None:
        _check_launcher(config, known)


def _check_trainer(trainer: TrainerSection) -> None:
    registry.load("adapters", trainer.adapter)
    if trainer.exporter is not None or trainer.needs_export:
        registry.load("exporters", trainer.exporter or trainer.adapter)


def _launcher_options(name: str) -> list[str] | None:
    """Names of a launcher's options; none where it takes any and checks them itself."""
    parameters = inspect.signature(registry.load("launchers", name)).parameters.values()
    if any(parameter.kind is parameter.VAR_KEYWORD for parameter in parameters):
        return None
    return [parameter.name for parameter in parameters if parameter.name not in _GIVEN]


def _check_launcher(config: StudyConfig, known: list[str]) -> None:
    launcher = config.launcher
    if launcher.address is not None and "address" not in known:
        raise ConfigError(
            f"launcher.address is set, but the launcher {launcher.name!r} connects to no cluster",
            hint="use launcher.name = ray, or leave the address out",
        )
    for option in launcher.options:
        if option not in known:
            close = nearest(option, known)
            hint = f"did you mean {close!r}? " if close else ""
            raise ConfigError(
                f"the launcher {launcher.name!r} has no option {option!r}",
                hint=f"{hint}its options: {', '.join(known) or 'none'}",
            )
