"""Memory of the leaders by pipeline stage, against the limit."""

from typing import Any

from tuner.web.cost_estimates import predicted_memory
from tuner.web.figures.picture import Missing, Picture
from tuner.web.figures.style import (
    PALETTE,
    VERMILLION,
    axis,
    figure,
    short_labels,
    unit_of,
    wrapped,
)
from tuner.web.leader_details import LeaderDetails, StageMemory
from tuner.web.study_data import StudyData

_SHOWN = 4
_MOST_BARS = 8


def by_stage(data: StudyData) -> Picture | Missing:
    """Peak memory by stage as measured; of a simulated study the cost model's parts of it."""
    leaders = [leader for leader in data.leaders if leader.stages][:_SHOWN]
    return _measured(data, leaders) if leaders else _estimated(data)


def _measured(data: StudyData, leaders: list[LeaderDetails]) -> Picture:
    scale, unit = unit_of(stage.peak_memory_bytes for item in leaders for stage in item.stages)
    labels = short_labels(data, [leader.config_key for leader in leaders])
    made = figure(height=430, barmode="group", bargap=0.25)
    num_stages = max(len(leader.stages) for leader in leaders)
    for place, leader in enumerate(leaders):
        name = wrapped(f"{place + 1}. {labels[leader.config_key]}", 34)
        add = _add_bars if num_stages <= _MOST_BARS else _add_line
        add(made, leader, name, PALETTE[place], scale)
    largest = max(s.peak_memory_bytes for leader in leaders for s in leader.stages)
    limit = data.memory_limit_bytes
    note = _add_limit(made, limit, largest, scale, unit, (-0.5, num_stages - 0.5))
    made.update_xaxes(
        axis(
            "pipeline rank (0 holds the first stage)",
            dtick=max(1, num_stages // 8),
            range=[-0.5, num_stages - 0.5],
            zeroline=False,
        )
    )
    made.update_yaxes(axis(f"peak memory of the fullest rank ({unit})", rangemode="tozero"))
    caption = (
        "Solid: parameters, gradients and optimizer states; light: activations and buffers. "
        if num_stages <= _MOST_BARS
        else "Peaks of the fullest rank at each place of the pipeline. "
    )
    return Picture(made, caption + note)


def _add_bars(made: Any, leader: LeaderDetails, name: str, colour: str, scale: float) -> None:
    stages = [stage.pp_rank for stage in leader.stages]
    states = [
        min(stage.state_memory_bytes, stage.peak_memory_bytes) / scale for stage in leader.stages
    ]
    rest = [
        stage.peak_memory_bytes / scale - state
        for stage, state in zip(leader.stages, states, strict=True)
    ]
    common = {"x": stages, "offsetgroup": name, "legendgroup": name, "name": name}
    made.add_bar(
        **common, y=states, marker={"color": colour},
        hovertemplate="pipeline rank %{x}: states %{y:.3~g}<extra></extra>",
    )  # fmt: skip
    made.add_bar(
        **common, y=rest, base=states, showlegend=False,
        marker={"color": colour, "opacity": 0.45},
        hovertemplate="pipeline rank %{x}: the rest %{y:.3~g}<extra></extra>",
    )  # fmt: skip


def _add_line(made: Any, leader: LeaderDetails, name: str, colour: str, scale: float) -> None:
    made.add_scatter(
        x=[stage.pp_rank for stage in leader.stages],
        y=[stage.peak_memory_bytes / scale for stage in leader.stages],
        mode="lines", name=name, line={"color": colour},
        hovertemplate="pipeline rank %{x}: %{y:.3~g}<extra></extra>",
    )  # fmt: skip


def _add_limit(
    made: Any, limit: float | None, largest: float, scale: float, unit: str,
    ends: tuple[float, float],
) -> str:  # fmt: skip
    """A line at the limit, or the sentence that says why there is none."""
    if limit is None:
        return "The device's memory is not known."
    share = f"The fullest rank uses {100 * largest / limit:.0f} % of {limit / scale:,.4g} {unit}."
    if limit > 3 * largest:
        return f"{share} The limit lies beyond the axis."
    made.add_scatter(
        x=list(ends), y=[limit / scale] * 2, mode="lines", name="limit of a rank",
        line={"color": VERMILLION, "dash": "dash"}, hoverinfo="name+y",
    )  # fmt: skip
    return share


def _estimated(data: StudyData) -> Picture | Missing:
    """The same from the cost model, for the ranks that reported nothing."""
    keys = [row.config_key for row in data.leaderboard[:_SHOWN]]
    tables = predicted_memory(data, keys)
    if not tables:
        return Missing("No rank of a leader reported its memory.")
    leaders = [
        LeaderDetails(
            config_key=key, trial_number=0, num_ranks=0, parts_s={}, collectives=(), timeline=(),
            stages=[
                StageMemory(
                    place, 0, round(row["total"]),
                    round(row["weights"] + row["gradients"] + row["optimizer"]),
                )
                for place, row in enumerate(table)
            ],
        )
        for key, table in tables
    ]  # fmt: skip
    picture = _measured(data, leaders)
    return Picture(
        picture.figure,
        f"Predicted by the cost model, as no rank reported its memory. {picture.caption}",
    )
