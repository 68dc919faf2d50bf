"""What every pipeline rank did when, in one step: the schedule as it really ran."""

from collections.abc import Sequence
from typing import Any

import numpy as np

from tuner.web.cost_estimates import config_of, predicted
from tuner.web.figures.picture import Missing, Picture
from tuner.web.figures.style import BLUE, GREEN, ORANGE, SKY, axis, figure, text, time_unit
from tuner.web.leader_details import Action
from tuner.web.study_data import StudyData

_OPS = {
    "F": ("forward", BLUE), "B": ("backward", ORANGE), "I": ("backward of inputs", SKY),
    "W": ("backward of weights", GREEN),
}  # fmt: skip
_MOST_BARS = 2500
_MOST_NUMBERS = 400
_BINS = 1200


def schedule(data: StudyData) -> Picture | Missing:
    """A row per pipeline rank, a bar per action; the fastest configuration with a pipeline."""
    leader = data.pipelined
    if leader is None:
        return Missing("No configuration with more than one pipeline rank was measured.")
    if leader.timeline:
        source = (
            f"Trial {leader.trial_number}, {data.label(leader.config_key)}: its last measured "
            "step. Every rank's clock starts as it leaves the step's barrier."
        )
        return _draw(leader.timeline, source)
    actions = _replayed(data, leader.config_key)
    if not actions:
        return Missing("The ranks of the pipelined leaders reported no timeline.")
    source = (
        f"{data.label(leader.config_key)}: the schedule replayed with the times that the cost "
        "model predicts, as no rank measured it."
    )
    return _draw(actions, source)


def _replayed(data: StudyData, config_key: str) -> list[Action]:
    """The schedule's own actions, equal stages, with the predicted compute time shared out."""
    from search_spaces.errors import SearchSpaceError
    from search_spaces.pipeline_schedules.simulate import StageTimes, simulate

    estimates = predicted(data, [config_key])
    batch = data.study.training.get("global_batch_size")
    if not estimates or not isinstance(batch, int):
        return []
    config, estimate = config_of(data, config_key), estimates[0][1]
    count = batch // (config.micro_batch_size * config.dp)
    chunks = config.virtual_stages
    busy_s = sum(
        value
        for name, value in estimate.parts_s.items()
        if name in ("compute", "tensor_parallel", "context_parallel", "expert_parallel")
    )
    share = 4 if config.recompute == "full" else 3
    unit_s = busy_s / max(count * chunks * share, 1)
    times = StageTimes.equal(
        config.pp * chunks, unit_s, unit_s * (share - 2), unit_s
    )  # fmt: skip
    try:
        replay = simulate(config.pipeline_schedule, config.pp, count, chunks, times)
    except SearchSpaceError:
        return []
    return [
        Action(rank, rank, action.op, action.microbatch, action.stage, start, end)
        for rank, action, start, end in replay.timeline
    ]


def _draw(actions: Sequence[Action], source: str) -> Picture:
    num_ranks = 1 + max(action.pp_rank for action in actions)
    end_s = max(action.end_s for action in actions)
    scale, unit = time_unit([end_s])
    made = figure(height=130 + (34 if num_ranks <= 12 else 9) * num_ranks, barmode="overlay",
                  bargap=0.12, meta={"min_width": 560})  # fmt: skip
    if len(actions) <= _MOST_BARS:
        _add_bars(made, actions, scale, unit, num_ranks)
    else:
        _add_raster(made, actions, scale, end_s, num_ranks)
    made.update_xaxes(
        axis(
            f"time since the step began ({unit})", range=[0, end_s / scale * 1.005], zeroline=False
        )
    )
    made.update_yaxes(
        axis(
            "pipeline rank",
            dtick=max(1, num_ranks // 16),
            autorange="reversed",
            zeroline=False,
            showgrid=False,
        )
    )
    busy = sum(action.end_s - action.start_s for action in actions)
    idle = 1 - busy / (num_ranks * end_s)
    is_hatched = len(actions) <= _MOST_BARS and any(a.stage >= num_ranks for a in actions)
    hatched = " Hatched: a rank's further stages." if is_hatched else ""
    return Picture(
        made,
        f"{source} The ranks compute {100 * (1 - idle):.0f} % of the time until the last of them "
        f"is done; the gaps, {100 * idle:.0f} %, are the bubble.{hatched}",
    )


def _add_bars(
    made: Any, actions: Sequence[Action], scale: float, unit: str, num_ranks: int
) -> None:
    for op, (name, colour) in _OPS.items():
        mine = [action for action in actions if action.op == op]
        if not mine:
            continue
        is_numbered = len(actions) <= _MOST_NUMBERS
        made.add_bar(
            base=[action.start_s / scale for action in mine],
            x=[(action.end_s - action.start_s) / scale for action in mine],
            y=[action.pp_rank for action in mine], orientation="h", name=name,
            marker={"color": colour, "line": {"width": 0.5, "color": "white"},
                    "pattern": {"shape": ["/" if a.stage >= num_ranks else "" for a in mine],
                                "fgcolor": "rgba(255,255,255,0.45)", "fillmode": "overlay",
                                "size": 6}},
            text=[str(action.micro_batch) for action in mine] if is_numbered else None,
            textposition="inside" if is_numbered else None, insidetextanchor="middle",
            textangle=0, textfont={"size": 10, "color": "white" if op in "FW" else "black"},
            constraintext="none",
            customdata=[(action.micro_batch, action.stage) for action in mine],
            hovertemplate=f"{text(name)} of micro-batch %{{customdata[0]}}, stage "
            f"%{{customdata[1]}}<br>%{{base:.4~g}} + %{{x:.3~g}} {unit}<extra></extra>",
        )  # fmt: skip


def _add_raster(
    made: Any, actions: Sequence[Action], scale: float, end_s: float, num_ranks: int
) -> None:
    """A cell per rank and slice of time, coloured by the action in its middle."""
    width = end_s / _BINS
    cells = np.full((num_ranks, _BINS), np.nan, dtype=np.float32)
    ops = list(_OPS)
    places = {op: place for place, op in enumerate(ops)}
    for action in actions:
        first = max(0, round(action.start_s / width))
        last = max(first + 1, round(action.end_s / width))
        cells[action.pp_rank, first:last] = places[action.op]
    steps = [edge for i in range(len(ops)) for edge in (i / len(ops), (i + 1) / len(ops))]
    colours = [colour for _, colour in _OPS.values() for _ in range(2)]
    made.add_heatmap(
        z=cells, x0=width / 2 / scale, dx=width / scale, y0=0, dy=1, zmin=-0.5,
        zmax=len(ops) - 0.5, colorscale=list(zip(steps, colours, strict=True)), showscale=False,
        hoverinfo="skip", ygap=1,
    )  # fmt: skip
    present = {action.op for action in actions}
    for op, (name, colour) in _OPS.items():
        if op in present:
            made.add_scatter(
                x=[None], y=[None], mode="markers", name=name,
                marker={"symbol": "square", "size": 10, "color": colour},
            )  # fmt: skip
