"""Colours, axes and words that all figures share; nothing in a figure depends on the theme.

The palette is Okabe and Ito's, which people with any common colour blindness can tell apart
(https://jfly.uni-koeln.de/color/); ranges use Plotly's cividis. Light and dark are templates that
whoever draws a figure lays under it.
"""

import math
from collections import Counter
from collections.abc import Iterable, Sequence
from html import escape
from typing import TYPE_CHECKING, Any

from tuner.web.study_data import StudyData

if TYPE_CHECKING:
    import plotly.graph_objects as go

BLUE, ORANGE, GREEN, VERMILLION = "#0072B2", "#E69F00", "#009E73", "#D55E00"
PURPLE, SKY, YELLOW, GREY = "#CC79A7", "#56B4E9", "#F0E442", "#8C8C8C"
PALETTE = (BLUE, ORANGE, GREEN, PURPLE, SKY, VERMILLION, YELLOW, GREY)
COLOURS = "cividis"

_FONT = "system-ui, -apple-system, 'Segoe UI', 'DejaVu Sans', sans-serif"


def _template(ink: str, muted: str, grid: str, paper: str, label: str, veil: str) -> dict[str, Any]:
    axis = {
        "gridcolor": grid, "linecolor": muted, "zerolinecolor": grid, "tickcolor": muted,
        "automargin": True,
    }  # fmt: skip
    return {
        "layout": {
            "font": {"family": _FONT, "size": 12, "color": ink},
            "paper_bgcolor": paper, "plot_bgcolor": paper,
            "xaxis": axis, "yaxis": axis, "colorway": list(PALETTE),
            "hoverlabel": {"bgcolor": label, "bordercolor": muted,
                           "font": {"color": ink, "family": _FONT}},
            "annotationdefaults": {"font": {"color": ink}, "arrowcolor": muted, "bgcolor": veil},
            "legend": {"bgcolor": "rgba(0,0,0,0)"},
        }
    }  # fmt: skip


THEMES = {
    "light": _template(
        "#1b1f24", "#59636e", "#e3e6ea", "#ffffff", "#ffffff", "rgba(255,255,255,0.72)"
    ),
    "dark": _template("#e6e8eb", "#9aa4af", "#343b44", "#16191d", "#22272e", "rgba(22,25,29,0.72)"),
}
"""Plotly templates by name."""


def figure(**layout: Any) -> "go.Figure":
    """An empty figure with the margins and the legend that all have."""
    import plotly.graph_objects as go

    made = go.Figure()
    made.update_layout(
        template="none",
        margin={"l": 8, "r": 16, "t": 8, "b": 8},
        legend={
            "orientation": "h", "x": 0, "xanchor": "left", "y": 1.02, "yanchor": "bottom",
            "font": {"size": 11}, "traceorder": "normal",
        },
        hovermode="closest",
        **layout,
    )  # fmt: skip
    made.update_layout(title=None)
    return made


def stacked(num_rows: int, height: int, **options: Any) -> "go.Figure":
    """Panels under each other: they stay readable on a phone, where columns do not."""
    from plotly.subplots import make_subplots

    made = make_subplots(rows=num_rows, cols=1, **options)
    made.update_layout(figure(height=height).layout)
    return made


def axis(title: str, *, standoff: int = 8, **options: Any) -> dict[str, Any]:
    """An axis with its quantity and unit."""
    return {
        "title": {"text": title, "standoff": standoff, "font": {"size": 12}},
        "ticks": "outside", "ticklen": 4, "showline": True, "automargin": True, **options,
    }  # fmt: skip


def speed_axis(**options: Any) -> dict[str, Any]:
    """Throughput in tokens/s with SI prefixes."""
    return axis("throughput (tokens/s)", tickformat="~s", nticks=7, **options)


def text(value: object) -> str:
    """Words for a figure: Plotly reads a few HTML tags in all its texts."""
    return escape(" ".join(str(value).split()), quote=False)


def wrapped(words: str, width: int = 26) -> str:
    """Words in lines of at most about `width` characters, escaped."""
    lines: list[str] = [""]
    for word in words.split():
        if lines[-1] and len(lines[-1]) + 1 + len(word) > width:
            lines.append("")
        lines[-1] = f"{lines[-1]} {word}".strip()
    return "<br>".join(text(line) for line in lines)


def short_labels(data: StudyData, keys: Iterable[str]) -> dict[str, str]:
    """Labels of configurations without the knobs that all measured ones share."""
    rows = data.leaderboard
    counts = Counter(part for row in rows for part in set(row.label.split()))
    shared = {part for part, count in counts.items() if count == len(rows) > 1}
    labels = {key: data.label(key) for key in keys}
    return {
        key: " ".join(part for part in label.split() if part not in shared) or label
        for key, label in labels.items()
    }


def unit_of(sizes_bytes: Iterable[float]) -> tuple[float, str]:
    """Bytes of the unit that suits the largest of these sizes, and its name."""
    largest = max(sizes_bytes, default=0.0)
    for scale, name in ((2**40, "TiB"), (2**30, "GiB"), (2**20, "MiB")):
        if largest >= scale:
            return float(scale), name
    return 1024.0, "KiB"


def number(value: float) -> str:
    """Four significant digits with thousands apart and no exponent."""
    digits = max(0, 3 - math.floor(math.log10(abs(value)))) if value else 0
    return f"{value:,.{min(digits, 9)}f}"


def log_ticks(values: Iterable[float]) -> dict[str, Any]:
    """A logarithmic axis with its ticks at 1, 2 and 5 times powers of ten, written out."""
    found = [value for value in values if value > 0]
    low, high = min(found), max(found)
    powers = range(math.floor(math.log10(low)), math.ceil(math.log10(high)) + 1)
    wide = len(powers) > 4
    ticks = [step * 10.0**power for power in powers for step in ((1,) if wide else (1, 2, 5))]
    room = 0.04 * max(math.log10(high / low), 0.1)
    return {
        "type": "log", "tickvals": ticks, "ticktext": [_short(tick) for tick in ticks],
        "range": [math.log10(low) - room, math.log10(high) + room],
    }  # fmt: skip


def _short(value: float) -> str:
    """A round number with its SI prefix."""
    for scale, unit in ((1e9, "G"), (1e6, "M"), (1e3, "k")):
        if value >= scale:
            return f"{value / scale:g}{unit}"
    return f"{value:g}"


def time_unit(times_s: Iterable[float]) -> tuple[float, str]:
    """Seconds of the unit that suits the largest of these times, and its name."""
    largest = max(times_s, default=0.0)
    for scale, name in ((600.0, "min"), (1.0, "s"), (1e-3, "ms")):
        if largest >= scale:
            return (60.0 if name == "min" else scale), name
    return 1e-6, "µs"


def thinned(places: Sequence[int], limit: int) -> list[int]:
    """At most about `limit` of them, evenly spaced, the first and last kept."""
    if len(places) <= limit:
        return list(places)
    last = len(places) - 1
    return [places[round(step * last / (limit - 1))] for step in range(limit)]
