"""Which knobs mattered: mean absolute Shapley values of a surrogate of the step time."""

from tuner.web.figures.picture import Missing, Picture
from tuner.web.figures.style import BLUE, axis, figure, text
from tuner.web.importances import importances
from tuner.web.study_data import StudyData


def shapley(data: StudyData) -> Picture | Missing:
    """Knobs by how much they move the predicted step time, the largest first."""
    found = importances(data)
    if not found:
        return Missing(
            "Fewer than five configurations were measured, or they do not differ in any knob."
        )
    made = figure(height=110 + 30 * len(found), showlegend=False)
    made.add_bar(
        x=[100 * item.effect for item in found],
        y=[text(item.knob) for item in found],
        orientation="h",
        marker={"color": BLUE},
        error_x={
            "type": "data",
            "array": [100 * item.spread for item in found],
            "thickness": 1.2,
            "color": "#8C8C8C",
        },
        customdata=[100 * item.share for item in found],
        hovertemplate="%{y}: %{x:.1f} %, %{customdata:.0f} % of all<extra></extra>",
    )
    made.update_xaxes(axis("mean effect on the step time (%)", rangemode="tozero"))
    made.update_yaxes(autorange="reversed", automargin=True, ticksuffix=" ")
    first = found[0]
    return Picture(
        made,
        f"{first.knob} matters most: its value moves the step time by {100 * first.effect:.0f} % "
        f"on average, {100 * first.share:.0f} % of all effects. Shapley values of a tree model "
        "fitted to the measured trials.",
    )
