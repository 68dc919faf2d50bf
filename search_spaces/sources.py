"""Finding what a user names: a preset, or a file; and what was meant by a name that is neither."""

from collections.abc import Sequence
from difflib import get_close_matches
from pathlib import Path


def find_file(source: str, inside: str = "") -> Path | None:
    """The file at the path `source`, or the file called `inside` in the folder there."""
    try:
        path = Path(source).expanduser()
        if inside and path.is_dir():
            path = path / inside
        return path if path.is_file() else None
    except (OSError, RuntimeError, ValueError):  # too long, an unknown user after `~`, a null byte
        return None


def did_you_mean(name: str, legal: Sequence[str]) -> str:
    """`"did you mean a or b? "` for the names closest to a wrong one; nothing if none is close."""
    close = get_close_matches(name, legal, n=2, cutoff=0.6)
    return f"did you mean {' or '.join(close)}? " if close else ""
