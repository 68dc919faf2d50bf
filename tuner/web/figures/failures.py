"""Trials without a number by cause and phase, and points that were not run by rule."""

from collections import Counter

from tuner.web.figures.picture import Missing, Picture
from tuner.web.figures.style import BLUE, PALETTE, axis, figure, text
from tuner.web.study_data import StudyData

_MOST_ROWS = 12


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
    made = figure(height=150 + 32 * len(names), barmode="stack")
    for place, phase in enumerate(sorted(phases)):
        made.add_bar(
            x=[pairs[name, phase] for name in names],
            y=[f"{text(name)} " for name in names],
            orientation="h",
            name=text(phase),
            marker={"color": PALETTE[place % len(PALETTE)]},
            hovertemplate=f"%{{y}}in {text(phase)}: %{{x:,}}<extra></extra>",
        )
    made.update_xaxes(axis("trials", rangemode="tozero", tickformat="~s"))
    made.update_yaxes(autorange="reversed", automargin=True)
    share = 100 * len(lost) / sum(trial.is_finished for trial in data.trials)
    name, count = causes.most_common(1)[0]
    return Picture(
        made,
        f"{len(lost):,} trials, {share:.0f} % of the finished ones, gave no number; "
        f"{count:,} of them: {name}. Colours tell the phase.",
    )


def untried(data: StudyData) -> Picture | Missing:
    """Bars by the rule that kept points from running."""
    groups = list(data.untried[:_MOST_ROWS])
    if not groups:
        return Missing("Every legal point was run, or the study does not say which were not.")
    counts = [group.count for group in groups]
    made = figure(height=110 + 32 * len(groups), showlegend=False)
    made.add_bar(
        x=counts, y=[f"{text(group.rule)} " for group in groups], orientation="h",
        marker={"color": BLUE}, text=[f" {count:,}" for count in counts], textposition="outside",
        cliponaxis=False, hovertemplate="%{y}: %{x:,} points<extra></extra>",
    )  # fmt: skip
    kind = "log" if max(counts) > 200 * min(counts) else "linear"
    made.update_xaxes(axis("points", type=kind, tickformat="~s", nticks=6))
    if kind == "linear":
        made.update_xaxes(range=[0, 1.15 * max(counts)])
    made.update_yaxes(autorange="reversed", automargin=True)
    total = sum(group.count for group in data.untried)
    return Picture(made, f"{total:,} points were not run; {groups[0].rule}: {groups[0].reason}.")
