"""What the cost model said before a configuration ran, against what was measured."""

from collections.abc import Sequence
from dataclasses import dataclass
from statistics import median
from typing import Any

from tuner.web.figures.picture import Missing, Picture
from tuner.web.figures.style import (
    BLUE,
    GREY,
    ORANGE,
    axis,
    log_ticks,
    stacked,
    text,
    thinned,
    time_unit,
    unit_of,
)
from tuner.web.study_data import StudyData

_SHOWN = 1000
_LOOKS = {
    "analytic": ("as described", ORANGE, "circle-open"),
    "calibrated": ("refitted to earlier trials", BLUE, "circle"),
}


@dataclass(frozen=True)
class Comparison:
    """One configuration as a cost model saw it and as it was."""

    label: str
    model_name: str
    predicted_s: float
    measured_s: float
    is_inside: bool | None
    """Whether the measured step time lies in the model's 90 % interval."""
    predicted_bytes: float | None
    measured_bytes: float

    @property
    def error(self) -> float:
        """|predicted / measured - 1| of the step time."""
        return abs(self.predicted_s / self.measured_s - 1)


@dataclass(frozen=True)
class ModelError:
    """How a cost model did in a study."""

    model_name: str
    count: int
    median_error: float
    worst_error: float
    inside: float | None
    """Share of the measured times inside the 90 % intervals."""


def comparisons(data: StudyData) -> list[Comparison]:
    """All pairs of prediction and measurement."""
    measured = {row.config_key: row for row in data.leaderboard}
    found = []
    for row in data.predictions:
        real = measured.get(row.config_key)
        if real is None or not row.step_time_s:
            continue
        inside = None
        if row.step_time_low_s is not None and row.step_time_high_s is not None:
            inside = row.step_time_low_s <= real.step_time_s <= row.step_time_high_s
        found.append(
            Comparison(real.label, row.model_name, row.step_time_s, real.step_time_s, inside,
                       row.peak_memory_bytes, float(real.peak_memory_bytes))
        )  # fmt: skip
    return found


def model_errors(pairs: Sequence[Comparison]) -> list[ModelError]:
    """Errors by cost model, in the order of first appearance."""
    found = []
    for name in dict.fromkeys(pair.model_name for pair in pairs):
        mine = [pair for pair in pairs if pair.model_name == name]
        judged = [pair.is_inside for pair in mine if pair.is_inside is not None]
        errors = [pair.error for pair in mine]
        share = sum(judged) / len(judged) if judged else None
        found.append(ModelError(name, len(mine), median(errors), max(errors), share))
    return found


def scatter(data: StudyData) -> Picture | Missing:
    """Step time above, memory below; on the diagonal a prediction was right."""
    pairs = comparisons(data)
    if len(pairs) < 2:
        return Missing("No two configurations were both predicted and measured.")
    made = stacked(2, 720, vertical_spacing=0.14)
    scale, unit = time_unit(pair.measured_s for pair in pairs)
    times = {
        name: [(pair.measured_s / scale, pair.predicted_s / scale, pair.label)
               for pair in pairs if pair.model_name == name]
        for name in dict.fromkeys(pair.model_name for pair in pairs)
    }  # fmt: skip
    _panel(made, 1, times, "step time", unit)
    size, size_unit = unit_of(pair.measured_bytes for pair in pairs)
    sizes = {
        name: [(pair.measured_bytes / size, pair.predicted_bytes / size, pair.label)
               for pair in pairs if pair.model_name == name and pair.predicted_bytes]
        for name in times
    }  # fmt: skip
    _panel(made, 2, sizes, "peak memory", size_unit)
    words = [_words(error) for error in model_errors(pairs)]
    return Picture(made, " ".join(words) + " Each was predicted before it ran.")


def _panel(
    made: Any, row: int, groups: dict[str, list[tuple[float, float, str]]], what: str, unit: str
) -> None:
    values = [value for points in groups.values() for x, y, _ in points for value in (x, y)]
    if not values:
        return
    ends = [min(values) * 0.95, max(values) * 1.05]
    made.add_scatter(
        x=ends, y=ends, mode="lines", name="exactly right", legendgroup="right",
        line={"color": GREY, "dash": "dot"}, showlegend=row == 1, hoverinfo="skip", row=row, col=1,
    )  # fmt: skip
    for name, points in groups.items():
        words, colour, symbol = _LOOKS.get(name, (name, GREY, "square"))
        shown = [points[i] for i in thinned(range(len(points)), _SHOWN)]
        made.add_scatter(
            x=[x for x, _, _ in shown], y=[y for _, y, _ in shown], mode="markers",
            name=f"cost model {text(words)}", legendgroup=name, showlegend=row == 1,
            marker={"size": 6, "color": colour, "symbol": symbol, "opacity": 0.75},
            text=[text(label) for _, _, label in shown],
            hovertemplate="%{text}<br>measured %{x:.3~g}, predicted %{y:.3~g}<extra></extra>",
            row=row, col=1,
        )  # fmt: skip
    ticks = log_ticks(values) if max(values) > 5 * min(values) else {"nticks": 7}
    made.update_xaxes(axis(f"measured {what} ({unit})", **ticks), row=row, col=1)
    made.update_yaxes(axis(f"predicted {what} ({unit})", **ticks), row=row, col=1)


def _words(error: ModelError) -> str:
    words, _, _ = _LOOKS.get(error.model_name, (error.model_name, "", ""))
    inside = "" if error.inside is None else (
        f", {100 * error.inside:.0f} % of the times inside its 90 % interval"
    )  # fmt: skip
    return (
        f"The cost model {words} is off by {100 * error.median_error:.1f} % in the median over "
        f"{error.count:,} configurations{inside}."
    )
