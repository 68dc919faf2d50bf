"""Tables of `tuner plan --nodes`: the best configuration on each number of nodes."""

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import click

from tuner.cli import formats
from tuner.cli.output import print_json, print_table

if TYPE_CHECKING:
    from search_spaces.cost_models.analytic import AnalyticCostModel
    from search_spaces.cost_models.planning import ScalingPoint
    from search_spaces.space import SearchSpace


def print_scaling(
    space: "SearchSpace", costs: "AnalyticCostModel", nodes: Sequence[int], as_json: bool
) -> None:
    """Weak and strong scaling: the best configuration on each number of nodes."""
    from search_spaces.cost_models.planning import scaling

    tables = {
        "weak": scaling(space, costs, nodes, is_weak=True),
        "strong": scaling(space, costs, nodes, is_weak=False),
    }
    if as_json:
        print_json({kind: [_scaling_record(row) for row in rows] for kind, rows in tables.items()})
        return
    for kind, rows in tables.items():
        click.echo(f"{kind} scaling of {costs.model.name} on {costs.cluster.name}")
        cells = [_scaling_cells(row) for row in rows]
        headers = ["nodes", "batch", "configuration", "step", "tokens/s", "MFU", "efficiency"]
        print_table(headers, cells, right=(0, 1, 3, 4, 5, 6))


def _scaling_record(row: "ScalingPoint") -> dict[str, Any]:
    best = row.best
    return {
        "num_nodes": row.num_nodes,
        "global_batch_size": row.global_batch_size,
        "config": best.config.canonical() if best else None,
        "step_time_s": best.estimate.step_time_s if best else None,
        "tokens_per_s": best.tokens_per_s if best else None,
        "mfu": best.mfu if best else None,
        "efficiency": row.efficiency,
    }


def _scaling_cells(row: "ScalingPoint") -> list[str]:
    best = row.best
    if best is None:
        return [str(row.num_nodes), str(row.global_batch_size), "nothing fits", *[""] * 4]
    return [
        str(row.num_nodes), str(row.global_batch_size), best.config.short(),
        formats.step_time(best.estimate.step_time_s), formats.throughput(best.tokens_per_s),
        formats.percent(best.mfu), formats.percent(row.efficiency),
    ]  # fmt: skip
