"""`tuner report`: a study as one document to read, send and print."""

import json
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Literal, get_args

import click

from tuner.cli.options import store_option, stored_study_argument, verbosity_options
from tuner.cli.output import plain, say
from tuner.cli.stores import open_for_reading
from tuner.errors import EnvironmentProblem, UsageError

if TYPE_CHECKING:
    from tuner.web.report import Report

Format = Literal["html", "md", "pdf", "json"]
_SUFFIXES: Mapping[str, Format] = {
    ".html": "html", ".htm": "html", ".md": "md", ".markdown": "md", ".pdf": "pdf", ".json": "json"
}  # fmt: skip
_STANDARD_OUTPUT = "-"


@click.command(
    epilog="\b\nExamples:\n  tuner report                         the newest study, as STUDY.html\n"
    "  tuner report my-study -o report.html one file that opens offline\n"
    "  tuner report my-study -o report.pdf  needs Chromium or Chrome, as figures do\n"
    "  tuner report my-study --format md --figures figures/ > report.md"
)
@stored_study_argument
@click.option(
    "-o", "--output", metavar="FILE",
    help="File to write; - is standard output. Left out: STUDY with the format's suffix, in this "
    "folder; for md and json: standard output.",
)  # fmt: skip
@click.option(
    "--format", "form", type=click.Choice(get_args(Format)),
    help="Format; left out: that of FILE's suffix, else html.",
)  # fmt: skip
@click.option(
    "--figures", type=click.Path(file_okay=False, path_type=Path), metavar="DIR",
    help="Also write every figure to a file in DIR (needs Chromium or Chrome).",
)  # fmt: skip
@click.option(
    "--figure-format", type=click.Choice(("png", "svg")), default="png", show_default=True,
    help="Format of those files.",
)  # fmt: skip
@click.option(
    "--theme", type=click.Choice(("light", "dark")), default="light", show_default=True,
    help="Of those files; the HTML follows its reader's.",
)  # fmt: skip
@store_option
@verbosity_options
def report(
    study: str | None,
    output: str | None,
    form: Format | None,
    figures: Path | None,
    figure_format: str,
    theme: str,
    store: str | None,
) -> None:
    """Write the report of a study: the winner and why, in tables and figures."""
    _require_packages()
    from tuner.web.report import make_report
    from tuner.web.study_data import load_study_data

    chosen = _format(form, output)
    opened, record = open_for_reading(study, store)
    with opened:
        data = load_study_data(opened, record.name)
    target = _target(output, chosen, record.name)
    made = make_report(data)
    images = _write_figures(made, figures, figure_format, theme) if figures else {}
    _write(made, chosen, target, images)


def _require_packages() -> None:
    from importlib.util import find_spec

    missing = [name for name in ("plotly", "jinja2") if find_spec(name) is None]
    if missing:
        raise EnvironmentProblem(
            f"reports need the package {' and '.join(missing)}",
            'pip install "parallel-tuner[web]"',
        )


def _format(form: Format | None, output: str | None) -> Format:
    """The format that is asked for by name or by the file's suffix."""
    if form is not None:
        return form
    if output is None or output == _STANDARD_OUTPUT:
        return "html"
    suffix = Path(output).suffix.lower()
    if suffix not in _SUFFIXES:
        raise UsageError(
            f"the format of {output!r} is not known",
            f"legal suffixes: {', '.join(_SUFFIXES)}, or give --format",
        )
    return _SUFFIXES[suffix]


def _target(output: str | None, form: Format, name: str) -> Path | None:
    """The file to write; none is standard output."""
    if output == _STANDARD_OUTPUT or (output is None and form in ("md", "json")):
        if form == "pdf":
            raise UsageError("a PDF cannot go to standard output", "give -o FILE.pdf")
        return None
    return Path(output) if output else Path(f"{name}.{form}")


def _write_figures(made: "Report", folder: Path, figure_format: str, theme: str) -> dict[str, str]:
    from tuner.web.figures import Picture
    from tuner.web.report.browser import write_images

    drawn = {name: item for name, item in made.pictures.items() if isinstance(item, Picture)}
    try:
        files = write_images(drawn, folder, figure_format, theme)
    except OSError as error:
        raise UsageError(f"{folder} cannot be written: {error.strerror}") from error
    say(f"wrote {len(files)} figures to {folder}")
    return {name: path.as_posix() for name, path in files.items()}


def _write(made: "Report", form: Format, target: Path | None, images: dict[str, str]) -> None:
    try:
        if target is not None:
            target.parent.mkdir(parents=True, exist_ok=True)
        if form == "pdf":
            assert target is not None  # noqa: S101 -- refused above
            _write_pdf(made, target)
        else:
            text = _text(made, form, images)
            if target is None:
                sys.stdout.write(text)
            else:
                target.write_text(text, encoding="utf-8")
    except OSError as error:
        raise UsageError(f"{target} cannot be written: {error.strerror}") from error
    if target is not None:
        say(f"wrote {target} ({target.stat().st_size / 1e6:.1f} MB)")


def _write_pdf(made: "Report", target: Path) -> None:
    from tuner.web.report.browser import write_pdf
    from tuner.web.report.html import render_html

    write_pdf(render_html(made, for_print=True), target)


def _text(made: "Report", form: Format, images: dict[str, str]) -> str:
    from tuner.web.report.html import render_html
    from tuner.web.report.machine import as_document
    from tuner.web.report.markdown import render_markdown

    if form == "html":
        return render_html(made)
    if form == "md":
        return render_markdown(made, images)
    document = plain(as_document(made, images))
    return json.dumps(document, indent=2, ensure_ascii=False, allow_nan=False) + "\n"
