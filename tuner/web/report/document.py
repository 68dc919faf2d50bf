"""A study's report: facts and figures put together once, written in any format."""

from collections.abc import Mapping
from dataclasses import dataclass

from tuner.web.figures import FIGURES, Missing, Picture
from tuner.web.report.facts import ReportFacts, report_facts
from tuner.web.report.words import speed
from tuner.web.study_data import StudyData


@dataclass(frozen=True)
class Report:
    """What is written: facts for the tables, pictures or their absence by name."""

    title: str
    facts: ReportFacts
    pictures: Mapping[str, Picture | Missing]

    @property
    def headline(self) -> str:
        """The study's answer in a sentence."""
        winner = self.facts.winner
        if winner is None:
            return "No trial has given a number yet."
        words = f"{winner.label} is the fastest: {speed(winner.tokens_per_s)} tokens/s"
        gains = [
            f"{gain.ratio:.2f} times the {gain.reference} ({gain.low:.2f} to {gain.high:.2f})"
            for gain in self.facts.gains
        ]
        return f"{', '.join([words, *gains])}."

    @property
    def doubts(self) -> list[str]:
        """What a reader must know before believing the headline."""
        facts, found = self.facts, []
        if facts.is_simulated:
            found.append("Simulated: a cost model gave these numbers, no machine did.")
        if facts.study.get("status") != "completed":
            found.append(f"The study is {facts.study.get('status')}: it may yet find better.")
        if facts.num_tied > 1:
            found.append(
                f"The measurements cannot tell the first {facts.num_tied} configurations apart."
            )
        if facts.baseline is None and facts.winner is not None:
            found.append("No baseline gave a number, so there is nothing in use to compare with.")
        return found


def make_report(data: StudyData) -> Report:
    """Build every figure and fact of a study."""
    pictures = {name: spec.build(data) for name, spec in FIGURES.items()}
    return Report(data.name, report_facts(data), pictures)
