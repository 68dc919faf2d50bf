"""`tuner compare`: did the best throughput fall between two studies? For other people's CI."""

from dataclasses import asdict
from typing import TYPE_CHECKING, Any

import click

from tuner import formats
from tuner.cli import EXIT_REGRESSION
from tuner.cli.options import json_option, verbosity_options
from tuner.cli.output import print_json, print_table, say
from tuner.errors import UsageError

if TYPE_CHECKING:
    from tuner.comparison import Comparison, Side

_NUM_SHOWN = 10
_MARKS = {"regression": "slower", "same": "same", "faster": "faster"}


@click.command(
    epilog="\b\nExamples:\n  tuner compare main.db:smoke head.db:smoke\n"
    '  tuner compare "main.db:smoke-*" "head.db:smoke-*"   several runs a side, in turns\n'
    "  tuner compare last-week today --store results.db --threshold 0.1\n"
    '  tuner compare main.db head.db --markdown >> "$GITHUB_STEP_SUMMARY"\n\n'
    "BASE and HEAD are DATABASE:STUDY, DATABASE (its newest study), or STUDY; STUDY may be a"
    " pattern that several studies match, so that the spread between them counts as noise. Exits"
    " with 0 when the best measured throughput is the same or better, with 7 when it fell by more"
    " than the noise and the threshold, with 3 when a side has no measured configuration."
)
@click.argument("base")
@click.argument("head")
@click.option(
    "--threshold",
    type=click.FloatRange(0, 1, max_open=True),
    default=0.05,
    show_default=True,
    help="A fall below this share does not count, however sure.",
)
@click.option("--store", metavar="URL", help="Database of a BASE or HEAD that is a study's name.")
@click.option("--anyway", is_flag=True, help="Also compare different models, recipes or devices.")
@click.option("--markdown", "as_markdown", is_flag=True, help="Print Markdown for a job's summary.")
@json_option
@verbosity_options
@click.pass_context
def compare(
    ctx: click.Context,
    base: str,
    head: str,
    threshold: float,
    store: str | None,
    anyway: bool,
    as_markdown: bool,
    as_json: bool,
) -> None:
    """Say whether the best throughput fell between two studies."""
    from tuner import comparison

    if as_json and as_markdown:
        raise UsageError("--json and --markdown exclude each other")
    places = [comparison.parse_reference(text, store) for text in (base, head)]
    found = comparison.compare(*map(_reference, places), threshold=threshold, anyway=anyway)
    if as_json:
        print_json(document(found))
    elif as_markdown:
        click.echo(markdown(found))
    else:
        _print_for_people(found)
    if found.is_regression:
        ctx.exit(EXIT_REGRESSION)


def _reference(place: tuple[str, str | None]) -> str:
    url, study = place
    return url if study is None else f"{url}:{study}"


def document(found: "Comparison") -> dict[str, Any]:
    """The comparison for machines."""
    return {
        "verdict": found.verdict.value,
        "is_regression": found.is_regression,
        "sentence": found.sentence(),
        "ratio": found.ratio,
        "matched_ratio": found.matched_ratio,
        "threshold": found.threshold,
        "base": asdict(found.base),
        "head": asdict(found.head),
        "matches": [
            asdict(match) | {"ratio": match.ratio, "verdict": match.verdict.value}
            for match in found.matches
        ],
        "notes": list(found.notes),
    }


def _side_cells(name: str, side: "Side") -> tuple[str, ...]:
    return (
        name,
        side.name,
        formats.throughput(side.tokens_per_s),
        f"{formats.throughput(side.tokens_per_s_low)} to "
        f"{formats.throughput(side.tokens_per_s_high)}",
        formats.step_time(side.step_time_s),
        str(side.num_trials),
        side.label,
    )


_SIDE_HEADERS = ("", "study", "tokens/s", "interval", "step", "trials", "best configuration")
_MATCH_HEADERS = ("base", "head", "head / base", "", "configuration")


def _match_cells(found: "Comparison") -> list[tuple[str, ...]]:
    return [
        (
            formats.throughput(match.base_tokens_per_s),
            formats.throughput(match.head_tokens_per_s),
            formats.ratio(match.ratio),
            _MARKS[match.verdict],
            match.label,
        )
        for match in found.matches[:_NUM_SHOWN]
    ]


def _matched_sentence(found: "Comparison") -> str:
    if found.matched_ratio is None:
        return "no configuration was measured in both"
    count = formats.plural(len(found.matches), "configuration")
    return f"{count} measured in both: median head / base {formats.ratio(found.matched_ratio)}"


def _print_for_people(found: "Comparison") -> None:
    sides = [_side_cells("base", found.base), _side_cells("head", found.head)]
    print_table(_SIDE_HEADERS, sides, right=(2, 4, 5))
    click.echo(f"\n{_matched_sentence(found)}")
    if found.matches:
        print_table(_MATCH_HEADERS, _match_cells(found), right=(0, 1, 2))
    for note in found.notes:
        say(f"note: {note}")
    click.echo(f"\n{found.verdict.value}: {found.sentence()}")


def markdown(found: "Comparison") -> str:
    """The comparison as a job's summary shows it."""
    sides = [_side_cells("base", found.base), _side_cells("head", found.head)]
    lines = [
        f"### Training throughput: {found.verdict.value}",
        "",
        f"{_capital(found.sentence())}.",
        "",
        *_markdown_table(_SIDE_HEADERS, sides),
        "",
        f"{_capital(_matched_sentence(found))}.",
    ]
    if found.matches:
        lines += ["", *_markdown_table(_MATCH_HEADERS, _match_cells(found))]
    if found.notes:
        lines += ["", *(f"- {_escaped(note)}" for note in found.notes)]
    return "\n".join(lines)


def _capital(text: str) -> str:
    return text[:1].upper() + text[1:]


def _markdown_table(headers: tuple[str, ...], rows: list[tuple[str, ...]]) -> list[str]:
    table = [headers, ("---",) * len(headers), *rows]
    return [f"| {' | '.join(map(_escaped, row))} |" for row in table]


def _escaped(cell: str) -> str:
    return cell.replace("|", "\\|")
