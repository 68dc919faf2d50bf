"""Small bars and lines of characters for tables in a terminal.

They stand beside the numbers and never in their place, so they may be left out: where output goes
to a file or a pipe, where the terminal is narrow, and where it cannot show block characters.
"""

import os
import sys
from collections.abc import Sequence
from typing import TextIO

_EIGHTHS = " ▏▎▍▌▋▊▉█"
_LEVELS = "▁▂▃▄▅▆▇█"
MIN_WIDTH = 100
"""Columns of a terminal below which tables come without bars."""


def has_room(stream: TextIO | None = None, min_width: int = MIN_WIDTH) -> bool:
    """Whether bars suit `stream` (standard output): a wide enough terminal that knows blocks."""
    stream = stream or sys.stdout
    if not stream.isatty() or os.environ.get("TERM") == "dumb" or not can_show(stream):
        return False
    return terminal_width(stream) >= min_width


def can_show(stream: TextIO) -> bool:
    """Whether the stream's encoding has the block characters."""
    try:
        "█▁".encode(stream.encoding or "ascii")
    except (UnicodeEncodeError, LookupError):
        return False
    return True


def terminal_width(stream: TextIO) -> int:
    """Columns of a terminal; `COLUMNS` overrides them."""
    named = os.environ.get("COLUMNS", "")
    if named.isdecimal() and int(named) > 0:
        return int(named)
    try:
        return os.get_terminal_size(stream.fileno()).columns
    except (OSError, ValueError):
        return 80


def bar(share: float, width: int = 12) -> str:
    """A bar of `share` (0 to 1) of `width` characters, in steps of an eighth of a character."""
    eighths = round(min(max(share, 0.0), 1.0) * width * 8)
    full, rest = divmod(eighths, 8)
    return "█" * full + (_EIGHTHS[rest] if rest else "")


def sparkline(values: Sequence[float], width: int = 40) -> str:
    """Values as a line of at most `width` characters from the lowest to the highest of them.

    Of more values than characters each character shows the last of its share.
    """
    if not values:
        return ""
    if len(values) > width:
        values = [values[(place + 1) * len(values) // width - 1] for place in range(width)]
    low, high = min(values), max(values)
    if high <= low:
        return _LEVELS[len(_LEVELS) // 2] * len(values)
    top = len(_LEVELS) - 1
    return "".join(_LEVELS[round((value - low) / (high - low) * top)] for value in values)
