"""The report as Markdown: tables and the captions of the figures, for issues and wikis."""

from collections.abc import Iterable, Mapping, Sequence

from tuner.web.figures import FIGURES, Picture
from tuner.web.report import words
from tuner.web.report.document import Report


def render_markdown(report: Report, images: Mapping[str, str] | None = None) -> str:
    """The whole document; `images` are files of figures by name, shown where they belong."""
    facts, images = report.facts, images or {}
    lines = [f"# {_text(report.title)}", "", _text(report.headline), ""]
    for doubt in report.doubts:
        lines += [f"> {_text(doubt)}", ""]
    lines += ["## Study", "", *_table(("what", ""), facts.study.items())]
    if facts.winner is not None:
        lines += ["## Leaderboard", "", *_board(report)]
    lines += ["## Figures", ""]
    for name, spec in FIGURES.items():
        picture = report.pictures[name]
        lines += [f"### {spec.title}", ""]
        if name in images:
            lines += [f"![{spec.title}]({images[name]})", ""]
        words_of = picture.caption if isinstance(picture, Picture) else picture.reason
        lines += [_text(words_of), ""]
    if facts.failures:
        rows = [
            (g.cause, g.phase, f"{g.count:,}", f"trial {g.trial_number}, {g.label}: {g.message}")
            for g in facts.failures
        ]
        lines += ["## Failures", "", *_table(("cause", "phase", "trials", "the first"), rows)]
    if facts.untried:
        tried = [
            (
                g.rule if g.is_legal else f"{g.rule} (not legal)",
                f"{g.count:,}",
                f"{g.example}: {g.reason}" if g.example else g.reason,
            )
            for g in facts.untried
        ]
        lines += ["## What was not tried", "", *_table(("rule", "points", "one of them"), tried)]
    lines += ["## Repeat it", "", "```toml", facts.resolved_config.strip(), "```", ""]
    lines += _table(("where it ran", ""), facts.provenance)
    made = f"Made by tuner {facts.tuner_version} on {words.moment(facts.made_at)}."
    return "\n".join([*lines, made, ""])


def _board(report: Report) -> list[str]:
    facts = report.facts
    head = ["#", "configuration", "tokens/s", "±", "step", "MFU", "memory", "vs median"]
    base = facts.baseline.tokens_per_s if facts.baseline else None
    if base:
        head.append("vs baseline")
    positions = [row.position for row in facts.board]
    rows = []
    for row in facts.board:
        tie = "=" if positions.count(row.position) > 1 else ""
        cells = [
            f"{row.position}{tie}", row.label, words.speed(row.tokens_per_s),
            words.half_width(row), words.step(row.step_time_s), words.percent(row.mfu),
            words.memory(row.peak_memory_bytes),
            words.ratio(row.tokens_per_s / (facts.median_tokens_per_s or row.tokens_per_s)),
        ]  # fmt: skip
        rows.append([*cells, words.ratio(row.tokens_per_s / base)] if base else cells)
    return _table(head, rows)


def _table(head: Sequence[str], rows: Iterable[Sequence[str]]) -> list[str]:
    body = ["| " + " | ".join(_text(cell) for cell in row) + " |" for row in rows]
    return ["| " + " | ".join(head) + " |", "|" + " --- |" * len(head), *body, ""]


def _text(value: str) -> str:
    """Words that Markdown shows as they are: no line breaks, no markup, no HTML."""
    plain = " ".join(str(value).split())
    for mark in "\\`*_[]<>|":
        plain = plain.replace(mark, f"\\{mark}" if mark not in "<>" else _ENTITIES[mark])
    return plain


_ENTITIES = {"<": "&lt;", ">": "&gt;"}
