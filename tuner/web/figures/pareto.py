"""Throughput against memory, and against cost where configurations use unequal devices."""

from collections.abc import Sequence
from typing import Any

from results_db.queries import LeaderboardRow
from tuner.web.figures.picture import Missing, Picture
from tuner.web.figures.style import (
    BLUE,
    GREY,
    ORANGE,
    VERMILLION,
    axis,
    log_ticks,
    number,
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
    what = "price units" if unit == "price" else "device-hours"
    words_of_cost = _cost_panel(made, data, memory, name, costs, what)
    limit = data.memory_limit_bytes
    is_near = limit is not None and limit / scale <= 2.5 * max(memory)
    if limit is not None and is_near:
        low = min(row.tokens_per_s for row in rows)
        made.add_scatter(
            x=[limit / scale] * 2, y=[low, rows[0].tokens_per_s], mode="lines",
            name="memory limit", line={"color": VERMILLION, "dash": "dash"}, row=1, col=1,
        )  # fmt: skip
    made.update_yaxes(speed_axis(), row=1, col=1)
    ends = [min(memory), max([*memory, limit / scale] if limit and is_near else memory)]
    room = 0.04 * (ends[1] - ends[0])
    made.update_xaxes(
        axis(f"peak memory of the fullest rank ({name})", range=[ends[0] - room, ends[1] + room]),
        row=1, col=1,
    )  # fmt: skip
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
    return Picture(made, f"{'; '.join(words)}. {words_of_cost}")


def _cost_panel(
    made: Any, data: StudyData, memory: list[float], unit: str, costs: list[float], what: str
) -> str:
    """Throughput against cost, or cost against memory where all use as many devices.

    In that case cost is throughput turned round, and one would say the same twice.
    """
    rows = data.leaderboard
    title = f"cost ({what} per 10⁹ tokens)"
    sizes = {data.configs[row.config_key].world_size for row in rows}
    cheapest = min(range(len(rows)), key=costs.__getitem__)
    words = (
        f"The cheapest, {rows[cheapest].label}, takes {number(costs[cheapest])} {what} per "
        "10⁹ tokens"
    )
    if len(sizes) > 1:
        _panel(made, 2, rows, costs)
        made.update_yaxes(speed_axis(), row=2, col=1)
        made.update_xaxes(axis(title, **log_ticks(costs)), row=2, col=1)
        return f"{words}."
    chosen = pareto_rows(rows, memory)
    place = {row.config_key: i for i, row in enumerate(rows)}
    _points(made, 2, rows, memory, costs, [place[row.config_key] for row in chosen])
    made.update_yaxes(axis(title, **log_ticks(costs)), row=2, col=1)
    made.update_xaxes(axis(f"peak memory of the fullest rank ({unit})"), row=2, col=1)
    return f"{words}; all use {sizes.pop():,} devices, so the fastest is the cheapest."


def _panel(
    made: Any, row: int, rows: Sequence[LeaderboardRow], costs: list[float]
) -> list[LeaderboardRow]:
    """Throughput against a cost; returns the front."""
    chosen = pareto_rows(rows, costs)
    place = {item.config_key: i for i, item in enumerate(rows)}
    speeds = [item.tokens_per_s for item in rows]
    _points(made, row, rows, costs, speeds, [place[item.config_key] for item in chosen])
    return chosen


def _points(
    made: Any, row: int, rows: Sequence[LeaderboardRow], x: list[float], y: list[float],
    front_places: list[int],
) -> None:  # fmt: skip
    shown = thinned(range(len(rows)), _SHOWN)
    hover = "%{text}<br>%{x:,.4~g}, %{y:,.4~s}<extra></extra>"
    made.add_scatter(
        x=[x[i] for i in shown], y=[y[i] for i in shown], mode="markers",
        name="a configuration", legendgroup="all", showlegend=row == 1,
        marker={"size": 5, "color": GREY, "opacity": 0.6},
        text=[text(rows[i].label) for i in shown], hovertemplate=hover, row=row, col=1,
    )  # fmt: skip
    made.add_scatter(
        x=[x[i] for i in front_places], y=[y[i] for i in front_places],
        mode="lines+markers", name="Pareto front", legendgroup="front", showlegend=row == 1,
        line={"color": BLUE, "shape": "hv", "width": 2},
        marker={"size": 9, "color": ORANGE, "line": {"width": 1, "color": BLUE}},
        text=[text(rows[i].label) for i in front_places], hovertemplate=hover, row=row, col=1,
    )  # fmt: skip
