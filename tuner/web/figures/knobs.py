"""Effects of the knobs: every configuration as a line over all knobs, and a box per value."""

import random
from collections import defaultdict
from collections.abc import Sequence
from statistics import median, quantiles
from typing import Any

from results_db.queries import LeaderboardRow
from tuner.web.figures.picture import Missing, Picture
from tuner.web.figures.style import (
    BLUE,
    GREEN,
    GREY,
    VERMILLION,
    figure,
    speed_axis,
    text,
    thinned,
)
from tuner.web.study_data import StudyData

_MOST_LINES = 300
_MOST_AXES = 9
_MOST_VALUES = 12
_CLASSES = ("fastest tenth", "upper half", "lower half", "slowest tenth")
_CLASS_COLOURS = ("#0072B2", "#56B4E9", "#E69F00", "#D55E00")


def order_of(value: Any) -> tuple[int, Any]:
    """Sorts numbers as numbers and words as words; no value comes first."""
    if value is None:
        return (0, 0)
    if isinstance(value, bool | int | float):
        return (1, value)
    return (2, str(value))


def shown_value(value: Any) -> str:
    """A knob's value in a few characters."""
    if value is None:
        return "default"
    if isinstance(value, bool):
        return "yes" if value else "no"
    if isinstance(value, tuple | list):
        words = "/".join(str(item) for item in value)
        return words if len(words) <= 12 else f"{words[:11]}…"
    return str(value)


def by_value(data: StudyData, knob: str) -> dict[Any, list[LeaderboardRow]]:
    """Configurations by value of a knob, in the values' order."""
    found: dict[Any, list[LeaderboardRow]] = defaultdict(list)
    for row in data.leaderboard:
        found[row.knobs[knob]].append(row)
    return {value: found[value] for value in sorted(found, key=order_of)}


def by_influence(data: StudyData) -> list[str]:
    """Knobs that vary, the one whose values' medians lie furthest apart first."""

    def spread(knob: str) -> float:
        middles = [
            median(row.tokens_per_s for row in rows) for rows in by_value(data, knob).values()
        ]
        return max(middles) / min(middles)

    return sorted(data.varying_knobs, key=lambda knob: -spread(knob))


# ------------------------------------------------------------------ parallel coordinates
def parallel(data: StudyData) -> Picture | Missing:
    """One line per configuration over the knobs, by speed class; the last axis is throughput.

    Drawn as plain lines and not with Plotly's own trace of that name, which needs WebGL: that is
    missing in many remote desktops and cannot be printed sharply.
    """
    knobs = by_influence(data)
    if len(knobs) < 2 or len(data.leaderboard) < 3:
        return Missing("Fewer than three configurations were measured that differ in two knobs.")
    knobs = sorted(knobs[:_MOST_AXES], key=list(data.varying_knobs).index)
    made = figure(height=460, meta={"min_width": max(360, 95 * (len(knobs) + 1))})
    scale = {knob: _places(by_value(data, knob)) for knob in knobs}
    is_sparse = len(data.leaderboard) <= 60
    speeds = [row.tokens_per_s for row in data.leaderboard]
    low, high = min(speeds), max(speeds)
    for place, (name, rows) in reversed(list(enumerate(_by_class(data.leaderboard).items()))):
        x: list[float | None] = []
        y: list[float | None] = []
        for row in rows:
            jitter = random.Random(row.config_key)
            heights = [scale[k][row.knobs[k]] + jitter.uniform(-0.018, 0.018) for k in knobs]
            heights.append((row.tokens_per_s - low) / (high - low or 1.0))
            x += [*range(len(heights)), None]
            y += [*heights, None]
        made.add_scatter(
            x=x, y=y, mode="lines", name=name, hoverinfo="skip",
            line={"color": _CLASS_COLOURS[place], "width": 2.5 if place == 0 else 1.2},
            opacity=0.9 if place == 0 or is_sparse else 0.45,
        )  # fmt: skip
    _add_value_labels(made, scale, low, high)
    made.update_xaxes(
        tickvals=list(range(len(knobs) + 1)),
        ticktext=[*(wrap_knob(knob) for knob in knobs), "throughput<br>(tokens/s)"],
        tickangle=0, range=[-0.15, len(knobs) + 0.62], showgrid=True, zeroline=False,
        showline=False, tickfont={"size": 11},
    )  # fmt: skip
    made.update_yaxes(visible=False, range=[-0.06, 1.06])
    made.update_layout(legend={"traceorder": "reversed"})
    shown = sum(map(len, _by_class(data.leaderboard).values()))
    return Picture(made, _parallel_caption(data, knobs, shown))


def wrap_knob(knob: str) -> str:
    """A knob's name in lines."""
    return text(knob).replace("_", "_<br>") if len(knob) > 9 else text(knob)


def _places(values: dict[Any, Any]) -> dict[Any, float]:
    """Heights 0..1 of a knob's values."""
    last = max(len(values) - 1, 1)
    return {value: place / last for place, value in enumerate(values)}


def _by_class(board: Sequence[LeaderboardRow]) -> dict[str, list[LeaderboardRow]]:
    """Configurations by speed class, thinned where there are too many lines to see."""
    ordered = sorted(board, key=lambda row: -row.tokens_per_s)
    count = len(ordered)
    tenth = max(1, count // 10)
    cuts = (0, tenth, max(tenth, count // 2), max(tenth, count - tenth), count)
    share = _MOST_LINES / max(count, 1)
    found = {}
    for name, start, end in zip(_CLASSES, cuts, cuts[1:], strict=False):
        places = range(start, end)
        limit = max(2, round(len(places) * share))
        if places:
            found[name] = [ordered[i] for i in thinned(places, limit)]
    return found


def _add_value_labels(
    made: Any, scale: dict[str, dict[Any, float]], low: float, high: float
) -> None:
    """Values beside their axes; where an axis has very many, every so many."""
    style = {"showarrow": False, "xanchor": "left", "xshift": 5, "font": {"size": 10}}
    for column, places in enumerate(scale.values()):
        values = list(places)
        for i in thinned(range(len(values)), _MOST_VALUES):
            made.add_annotation(
                x=column, y=places[values[i]], text=text(shown_value(values[i])), **style
            )
    for share in (0.0, 0.25, 0.5, 0.75, 1.0):
        speed = low + share * (high - low)
        made.add_annotation(x=len(scale), y=share, text=_short_number(speed), **style)


def _short_number(value: float) -> str:
    for scale, unit in ((1e6, "M"), (1e3, "k")):
        if value >= scale:
            return f"{value / scale:.3g}{unit}"
    return f"{value:.3g}"


def _parallel_caption(data: StudyData, knobs: list[str], shown: int) -> str:
    total = len(data.leaderboard)
    which = f"{shown:,} of {total:,} configurations" if shown < total else f"{total:,} lines"
    tenth = data.leaderboard[: max(1, total // 10)]
    common = [
        f"{knob} {shown_value(tenth[0].knobs[knob])}"
        for knob in data.varying_knobs
        if len({row.knobs[knob] for row in tenth}) == 1
    ]
    if not common or len(tenth) < 2:
        return f"{which}, coloured by speed."
    return f"{which}, coloured by speed. The fastest tenth all have {', '.join(common)}."


# ------------------------------------------------------------------ boxes
def effects(data: StudyData) -> Picture | Missing:
    """A box of throughput per value of each knob, with the best as a diamond."""
    knobs = by_influence(data)
    if not knobs:
        return Missing("The measured configurations do not differ in any knob.")
    boxes: list[tuple[float, str, list[float]]] = []
    heads: list[tuple[float, str]] = []
    line = 0.0
    for knob in knobs:
        heads.append((line, knob))
        line += 1.0
        for value, rows in _limited(by_value(data, knob)):
            boxes.append((line, value, [row.tokens_per_s for row in rows]))
            line += 1.0
        line += 0.3
    made = figure(height=round(110 + 21 * line))
    _add_boxes(made, boxes)
    _add_points(made, boxes, is_few=len(data.leaderboard) <= 80)
    ticks = [(at, f"<b>{text(knob)}</b>") for at, knob in heads]
    ticks += [(at, f"{text(value)} ") for at, value, _ in boxes]
    made.update_yaxes(
        tickvals=[at for at, _ in ticks], ticktext=[words for _, words in ticks],
        tickfont={"size": 11}, range=[line - 0.2, -0.8], showgrid=False, zeroline=False,
        automargin=True,
    )  # fmt: skip
    made.update_xaxes(speed_axis(rangemode="tozero", showgrid=True))
    return Picture(made, _effects_caption(data, knobs))


def _limited(groups: dict[Any, list[LeaderboardRow]]) -> list[tuple[str, list[LeaderboardRow]]]:
    """Values with their rows; the rarest of very many are put together."""
    if len(groups) <= _MOST_VALUES:
        return [(shown_value(value), rows) for value, rows in groups.items()]
    frequent = sorted(groups, key=lambda value: -len(groups[value]))[: _MOST_VALUES - 1]
    kept = [(shown_value(value), groups[value]) for value in groups if value in frequent]
    rest = [row for value, rows in groups.items() if value not in frequent for row in rows]
    return [*kept, (f"{len(groups) - len(frequent)} others", rest)]


def _add_boxes(made: Any, boxes: list[tuple[float, str, list[float]]]) -> None:
    wide = [(at, sorted(speeds)) for at, _, speeds in boxes if len(speeds) >= 3]
    if not wide:
        return
    quarters = [quantiles(speeds, n=4, method="inclusive") for _, speeds in wide]
    made.add_box(
        y=[at for at, _ in wide], orientation="h",
        q1=[q[0] for q in quarters], median=[q[1] for q in quarters], q3=[q[2] for q in quarters],
        lowerfence=[speeds[0] for _, speeds in wide],
        upperfence=[speeds[-1] for _, speeds in wide],
        name="quartiles, least and most", line={"color": GREY, "width": 1.2},
        fillcolor="rgba(86,180,233,0.35)", width=0.62,
    )  # fmt: skip


def _add_points(made: Any, boxes: list[tuple[float, str, list[float]]], *, is_few: bool) -> None:
    """Every configuration, where there are few; else those of values too rare for a box."""
    points = [
        (speed, at) for at, _, speeds in boxes if is_few or len(speeds) < 3 for speed in speeds
    ]
    if points:
        made.add_scatter(
            x=[speed for speed, _ in points], y=[at for _, at in points], mode="markers",
            name="a configuration", marker={"size": 5, "color": BLUE, "opacity": 0.7},
            hovertemplate="%{x:,.4~s} tokens/s<extra></extra>",
        )  # fmt: skip
    made.add_scatter(
        x=[median(speeds) for _, _, speeds in boxes], y=[at for at, _, _ in boxes],
        mode="markers", name="median",
        marker={"size": 9, "symbol": "line-ns", "line": {"width": 2.5, "color": VERMILLION}},
        text=[f"{len(speeds):,} configurations" for _, _, speeds in boxes],
        hovertemplate="median %{x:,.4~s} tokens/s of %{text}<extra></extra>",
    )  # fmt: skip
    made.add_scatter(
        x=[max(speeds) for _, _, speeds in boxes], y=[at for at, _, _ in boxes],
        mode="markers", name="best", marker={"size": 8, "symbol": "diamond", "color": GREEN},
        hovertemplate="best %{x:,.4~s} tokens/s<extra></extra>",
    )  # fmt: skip


def _effects_caption(data: StudyData, knobs: list[str]) -> str:
    groups = by_value(data, knobs[0])
    middles = {value: median(row.tokens_per_s for row in rows) for value, rows in groups.items()}
    best, worst = (max(middles, key=middles.__getitem__), min(middles, key=middles.__getitem__))
    return (
        f"The medians differ most in {knobs[0]}: {shown_value(best)} has "
        f"{middles[best] / middles[worst]:.2f} times the throughput of {shown_value(worst)}. "
        "Other knobs differ within each row too, so this is not the effect of one knob alone."
    )
