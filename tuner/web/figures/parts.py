"""Where the time of the leaders' steps goes: compute, each collective, bubble, optimizer."""

from collections.abc import Mapping

from tuner.web.cost_estimates import predicted
from tuner.web.figures.picture import Missing, Picture
from tuner.web.figures.style import (
    BLUE,
    GREEN,
    GREY,
    ORANGE,
    PALETTE,
    PURPLE,
    SKY,
    VERMILLION,
    YELLOW,
    axis,
    figure,
    short_labels,
    text,
    time_unit,
    wrapped,
)
from tuner.web.leader_details import LeaderDetails
from tuner.web.study_data import StudyData

_SHOWN = 8
_MEASURED = {"compute": BLUE, "optimizer": GREEN, "bubble and waiting": GREY}
_COLLECTIVES = (ORANGE, VERMILLION, PURPLE, SKY, YELLOW)
_PREDICTED = {
    "compute": BLUE, "tensor_parallel": ORANGE, "context_parallel": SKY, "expert_parallel": YELLOW,
    "pipeline_p2p": VERMILLION, "data_parallel": PURPLE, "pipeline_bubble": GREY,
    "optimizer": GREEN,
}  # fmt: skip


def step_parts(leader: LeaderDetails) -> dict[str, float]:
    """Seconds of a step by part, means over ranks; they sum to the step as its ranks saw it.

    Collectives run inside the forward and backward passes and the gradients' reduction, so their
    seconds are taken out of those.
    """
    parts = dict(leader.parts_s)
    collectives = {item.name: item.time_s for item in leader.collectives if item.time_s > 0}
    inside = sum(parts.get(name, 0.0) for name in ("forward", "backward", "gradients", "agree"))
    compute = max(0.0, inside - sum(collectives.values()))
    return {
        "compute": compute,
        **dict(sorted(collectives.items(), key=lambda item: -item[1])),
        "optimizer": parts.get("optimizer", 0.0),
        "bubble and waiting": parts.get("bubble", 0.0),
    }


def step_time(data: StudyData) -> Picture | Missing:
    """Stacked bars of the leaders; of a simulated study by the cost model's parts."""
    leaders = [leader for leader in data.leaders if leader.parts_s][:_SHOWN]
    if leaders:
        rows = {leader.config_key: step_parts(leader) for leader in leaders}
        colours = dict(_MEASURED)
        names = sorted({name for parts in rows.values() for name in parts} - set(colours))
        for place, name in enumerate(names):
            colours[name] = _COLLECTIVES[place % len(_COLLECTIVES)]
        order = ["compute", *names, "optimizer", "bubble and waiting"]
        source = (
            "Means over ranks and medians over steps. Seconds of collectives are those for which "
            "they held the host: on accelerators less than they ran."
        )
        return _draw(data, rows, order, colours, source)
    keys = [row.config_key for row in data.leaderboard[:_SHOWN]]
    rows = {key: dict(estimate.parts_s) for key, estimate in predicted(data, keys)}
    if not rows:
        return Missing("No leader reported where the time of its step went.")
    order = list(next(iter(rows.values())))
    colours = {
        name: _PREDICTED.get(name, PALETTE[place % len(PALETTE)])
        for place, name in enumerate(order)
    }
    source = "Predicted by the cost model, as no rank measured it."
    return _draw(data, rows, order, colours, source)


def _words(name: str) -> str:
    """A part's name for people; collectives keep theirs, `axis.operation`."""
    return name if "." in name else name.replace("_", " ")


def _draw(
    data: StudyData,
    rows: Mapping[str, Mapping[str, float]],
    order: list[str],
    colours: Mapping[str, str],
    source: str,
) -> Picture:
    totals = [sum(parts.values()) for parts in rows.values()]
    scale, unit = time_unit(totals)
    labels = short_labels(data, rows)
    names = [wrapped(f"{i + 1}. {labels[key]}") for i, key in enumerate(rows)]
    made = figure(height=170 + 44 * len(rows), barmode="stack")
    seen = {name: sum(parts.get(name, 0.0) for parts in rows.values()) for name in order}
    for place, name in enumerate(order):
        if seen[name] < 0.002 * sum(totals):
            continue
        # a sixth collective repeats a colour; its hatching tells it apart
        is_repeated = list(colours.values()).index(colours[name]) < list(colours).index(name)
        made.add_bar(
            x=[parts.get(name, 0.0) / scale for parts in rows.values()], y=names, orientation="h",
            name=text(_words(name)), legendrank=place,
            marker={"color": colours[name], "pattern": {"shape": "/" if is_repeated else ""}},
            customdata=[100 * parts.get(name, 0.0) / (sum(parts.values()) or 1.0)
                        for parts in rows.values()],
            hovertemplate=f"{text(name)}: %{{x:.3~g}} {unit}, %{{customdata:.1f}} %<extra></extra>",
        )  # fmt: skip
    made.update_xaxes(axis(f"time of one step ({unit})", rangemode="tozero"))
    made.update_yaxes(autorange="reversed", tickfont={"size": 10}, automargin=True)
    best = next(iter(rows.values()))
    total = sum(best.values()) or 1.0
    shares = ", ".join(
        f"{_words(name)} {100 * value / total:.0f} %"
        for name, value in sorted(best.items(), key=lambda item: -item[1])[:3]
    )
    return Picture(made, f"In the best configuration: {shares}. {source}")
