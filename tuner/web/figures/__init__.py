"""The figures of a study by name. A figure is made from `StudyData` alone and holds no theme.

A builder gives a `Picture`, or a `Missing` that says why there is none: an empty plot is never
made. The report, the dashboard and `--figures` show the same ones, in this order.
"""

import importlib
from collections.abc import Callable
from dataclasses import dataclass

from tuner.web.figures.picture import Missing, Picture
from tuner.web.study_data import StudyData

Builder = Callable[[StudyData], Picture | Missing]


@dataclass(frozen=True)
class FigureSpec:
    """One figure: its name in URLs and files, what it is called and which question it answers."""

    name: str
    title: str
    question: str
    """What it answers, in one sentence."""
    needs: str
    """What the study must hold for it, in words."""
    place: str
    """Module and builder, imported when the figure is made."""

    def build(self, data: StudyData) -> Picture | Missing:
        """Make the figure."""
        module, _, function = self.place.partition(":")
        builder: Builder = getattr(importlib.import_module(module), function)
        return builder(data)


_HERE = "tuner.web.figures"
_SPECS = (
    FigureSpec(
        "gains", "What the best gains",
        "How much faster are the leaders than the baseline and the median configuration?",
        "two measured configurations", f"{_HERE}.ranking:gains",
    ),
    FigureSpec(
        "progress", "Best so far",
        "How quickly did the search find its best configuration, in trials and device-hours?",
        "one measured trial", f"{_HERE}.progress:best_so_far",
    ),
    FigureSpec(
        "parallel-coordinates", "All configurations at once",
        "Which values of the knobs do the fast configurations share?",
        "three measured configurations that differ in two knobs", f"{_HERE}.knobs:parallel",
    ),
    FigureSpec(
        "knob-effects", "Effect of every knob",
        "What throughput did the configurations with each value of each knob reach?",
        "two measured configurations that differ in a knob", f"{_HERE}.knobs:effects",
    ),
    FigureSpec(
        "knob-pairs", "Pairs of knobs",
        "Which combinations of two parallel degrees are fast?",
        "two knobs with at least two measured values each", f"{_HERE}.pairs:heat_maps",
    ),
    FigureSpec(
        "sensitivity", "What mattered",
        "Which knobs move the step time most?",
        "five measured configurations", f"{_HERE}.sensitivity:shapley",
    ),
    FigureSpec(
        "pareto", "Throughput against memory and cost",
        "What throughput is given up for less memory or a lower cost?",
        "two measured configurations", f"{_HERE}.pareto:front",
    ),
    FigureSpec(
        "predictions", "Predicted against measured",
        "How far off is the cost model?",
        "two configurations that were predicted and measured", f"{_HERE}.predictions:scatter",
    ),
    FigureSpec(
        "stage-memory", "Memory by stage",
        "How full are the ranks of each pipeline stage of the leaders, against the limit?",
        "ranks of a leader", f"{_HERE}.memory:by_stage",
    ),
    FigureSpec(
        "step-parts", "Where the step's time goes",
        "How much of a step is compute, communication, bubble and optimizer in the leaders?",
        "the breakdown of a leader's step", f"{_HERE}.parts:step_time",
    ),
    FigureSpec(
        "timeline", "Timeline of the pipeline",
        "What did every pipeline rank do when, in one measured step?",
        "a leader with a pipeline, and the timeline of its ranks", f"{_HERE}.timeline:schedule",
    ),
    FigureSpec(
        "failures", "Trials without a number",
        "Why did trials give no number, and in which phase?",
        "a trial that failed", f"{_HERE}.failures:by_cause",
    ),
    FigureSpec(
        "untried", "Points by the rule that kept them out",
        "Which rules or limits kept points of the space from running?",
        "points that were not run", f"{_HERE}.failures:untried",
    ),
)  # fmt: skip

FIGURES: dict[str, FigureSpec] = {spec.name: spec for spec in _SPECS}

__all__ = ["FIGURES", "FigureSpec", "Missing", "Picture", "StudyData"]
