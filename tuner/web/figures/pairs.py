"""Heat maps of two knobs: the best throughput of every combination that was measured."""

from typing import Any

from tuner.web.figures.knobs import order_of, shown_value
from tuner.web.figures.picture import Missing, Picture
from tuner.web.figures.style import COLOURS, axis, stacked, text
from tuner.web.study_data import StudyData

_WANTED = (
    ("tp", "pp"), ("pp", "micro_batch_size"), ("tp", "micro_batch_size"), ("dp", "zero_stage"),
    ("recompute", "micro_batch_size"), ("pp", "pipeline_schedule"), ("zero_stage", "recompute"),
    ("tp", "dp"), ("cp", "tp"), ("ep", "dp"),
)  # fmt: skip
_MOST_PAIRS = 4
_MOST_VALUES = 14


def heat_maps(data: StudyData) -> Picture | Missing:
    """Up to four pairs of knobs under each other, in per cent of the study's best."""
    chosen = [
        pair for pair in _WANTED if all(knob in data.varying_knobs for knob in pair)
    ][:_MOST_PAIRS]  # fmt: skip
    if not chosen:
        return Missing("No two of the knobs that are drawn in pairs were both varied.")
    tables = [_table(data, *pair) for pair in chosen]
    heights = [90 + 34 * len(table[1]) for table in tables]
    gap = 78 / sum(heights) if len(chosen) > 1 else 0
    made = stacked(
        len(chosen), sum(heights) + 40, vertical_spacing=gap,
        row_heights=[float(height - 80) for height in heights],
    )  # fmt: skip
    for row, ((down, across), (x, y, cells)) in enumerate(zip(chosen, tables, strict=True), 1):
        made.add_heatmap(
            x=x, y=y, z=cells, zmin=0, zmax=100, colorscale=COLOURS, xgap=2, ygap=2,
            texttemplate="%{z:.0f}", hoverongaps=False, showscale=row == 1,
            colorbar={"title": {"text": "best, % of the study's best", "side": "top"},
                      "orientation": "h", "thickness": 10, "len": 0.6, "x": 0, "xanchor": "left",
                      "y": 1.0, "yanchor": "bottom", "ypad": 6, "ticksuffix": " %"},
            hovertemplate=f"{down} %{{y}}, {across} %{{x}}: %{{z:.1f}} %<extra></extra>",
            row=row, col=1,
        )  # fmt: skip
        made.update_xaxes(
            axis(across, type="category", showgrid=False, standoff=20), row=row, col=1
        )
        made.update_yaxes(axis(down, type="category", showgrid=False), row=row, col=1)
    return Picture(made, _caption(data, *chosen[0]))


def _table(
    data: StudyData, down: str, across: str
) -> tuple[list[str], list[str], list[list[float | None]]]:
    """Columns, rows and cells in per cent of the best; none where nothing was measured."""
    best = max(row.tokens_per_s for row in data.leaderboard)
    found: dict[tuple[Any, Any], float] = {}
    for row in data.leaderboard:
        place = (row.knobs[down], row.knobs[across])
        found[place] = max(found.get(place, 0.0), 100 * row.tokens_per_s / best)
    x = sorted({place[1] for place in found}, key=order_of)[:_MOST_VALUES]
    y = sorted({place[0] for place in found}, key=order_of)[:_MOST_VALUES]
    cells = [[found.get((one, other)) for other in x] for one in y]
    return [text(shown_value(v)) for v in x], [text(shown_value(v)) for v in y], cells


def _caption(data: StudyData, down: str, across: str) -> str:
    best = data.leaderboard[0]
    return (
        f"The best of every combination. {down} {shown_value(best.knobs[down])} with {across} "
        f"{shown_value(best.knobs[across])} holds the study's best; a gap was not measured."
    )
