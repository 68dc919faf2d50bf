"""Trials without a number by cause and phase, and points that were not run by rule."""

from collections import Counter

from tuner.web.figures.picture import Missing, Picture
from tuner.web.figures.style import BLUE, GREY, PALETTE, axis, figure, log_ticks, text
from tuner.web.study_data import StudyData

_MOST_ROWS = 12
_MOST_RULES = 20


def cause_of(kind: str | None, status: str) -> str:
    """The failure's kind; where there is none the status."""
    return kind or status


def by_cause(data: StudyData) -> Picture | Missing:
    """Bars by cause, parted by the phase in which it happened."""
    lost = [trial for trial in data.trials if trial.is_finished and trial.tokens_per_s is None]
    if not lost:
        return Missing("Every finished trial gave a number.")
    causes = Counter(cause_of(trial.failure_kind, trial.status) for trial in lost)
    phases = Counter(trial.failure_phase or "no phase" for trial in lost)
    pairs = Counter(
        (cause_of(trial.failure_kind, trial.status), trial.failure_phase or "no phase")
        for trial in lost
    )
    names = [name for name, _ in causes.most_common(_MOST_ROWS)]
    made = figure(height=105 + 34 * len(names), barmode="stack")
    for place, phase in enumerate(sorted(phases)):
        made.add_bar(
            x=[pairs[name, phase] for name in names],
            y=[f"{text(name)} " for name in names],
            orientation="h",
            name=text(phase),
            marker={"color": PALETTE[place % len(PALETTE)]},
            hovertemplate=f"%{{y}}in {text(phase)}: %{{x:,}}<extra></extra>",
        )
    made.add_scatter(
        x=[causes[name] for name in names], y=[f"{text(name)} " for name in names], mode="text",
        text=[f" {causes[name]:,}" for name in names], textposition="middle right",
        showlegend=False, hoverinfo="skip", cliponaxis=False,
    )  # fmt: skip
    most = max(causes.values())
    made.update_xaxes(
        axis("trials", range=[0, 1.1 * most], tickformat="~s", dtick=1 if most < 6 else None)
    )
    made.update_yaxes(autorange="reversed", automargin=True)
    share = 100 * len(lost) / sum(trial.is_finished for trial in data.trials)
    name, count = causes.most_common(1)[0]
    return Picture(
        made,
        f"{len(lost):,} trials, {share:.0f} % of the finished ones, gave no number; "
        f"{'all' if count == len(lost) else f'{count:,}'} of them: {name}. Colours tell the phase.",
    )


def untried(data: StudyData) -> Picture | Missing:
    """Bars by the rule that kept points from running: legal ones, and those that are not legal."""
    groups = [group for group in data.untried if group.count][:_MOST_RULES]
    if not groups:
        return Missing("Every legal point was run, or the study does not say which were not.")
    counts = [group.count for group in groups]
    made = figure(height=105 + 30 * len(groups), barmode="overlay")
    for is_legal, name, colour in (
        (True, "legal, but not run", BLUE), (False, "not legal", GREY)
    ):  # fmt: skip
        mine = [place for place, group in enumerate(groups) if group.is_legal is is_legal]
        if not mine:
            continue
        made.add_bar(
            x=[counts[i] for i in mine], y=mine, orientation="h", name=name, width=0.75,
            marker={"color": colour}, text=[f" {counts[i]:,}" for i in mine],
            textposition="auto", insidetextanchor="end", cliponaxis=False,
            customdata=[text(groups[i].reason) for i in mine],
            hovertemplate="%{x:,} points, for example: %{customdata}<extra></extra>",
        )  # fmt: skip
    if max(counts) > 50 * min(counts):
        ticks = log_ticks([0.8 * min(counts), 4 * max(counts)])
        made.update_xaxes(axis("points", **ticks))
    else:
        made.update_xaxes(axis("points", range=[0, 1.15 * max(counts)], tickformat="~s"))
    made.update_yaxes(
        tickvals=list(range(len(groups))), ticktext=[f"{text(g.rule)} " for g in groups],
        range=[len(groups) - 0.4, -0.6], automargin=True, showgrid=False, zeroline=False,
    )  # fmt: skip
    legal = sum(group.count for group in data.untried if group.is_legal)
    refused = sum(group.count for group in data.untried if not group.is_legal)
    words = f"{legal:,} legal points were not run"
    if refused:
        words += f"; {refused:,} combinations of knob values are not legal"
    return Picture(made, f"{words}. Largest: {groups[0].rule}, {groups[0].reason}.")
