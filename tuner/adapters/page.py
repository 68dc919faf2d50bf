"""Writes the part of docs/adapters.md that lists every pattern, from the patterns themselves.

`python -m tuner.adapters.page` rewrites it; `--check` says whether it is in step.
"""

import re
import sys
from pathlib import Path

from tuner import registry
from tuner.adapters.base import Adapter, Pattern
from tuner.adapters.failures import FAILURE_PATTERNS
from tuner.adapters.figures import NUMBER

PAGE = Path("docs") / "adapters.md"
MARK = "<!-- From here on written by `python -m tuner.adapters.page`; do not edit. -->\n"


def generated() -> str:
    """The lists of patterns, as Markdown."""
    adapters = [registry.load("adapters", name) for name in registry.ADAPTERS]
    parts = [_overview(adapters), *map(_section, adapters), _failures()]
    return "\n".join(parts)


def _overview(adapters: list[type[Adapter]]) -> str:
    rows = [f"| [`{a.name}`](#{a.name}) | {a.title} | {a.versions} | {a.needs} |" for a in adapters]
    head = ["| adapter | trainer | versions looked at | needs |", "|---|---|---|---|"]
    number = ["", "In the patterns below, `NUMBER` stands for", "", "```text", NUMBER, "```", ""]
    return "\n".join(["## All adapters", "", *head, *rows, *number])


def _section(adapter: type[Adapter]) -> str:
    lines = [
        f"## {adapter.name}",
        "",
        f"{adapter.title}, {adapter.versions}.",
        "",
        f"- Step time: {adapter.timing}.",
        f"- Memory: {adapter.memory}.",
        f"- Needs: {adapter.needs}.",
    ]
    if adapter.environment:
        variables = ", ".join(f"`{name}={text}`" for name, text in adapter.environment.items())
        lines.append(f"- Set for the command: {variables}.")
    if adapter.patterns:
        lines += ["", "| line | versions | what is read | printed by |", "|---|---|---|---|"]
        lines += [_row(pattern) for pattern in adapter.patterns]
    for pattern in adapter.patterns:
        lines += ["", f"Pattern and example of `{pattern.name}`:", "", "```text"]
        lines += [_shown(pattern.regex), "", pattern.example, "```"]
    return "\n".join([*lines, ""])


def _shown(regex: re.Pattern[str]) -> str:
    """A pattern as people read it: the one for numbers by its name."""
    return regex.pattern.replace(NUMBER, "NUMBER")


def _row(pattern: Pattern) -> str:
    return f"| {pattern.name} | {pattern.versions} | {pattern.reads} | `{pattern.source}` |"


def _failures() -> str:
    lines = [
        "## Failures",
        "",
        "The same for all trainers; the first that matches a line decides. A crash is believed",
        "only where nothing else was said.",
        "",
        "| kind | printed by |",
        "|---|---|",
        *(f"| `{pattern.kind}` | {pattern.source} |" for pattern in FAILURE_PATTERNS),
    ]
    for pattern in FAILURE_PATTERNS:
        lines += ["", f"`{pattern.kind}`, {pattern.source}:", "", "```text"]
        lines += [_shown(pattern.regex), "", pattern.example, "```"]
    return "\n".join([*lines, ""])


def main(arguments: list[str]) -> None:
    """Rewrite the page, or check it; ends with a sentence where it is out of step."""
    text = PAGE.read_text(encoding="utf-8")
    written, mark, _ = text.partition(MARK)
    if not mark:
        sys.exit(f"{PAGE} has no line {MARK.strip()}")
    wanted = f"{written}{MARK}\n{generated()}"
    if "--check" not in arguments:
        PAGE.write_text(wanted, encoding="utf-8")
    elif text != wanted:
        sys.exit(f"{PAGE} is out of step: run python -m tuner.adapters.page")


if __name__ == "__main__":
    main(sys.argv[1:])
