"""The options that say what is studied, and the config that they and the study file make."""

from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

import click
from click.shell_completion import CompletionItem

from tuner.cli.output import say
from tuner.config import StudyConfig, find_study_file, load_study_config

if TYPE_CHECKING:
    from search_spaces.space import SearchSpace

Command = TypeVar("Command", bound=Callable[..., Any])


def _complete_model(ctx: click.Context, parameter: click.Parameter, incomplete: str) -> list[str]:
    from search_spaces.model_io import preset_names

    return [name for name in preset_names() if name.startswith(incomplete)]


def _complete_cluster(
    ctx: click.Context, parameter: click.Parameter, incomplete: str
) -> list[CompletionItem]:
    from search_spaces.cluster_io import cluster_preset_names

    names = [name for name in cluster_preset_names() if name.startswith(incomplete)]
    return [*map(CompletionItem, names), CompletionItem(incomplete, type="file")]


def _complete_part(
    ctx: click.Context, parameter: click.Parameter, incomplete: str
) -> list[CompletionItem]:
    from tuner import registry

    names = registry.names(f"{parameter.name}s")
    return [CompletionItem(name) for name in names if name.startswith(incomplete)]


def _complete_file(
    ctx: click.Context, parameter: click.Parameter, incomplete: str
) -> list[CompletionItem]:
    return [CompletionItem(incomplete, type="file")]


study_argument = click.argument(
    "study", required=False, metavar="[STUDY.toml]", shell_complete=_complete_file
)
model_option = click.option(
    "--model",
    metavar="NAME",
    shell_complete=_complete_model,
    help="A preset (`tuner presets`) or the path of a Hugging Face config.json.",
)
set_option = click.option(
    "--set",
    "overrides",
    multiple=True,
    metavar="KEY=VALUE",
    help="Change one key of the study, e.g. space.tp=[1,2]; may be repeated.",
)
devices_option = click.option("--devices", type=int, metavar="N", help="Devices to use in all.")
cluster_option = click.option(
    "--cluster",
    metavar="NAME|FILE",
    shell_complete=_complete_cluster,
    help="A preset (`tuner presets`) or TOML.",
)
searcher_option = click.option(
    "--searcher", metavar="NAME", shell_complete=_complete_part, help="What proposes trials."
)
launcher_option = click.option(
    "--launcher", metavar="NAME", shell_complete=_complete_part, help="What runs trials."
)


def space_options(command: Command) -> Command:
    """The options of every command that looks at a space: study file, model, devices, overrides."""
    return study_argument(model_option(devices_option(set_option(command))))


def study_config(study: str | None, overrides: tuple[str, ...], **options: Any) -> StudyConfig:
    """The config of a study file and options over it.

    Without a file and without `--model`, the study file of this folder or one above is used.
    """
    path = Path(study) if study is not None else None
    if path is None and options.get("model") is None:
        path = find_study_file(Path())
        if path is not None:
            say(f"using {path}")
    return load_study_config(path, overrides, is_found=study is None, **options)


def search_space(config: StudyConfig) -> tuple["SearchSpace", StudyConfig]:
    """The study's space, legal points or not, and the config with the machine's defaults filled in.

    Raises:
        SearchSpaceError, ConfigError: the model, the cluster or a domain cannot be used.
    """
    from search_spaces.space import SearchSpace
    from tuner.custom import constraint_of
    from tuner.inputs import resolve_cluster, resolve_model

    model, cluster = resolve_model(config), resolve_cluster(config)
    config = config.with_device_defaults(cluster.device_kind, model.max_positions)
    constraint = constraint_of(config)
    space = SearchSpace(
        model,
        config.training,
        cluster,
        config.space.domains(),
        use_all_devices=config.space.use_all_devices,
        rules=() if constraint is None else (constraint.rule(),),
    )
    return space, config
