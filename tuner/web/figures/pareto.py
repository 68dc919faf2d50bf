"""Throughput against memory, and against cost where configurations use unequal devices."""

from collections.abc import Sequence

from results_db.queries import LeaderboardRow
from tuner.web.figures.picture import Missing, Picture
from tuner.web.figures.style import (
    BLUE,
    GREY,
    ORANGE,
    VERMILLION,
    axis,
    speed_axis,
    stacked,
    text,
    thinned,
    unit_of,
)
from tuner.web.study_data import StudyData

_SHOWN = 1500
_TOKENS = 1e9


def pareto_rows(rows: Sequence[LeaderboardRow], costs: Sequence[float]) -> list[LeaderboardRow]:
    """Those that no other beats in both throughput and cost, the cheapest first."""
    ordered = sorted(
        zip(rows, costs, strict=True), key=lambda pair: (pair[1], -pair[0].tokens_per_s)
    )
    front: list[LeaderboardRow] = []
    for row, _ in ordered:
        if not front or row.tokens_per_s > front[-1].tokens_per_s:
            front.append(row)
    return front


def costs_of(data: StudyData) -> tuple[list[float], str]:
    """Cost of 10^9 tokens of every leaderboard row, and its unit."""
    price = data.study.cluster.get("price_per_device_hour")
    unit = "price" if isinstance(price, int | float) and price > 0 else "device-hours"
    factor = float(price or 0.0) if unit == "price" else 1.0
    return [
        factor * data.configs[row.config_key].world_size * _TOKENS / row.tokens_per_s / 3600
        for row in data.leaderboard
    ], unit


def front(data: StudyData) -> Picture | Missing:
    """The front in throughput and memory; below it in throughput and cost."""
    rows = data.leaderboard
    if len(rows) < 2:
        return Missing("Fewer than two configurations were measured.")
    costs, unit = costs_of(data)
    made = stacked(2, 640, vertical_spacing=0.16)
    scale, name = unit_of(row.peak_memory_bytes for row in rows)
    memory = [row.peak_memory_bytes / scale for row in rows]
    first = _panel(made, 1, rows, memory)
    second = _panel(made, 2, rows, costs)
    limit = data.memory_limit_bytes
    is_near = limit is not None and limit / scale <= 2.5 * max(memory)
    if limit is not None and is_near:
        low = min(row.tokens_per_s for row in rows)
        made.add_scatter(
            x=[limit / scale] * 2, y=[low, rows[0].tokens_per_s], mode="lines",
            name="memory limit", line={"color": VERMILLION, "dash": "dash"}, row=1, col=1,
        )  # fmt: skip
    made.update_yaxes(speed_axis())
    made.update_xaxes(axis(f"peak memory of the fullest rank ({name})"), row=1, col=1)
    what = "cost (price units" if unit == "price" else "cost (device-hours"
    made.update_xaxes(axis(f"{what} per 10⁹ tokens)", type="log", nticks=6), row=2, col=1)
    saved = 1 - first[0].peak_memory_bytes / rows[0].peak_memory_bytes
    lost = 1 - first[0].tokens_per_s / rows[0].tokens_per_s
    words = [f"{len(first)} configurations are not beaten in both throughput and memory"]
    if saved > 0.005:
        words.append(
            f"the smallest of them needs {100 * saved:.0f} % less memory than the best and is "
            f"{100 * lost:.0f} % slower"
        )
    if limit is not None and not is_near:
        words.append(f"the limit of {limit / scale:,.3g} {name} lies far beyond the axis")
    if len(second) == 1:
        words.append("the fastest is the cheapest too")
    return Picture(made, "; ".join(words) + ".")


def _panel(
    made: object, row: int, rows: Sequence[LeaderboardRow], costs: Sequence[float]
) -> list[LeaderboardRow]:
    chosen = pareto_rows(rows, costs)
    by_key = {item.config_key: cost for item, cost in zip(rows, costs, strict=True)}
    shown = thinned(range(len(rows)), _SHOWN)
    made.add_scatter(  # type: ignore[attr-defined]
        x=[costs[i] for i in shown], y=[rows[i].tokens_per_s for i in shown], mode="markers",
        name="a configuration", legendgroup="all", showlegend=row == 1,
        marker={"size": 5, "color": GREY, "opacity": 0.6},
        text=[text(rows[i].label) for i in shown],
        hovertemplate="%{text}<br>%{y:,.4~s} tokens/s at %{x:,.4~g}<extra></extra>", row=row, col=1,
    )  # fmt: skip
    made.add_scatter(  # type: ignore[attr-defined]
        x=[by_key[item.config_key] for item in chosen], y=[item.tokens_per_s for item in chosen],
        mode="lines+markers", name="Pareto front", legendgroup="front", showlegend=row == 1,
        line={"color": BLUE, "shape": "hv", "width": 2}, marker={"size": 9, "color": ORANGE,
        "line": {"width": 1, "color": BLUE}}, text=[text(item.label) for item in chosen],
        hovertemplate="%{text}<br>%{y:,.4~s} tokens/s at %{x:,.4~g}<extra></extra>", row=row, col=1,
    )  # fmt: skip
    return chosen
