"""`tuner run --dry-run`: the points that would be searched, without running or storing anything."""

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import click

from tuner.cli import formats
from tuner.cli.output import print_json, print_table, say
from tuner.config import StudyConfig

if TYPE_CHECKING:
    from search_spaces.cluster_spec import ClusterSpec
    from search_spaces.model_spec import ModelSpec
    from tuner.ports import Candidate, Searcher

_NUM_FIRST = 5


def show_plan(config: StudyConfig, *, as_json: bool) -> None:
    """Print the number of legal points, the first candidates and the resolved study file.

    Raises:
        NothingFeasibleError: no point is legal.
        SearchSpaceError, ConfigError: an input cannot be used.
    """
    from tuner.study import build_candidates, resolve

    inputs = resolve(config)
    config, model, cluster = inputs.config, inputs.model, inputs.cluster
    candidates = build_candidates(
        inputs.points, model, config.training, cluster, is_kernel=config.trainer is None
    )
    first = _first_candidates(config, candidates)
    if as_json:
        print_json(_document(config, candidates, first))
    else:
        _print_for_people(config, model, cluster, candidates, first)


def _first_candidates(config: StudyConfig, candidates: list["Candidate"]) -> list["Candidate"]:
    """What the study's searcher would propose first."""
    from tuner import registry

    search = config.search
    searcher: Searcher = registry.load("searchers", search.searcher)(
        candidates, seed=search.seed, **search.options
    )
    searcher.tell([])
    by_key = {candidate.config.config_key: candidate for candidate in candidates}
    return [by_key[point.config_key] for point in searcher.ask(min(_NUM_FIRST, search.max_trials))]


def _document(
    config: StudyConfig, candidates: Sequence["Candidate"], first: Sequence["Candidate"]
) -> dict[str, Any]:
    return {
        "num_legal_points": len(candidates),
        "first_candidates": [
            {
                "label": item.config.short(),
                "knobs": item.config.canonical(),
                "predicted_step_time_s": item.step_time_s,
                "predicted_peak_memory_bytes": item.peak_memory_bytes,
                "probability_fits": item.probability_fits,
            }
            for item in first
        ],
        "config_hash": config.config_hash(),
        "resolved_config": config.to_toml(),
    }


def _print_for_people(
    config: StudyConfig,
    model: "ModelSpec",
    cluster: "ClusterSpec",
    candidates: Sequence["Candidate"],
    first: Sequence["Candidate"],
) -> None:
    from search_spaces.counts import num_parameters

    size = formats.parameters(num_parameters(model))
    click.echo(f"model: {model.name}, {size} parameters, {model.num_layers} layers")
    memory = formats.memory(cluster.memory_bytes)
    click.echo(f"devices: {cluster.num_devices} x {cluster.device_name}, {memory} each")
    click.echo(
        f"legal configurations: {len(candidates):,}; at most {config.search.max_trials} trials"
    )
    click.echo(f"\nfirst {len(first)} that {config.search.searcher} would try")
    cells = [
        (
            formats.step_time(item.step_time_s),
            formats.memory(item.peak_memory_bytes),
            item.config.short(),
        )
        for item in first
    ]
    print_table(("predicted step", "memory", "configuration"), cells, right=(0, 1))
    click.echo(f"\nresolved study file\n\n{config.to_toml().rstrip()}")
    say("\nnothing was run or stored")
