"""The tables of docs/export.md, from the exporters themselves."""

from pathlib import Path

from search_spaces.parallel_config import KNOBS
from tuner import registry
from tuner.errors import UsageError
from tuner.ports import Exporter

PAGE = Path("docs/export.md")
_BEGIN = "<!-- tables: written by `python -m tuner.cli.reference`; do not edit -->\n"
_END = "<!-- end of the tables -->\n"


def export_page() -> str:
    """docs/export.md with its tables as the exporters are now; the tables alone if it is new."""
    text = PAGE.read_text(encoding="utf-8") if PAGE.exists() else f"{_BEGIN}{_END}"
    head, begin, rest = text.partition(_BEGIN)
    _, end, tail = rest.partition(_END)
    if not begin or not end:
        raise UsageError(f"{PAGE} has lost the marks of its tables", f"put back {_BEGIN.strip()}")
    return f"{head}{_BEGIN}{tables()}{_END}{tail}"


def tables() -> str:
    """All exporters with their versions and checks, and for each where the knobs go."""
    exporters: dict[str, Exporter] = {
        name: registry.load("exporters", name)() for name in registry.EXPORTERS
    }
    lines = ["| `--to` | trainer | versions | read back in the tests by |", "|---|---|---|---|"]
    lines += [
        f"| `{name}` | {exporter.trainer} | {exporter.versions} | {exporter.round_trip} |"
        for name, exporter in exporters.items()
    ]
    for name, exporter in exporters.items():
        if all(place.startswith("config.") for place in exporter.goes_to.values()):
            continue  # ours: every knob goes under its own name
        lines += ["", f"### {name}", "", "| knob | goes to |", "|---|---|"]
        lines += [f"| `{knob}` | {_cell(exporter.goes_to[knob])} |" for knob in KNOBS]
    return "\n".join(lines) + "\n"


def _cell(place: str) -> str:
    return "refused" if place == "-" else place.replace("|", "\\|")
