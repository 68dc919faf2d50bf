"""`tuner plan`: predict the fastest configurations, explain one, and say what would fit."""

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

import click

from tuner.cli import formats, sparks
from tuner.cli.inputs import cluster_option, search_space, space_options, study_config
from tuner.cli.knobs import parse_config
from tuner.cli.options import json_option, verbosity_options
from tuner.cli.output import print_json, print_table, say
from tuner.cli.plan_scaling import print_scaling
from tuner.errors import NothingFeasibleError, UsageError

if TYPE_CHECKING:
    from search_spaces.cost_models.analytic import AnalyticCostModel
    from search_spaces.cost_models.planning import PlannedPoint
    from search_spaces.space import SearchSpace

Command = TypeVar("Command", bound=Callable[..., Any])
_SECONDS_PER_HOUR = 3600.0
_NUM_NEAREST = 5
_PARTS_SHOWN = 0.002
"""Smaller shares of a step are left out of tables."""


def _plan_options(command: Command) -> Command:
    for option in (
        cluster_option,
        click.option("--sequence-length", type=int, metavar="N", help="Tokens per sequence."),
        click.option("--global-batch", type=int, metavar="N", help="Sequences per step."),
        click.option("--dtype", type=click.Choice(["fp32", "bf16", "fp16"]), help="Precision."),
        click.option("--top", type=click.IntRange(min=1), default=10, show_default=True,
                     help="Configurations to show."),
        click.option("--tokens", type=float, metavar="N", help="Token budget, e.g. 2e12."),
        click.option("--price", type=float, metavar="P", help="Money per device and hour."),
        click.option("--why", "knobs", metavar="KNOBS", help="Explain one configuration."),
        click.option("--nodes", metavar="N,N,...", help="Weak and strong scaling over nodes."),
    ):  # fmt: skip
        command = option(command)
    return command


@click.command(
    epilog="\b\nExamples:\n"
    "  tuner plan --model gpt3-175b --cluster dgx-a100-80 --nodes 16,32,64\n"
    "  tuner plan --model llama3-8b --cluster dgx-h100 --dtype bf16 --tokens 1e12 --price 2\n"
    '  tuner plan --model llama3-8b --cluster dgx-h100 --why "tp=8,dp=8,zero_stage=1"\n\n'
    "Nothing is run and no hardware is needed. Exits with 3 when nothing fits."
)
@space_options
@_plan_options
@json_option
@verbosity_options
@click.pass_context
def plan(
    ctx: click.Context,
    study: str | None,
    model: str | None,
    devices: int | None,
    overrides: tuple[str, ...],
    cluster: str | None,
    sequence_length: int | None,
    global_batch: int | None,
    dtype: str | None,
    top: int,
    tokens: float | None,
    price: float | None,
    knobs: str | None,
    nodes: str | None,
    as_json: bool,
) -> None:
    """Predict the fastest configurations without running any."""
    from search_spaces.cost_models.analytic import AnalyticCostModel

    extra = _overrides(cluster, sequence_length, global_batch, dtype)
    config = study_config(study, (*overrides, *extra), model=model, devices=devices)
    space, _ = search_space(config)
    setting = space.setting
    costs = AnalyticCostModel(
        setting.model, setting.training, setting.cluster, is_kernel=config.trainer is None
    )
    money = price if price is not None else setting.cluster.price_per_device_hour
    if knobs is not None:
        code = _why(space, costs, knobs, tokens, money, as_json)
    elif nodes is not None:
        print_scaling(space, costs, _counts(nodes), as_json)
        code = 0
    else:
        code = _top(space, costs, top, tokens, money, as_json)
    if code:
        ctx.exit(code)


def _overrides(
    cluster: str | None, sequence_length: int | None, global_batch: int | None, dtype: str | None
) -> list[str]:
    """Options as changes of a study's keys."""
    items = []
    if cluster is not None:
        is_file = "/" in cluster or cluster.endswith(".toml")
        place = Path(cluster).resolve() if is_file else cluster
        items.append(f'cluster.{"path" if is_file else "preset"}="{place}"')
    if sequence_length is not None:
        items.append(f"training.sequence_length={sequence_length}")
    if global_batch is not None:
        items.append(f"training.global_batch_size={global_batch}")
    if dtype is not None:
        items.append(f'training.dtype="{dtype}"')
    return items


def _counts(text: str) -> list[int]:
    try:
        counts = [int(item) for item in text.split(",")]
    except ValueError:
        counts = []
    if not counts or min(counts) < 1:
        raise UsageError(f"--nodes is {text!r}", "give numbers of nodes, for example 16,32,64")
    return counts


def _top(
    space: "SearchSpace", costs: "AnalyticCostModel", top: int, tokens: float | None,
    price: float | None, as_json: bool,
) -> int:  # fmt: skip
    """The fastest points that fit, the front of speed against memory, or what would fit."""
    from search_spaces.cost_models.planning import pareto, plan_points, rank

    configs = space.enumerate()
    order, _, peaks = rank(costs, configs)
    if not len(order):
        return _nothing_fits(space, costs, [configs[int(peaks.argmin())]], as_json)
    best = plan_points(costs, [configs[index] for index in order[:top].tolist()])
    front = plan_points(costs, [configs[index] for index in pareto(order, peaks)])
    if as_json:
        print_json(
            {
                "num_legal": len(configs),
                "num_fitting": len(order),
                "cluster": costs.cluster.model_dump(),
                "top": [_record(point, costs, tokens, price) for point in best],
                "pareto": [_record(point, costs, tokens, price) for point in front],
            }
        )
        return 0
    click.echo(
        f"{costs.model.name} on {costs.cluster.num_devices} devices of {costs.cluster.name}: "
        f"{len(order):,} of {len(configs):,} legal configurations are predicted to fit"
    )
    _print_points(best, costs, tokens, price)
    click.echo("\nSpeed against memory: no configuration is both faster and smaller than these")
    _print_points(front, costs, tokens, price)
    click.echo(f"\nMemory by pipeline rank of {best[0].config.short()}")
    _print_memory(costs, best[0])
    say(
        "predictions of a model that saw no run on these machines; step times carry a 90 % interval"
    )
    return 0


def _record(
    point: "PlannedPoint", costs: "AnalyticCostModel", tokens: float | None, price: float | None
) -> dict[str, Any]:
    """A point for machines; seconds, bytes, shares of one."""
    from search_spaces.cost_models.planning import memory_by_rank

    hours = _device_hours(point, tokens)
    return {
        "config": point.config.canonical(),
        "config_key": point.config.config_key,
        "step_time_s": point.estimate.step_time_s,
        "step_time_low_s": point.estimate.step_time_low_s,
        "step_time_high_s": point.estimate.step_time_high_s,
        "tokens_per_s": point.tokens_per_s,
        "mfu": point.mfu,
        "peak_memory_bytes": point.estimate.peak_memory_bytes,
        "probability_fits": point.probability_fits,
        "bubble_share": point.bubble_share,
        "communication_share": point.communication_share,
        "limited_by": point.limited_by,
        "parts_s": point.estimate.parts_s,
        "memory_by_rank_bytes": memory_by_rank(costs, point.config),
        "device_hours": hours,
        "cost": hours * price if hours is not None and price is not None else None,
    }


def _device_hours(point: "PlannedPoint", tokens: float | None) -> float | None:
    """Device-hours that a token budget takes."""
    if tokens is None:
        return None
    return tokens / point.tokens_per_s / _SECONDS_PER_HOUR * point.config.world_size


def _print_points(
    points: Sequence["PlannedPoint"], costs: "AnalyticCostModel", tokens: float | None,
    price: float | None,
) -> None:  # fmt: skip
    headers = ["configuration", "step", "90 % interval", "tokens/s", "MFU", "memory", "fits",
               "bubble", "comm.", "limited by"]  # fmt: skip
    headers += ["device-hours"] if tokens else []
    headers += ["cost"] if tokens and price else []
    rows = []
    for point in points:
        estimate, hours = point.estimate, _device_hours(point, tokens)
        low, high = estimate.step_time_low_s, estimate.step_time_high_s
        row = [
            point.config.short(), formats.step_time(estimate.step_time_s),
            f"{formats.step_time(low)} to {formats.step_time(high)}",
            formats.throughput(point.tokens_per_s), formats.percent(point.mfu),
            formats.memory(estimate.peak_memory_bytes), formats.percent(point.probability_fits),
            formats.percent(point.bubble_share), formats.percent(point.communication_share),
            point.limited_by,
        ]  # fmt: skip
        row += [f"{hours:,.0f}"] if hours is not None else []
        row += [f"{hours * price:,.0f}"] if hours is not None and price else []
        rows.append(row)
    print_table(headers, rows, right=range(1, len(headers)))


def _print_memory(costs: "AnalyticCostModel", point: "PlannedPoint") -> None:
    """Bytes of every pipeline rank by part; equal neighbours share a line."""
    from search_spaces.cost_models.planning import memory_by_rank

    table = memory_by_rank(costs, point.config)
    names = [name for name in table[0] if any(row[name] > 0 for row in table)]
    rows = [[str(rank), *(formats.memory(row[n]) for n in names)] for rank, row in enumerate(table)]
    print_table(["rank", *names], rows, right=range(1, len(names) + 1))


def _why(
    space: "SearchSpace", costs: "AnalyticCostModel", knobs: str, tokens: float | None,
    price: float | None, as_json: bool,
) -> int:  # fmt: skip
    """One configuration: legal or not, fits or not, where the time goes, what is near."""
    from search_spaces.cost_models.planning import changes_near, plan_point, plan_points

    config = parse_config(knobs, costs.training.dtype)
    violations = space.violations(config)
    if violations:
        return _illegal(space, config, violations, as_json)
    point = plan_point(costs, config)
    near = plan_points(costs, changes_near(space, config))
    better = _better(point, near)
    if as_json:
        record = _record(point, costs, tokens, price)
        changes = [_change_record(config, item) for item in better]
        print_json({"is_legal": True, "fits": point.fits, **record, "better_changes": changes})
        return 0
    _print_points([point], costs, tokens, price)
    click.echo("\nWhere the time goes")
    total = point.estimate.step_time_s
    parts = [(n, s) for n, s in point.estimate.parts_s.items() if s / total >= _PARTS_SHOWN]
    bars = sparks.has_room(min_width=60)
    rows = [
        [n, formats.step_time(s), formats.percent(s / total), *([sparks.bar(s / total, 30)] * bars)]
        for n, s in parts
    ]
    print_table(["part", "time", "share", *([""] * bars)], rows, right=(1, 2))
    click.echo("\nMemory by pipeline rank")
    _print_memory(costs, point)
    if better:
        helpful = "Changes that make it faster" if point.fits else "Changes that fit"
        none = "It does not fit, nor does any single change of it; these need less memory"
        click.echo("\n" + (helpful if better[0].fits else none))
        _print_changes(config, better)
    elif not point.fits:
        click.echo("\nIt does not fit, and no single change of it needs less memory")
    return 0


def _better(point: "PlannedPoint", near: Sequence["PlannedPoint"]) -> list["PlannedPoint"]:
    """Changes that fit and are faster; of a point that does not fit, those that need less."""
    fitting = sorted((p for p in near if p.fits), key=lambda p: p.estimate.step_time_s)
    if point.fits:
        limit = point.estimate.step_time_s
        return [p for p in fitting if p.estimate.step_time_s < limit][:_NUM_NEAREST]
    need = point.estimate.peak_memory_bytes
    smaller = [p for p in near if p.estimate.peak_memory_bytes < need]
    by_need = sorted(smaller, key=lambda p: p.estimate.peak_memory_bytes)
    return (fitting or by_need)[:_NUM_NEAREST]


def _illegal(space: "SearchSpace", config: Any, violations: Sequence[Any], as_json: bool) -> int:
    near = space.nearest(config, 3)
    if as_json:
        rules = [{"rule": item.rule, "message": item.message} for item in violations]
        nearest = [item.canonical() for item in near]
        print_json({"is_legal": False, "violations": rules, "nearest": nearest})
        return NothingFeasibleError.exit_code
    click.echo(f"{config.short()} cannot run:")
    for item in violations:
        click.echo(f"  {item.rule}: {item.message}")
    for item in near:
        click.echo(f"nearest legal: {item.short()}")
    return NothingFeasibleError.exit_code


def _change_text(config: Any, point: "PlannedPoint") -> str:
    from search_spaces.cost_models.planning import changed_knobs

    changes = changed_knobs(config, point.config).items()
    return ", ".join(f"{name}={value}" for name, value in changes)


def _change_record(config: Any, point: "PlannedPoint") -> dict[str, Any]:
    from search_spaces.cost_models.planning import changed_knobs

    return {
        "changes": changed_knobs(config, point.config),
        "step_time_s": point.estimate.step_time_s,
        "peak_memory_bytes": point.estimate.peak_memory_bytes,
        "fits": point.fits,
    }


def _print_changes(config: Any, points: Sequence["PlannedPoint"]) -> None:
    rows = [
        [
            _change_text(config, point),
            formats.step_time(point.estimate.step_time_s),
            formats.memory(point.estimate.peak_memory_bytes),
            formats.percent(point.probability_fits),
        ]
        for point in points
    ]
    print_table(["change", "step", "memory", "fits"], rows, right=(1, 2, 3))


def _nothing_fits(
    space: "SearchSpace", costs: "AnalyticCostModel", smallest: Sequence[Any], as_json: bool
) -> int:
    """Which single change comes nearest, starting from the point that needs the least."""
    from search_spaces.cost_models.planning import (
        changes_near,
        nodes_that_fit,
        plan_point,
        plan_points,
    )

    point = plan_point(costs, smallest[0])
    near = _better(point, plan_points(costs, changes_near(space, point.config)))
    more = nodes_that_fit(space, costs)
    if as_json:
        print_json(
            {
                "num_fitting": 0,
                "smallest": _record(point, costs, None, None),
                "changes": [_change_record(point.config, item) for item in near],
                "nodes_that_fit": more[0] if more else None,
                "config_on_more_nodes": more[1].config.canonical() if more else None,
            }
        )
        return NothingFeasibleError.exit_code
    need = formats.memory(point.estimate.peak_memory_bytes)
    have = formats.memory(costs.cluster.memory_bytes)
    click.echo(f"nothing fits: {point.config.short()} needs the least, {need} of {have} a device")
    if near:
        click.echo("single changes that come nearest")
        _print_changes(point.config, near)
    else:
        click.echo("no single change of its knobs needs less memory")
    if more:
        click.echo(f"on {more[0]} nodes fits: {more[1].config.short()}")
    return NothingFeasibleError.exit_code


plan_command = plan
