"""How results reach people (tables) and machines (JSON, CSV) on standard output."""

import csv
import json
import os
import sys
from collections.abc import Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, TextIO

import click

from tuner.cli.options import verbosity

if TYPE_CHECKING:
    from rich.console import Console

_WIDTH_WITHOUT_TERMINAL = 200


def console(stream: TextIO | None = None) -> "Console":
    """A console on `stream` (standard output) that takes text as it is: no markup, no emoji.

    Colour follows the terminal and `NO_COLOR`; a pipe or file gets lines wide enough not to be cut.
    """
    from rich.console import Console

    stream = stream or sys.stdout
    width = None if stream.isatty() else _WIDTH_WITHOUT_TERMINAL
    return Console(file=stream, markup=False, highlight=False, emoji=False, width=width)


def is_live(stream: TextIO) -> bool:
    """Whether a display that redraws itself suits `stream`."""
    return stream.isatty() and not os.environ.get("NO_COLOR") and os.environ.get("TERM") != "dumb"


def say(text: str = "") -> None:
    """A sentence about what is being done, on standard error; silent under `-q`."""
    if verbosity() >= 0:
        click.echo(text, err=True)


def print_json(value: Any) -> None:
    """One JSON document; numbers that JSON lacks (NaN) become null, times ISO text."""
    click.echo(json.dumps(plain(value), indent=2, ensure_ascii=False, allow_nan=False))


def plain(value: Any) -> Any:
    """A value as JSON knows it: NaN is null, times are ISO text, other objects their text."""
    if isinstance(value, Mapping):
        return {str(key): plain(item) for key, item in value.items()}
    if isinstance(value, list | tuple | set):
        return [plain(item) for item in value]
    if isinstance(value, float):
        return value if value - value == 0 else None
    if value is None or isinstance(value, bool | int | str):
        return value
    return value.isoformat() if hasattr(value, "isoformat") else str(value)


def print_csv(columns: Sequence[str], rows: Iterable[Mapping[str, Any]]) -> None:
    """A header line and a line per row; unknown values are empty."""
    writer = csv.DictWriter(sys.stdout, columns, restval="", extrasaction="ignore")
    writer.writeheader()
    for row in rows:
        writer.writerow({key: _cell(row.get(key)) for key in columns})


def _cell(value: Any) -> Any:
    if value is None:
        return ""
    if isinstance(value, list | tuple | Mapping):
        return json.dumps(plain(value))
    return value.isoformat() if hasattr(value, "isoformat") else value


def print_table(
    headers: Sequence[str], rows: Iterable[Sequence[str]], *, right: Sequence[int] = ()
) -> None:
    """A table without lines; `right` are the columns of numbers."""
    from rich.table import Table
    from rich.text import Text

    table = Table(box=None, pad_edge=False, show_edge=False, header_style="bold")
    for position, header in enumerate(headers):
        is_last = position == len(headers) - 1
        table.add_column(
            Text(header),
            justify="right" if position in right else "left",
            no_wrap=not is_last,
            overflow="fold",
        )
    for row in rows:
        table.add_row(*(Text(cell) for cell in row))
    out = console()
    if out.is_terminal:
        out.print(table)
        return
    with out.capture() as captured:
        out.print(table)
    for line in captured.get().splitlines():  # without the blanks that fill up the last column
        click.echo(line.rstrip())
