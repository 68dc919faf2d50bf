"""`tuner spaces` and `tuner presets`: what there is to choose from."""

from typing import TYPE_CHECKING, Any

import click

from tuner.cli import formats
from tuner.cli.options import json_option, verbosity_options
from tuner.cli.output import print_json, print_table

if TYPE_CHECKING:
    from search_spaces.cluster_spec import ClusterSpec


@click.command(epilog="\b\nExamples:\n  tuner presets\n  tuner presets --json")
@json_option
@verbosity_options
def presets(as_json: bool) -> None:
    """List the models and clusters that come along."""
    models, clusters = _models(), _clusters()
    if as_json:
        print_json({"models": models, "clusters": clusters})
        return
    click.echo("Models (--model NAME, or the path of a Hugging Face config.json)")
    headers = ("name", "family", "parameters", "layers", "hidden", "heads", "positions")
    print_table(headers, map(_model_cells, models), right=(2, 3, 4, 5, 6))
    click.echo("\nClusters ([cluster] preset = NAME)")
    titles = ("name", "device", "nodes", "devices a node", "memory", "peak bf16")
    print_table(titles, map(_cluster_cells, clusters), right=(2, 3, 4, 5))


def _models() -> list[dict[str, Any]]:
    from search_spaces.counts import num_parameters
    from search_spaces.model_io import load_model_spec, preset_names

    specs = sorted((load_model_spec(name) for name in preset_names()), key=num_parameters)
    return [spec.model_dump() | {"num_parameters": num_parameters(spec)} for spec in specs]


def _clusters() -> list[dict[str, Any]]:
    from search_spaces.cluster_io import cluster_preset_names, load_cluster_spec

    found: list[tuple[str, ClusterSpec]] = [
        (name, load_cluster_spec(name)) for name in cluster_preset_names()
    ]
    return [spec.model_dump() | {"preset": name} for name, spec in found]


def _model_cells(row: dict[str, Any]) -> tuple[str, ...]:
    counts = ("num_layers", "hidden_size", "num_heads", "max_positions")
    size = formats.parameters(row["num_parameters"])
    return row["name"], row["family"], size, *(str(row[name]) for name in counts)


def _cluster_cells(row: dict[str, Any]) -> tuple[str, ...]:
    return (
        row["preset"],
        row["device_name"],
        formats.count(row["num_nodes"]),
        str(row["devices_per_node"]),
        formats.memory(row["memory_bytes"]),
        formats.flops(row["peak_flops_per_s"].get("bf16")),
    )


@click.command(epilog="\b\nExamples:\n  tuner spaces\n  tuner spaces --json")
@json_option
@verbosity_options
def spaces(as_json: bool) -> None:
    """List knobs, rules, searchers, launchers and adapters."""
    from search_spaces.constraints import CONSTRAINTS
    from tuner import registry

    knobs = _knobs()
    rules = [{"name": rule.name, "knobs": list(rule.knobs)} for rule in CONSTRAINTS]
    parts = {group: registry.names(group) for group in ("searchers", "launchers", "adapters")}
    if as_json:
        print_json({"knobs": knobs, "rules": rules} | parts)
        return
    click.echo("Knobs ([space] KNOB = value or list)")
    cells = [(str(row["name"]), str(row["default"]), str(row["description"])) for row in knobs]
    print_table(("knob", "default", "what it is"), cells)
    click.echo("\nRules (`tuner why` says which one a configuration breaks)")
    print_table(("rule", "knobs"), [(rule.name, ", ".join(rule.knobs)) for rule in CONSTRAINTS])
    for group, names in parts.items():
        click.echo(f"\n{group.capitalize()}: {', '.join(names)}")


def _knobs() -> list[dict[str, Any]]:
    from search_spaces.constraints.base import value_text
    from search_spaces.parallel_config import ParallelConfig

    return [
        {"name": name, "default": value_text(info.default, name), "description": info.description}
        for name, info in ParallelConfig.model_fields.items()
    ]
