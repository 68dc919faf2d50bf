"""Flags of an argument file or of the script that holds them, with its variables filled in."""

import re
import shlex
from collections.abc import Mapping
from dataclasses import dataclass

from tuner.errors import ConfigError

_ASSIGNMENT = re.compile(
    r"^\s*(?:export\s+)?(\w+)=(?!\()(\"[^\"]*\"|'[^']*'|[^\s;#]*)", re.MULTILINE
)
_VARIABLE = re.compile(r"\$\{(\w+)(?::?-([^}]*))?\}|\$(\w+)")
_ROUNDS = 5  # variables of variables of variables


@dataclass(frozen=True)
class Flags:
    """Values of the flags by their names without dashes in front; the last one wins."""

    values: Mapping[str, tuple[str, ...]]

    def has(self, *names: str) -> bool:
        """Whether one of these is given."""
        return any(name in self.values for name in names)

    def text(self, *names: str) -> str | None:
        """The first value of the first of these that is given."""
        for name in names:
            if self.values.get(name):
                return self.values[name][0]
        return None

    def count(self, *names: str) -> int | None:
        """The same as a positive number.

        Raises:
            ConfigError: it is none.
        """
        text = self.text(*names)
        if text is None:
            return None
        if "$" in text:
            raise ConfigError(
                f"--{names[0]} is {text!r}, whose variable is not set in the file",
                hint="put the number into the file",
            )
        if not text.isdecimal() or int(text) < 1:
            raise ConfigError(f"--{names[0]} is {text!r}, must be a positive integer")
        return int(text)

    def number(self, *names: str, default: float) -> float:
        """The same as a number of any kind."""
        text = self.text(*names)
        try:
            return default if text is None else float(text)
        except ValueError:
            raise ConfigError(f"--{names[0]} is {text!r}, must be a number") from None


def read_flags(text: str) -> Flags:
    """All `--flag value ...` of a file, be it bare arguments or a shell script.

    Raises:
        ConfigError: quotes are not closed.
    """
    text = text.replace("\\\n", " ")
    variables = {name: value.strip("\"'") for name, value in _ASSIGNMENT.findall(text)}
    lines = [line for line in text.splitlines() if not line.lstrip().startswith("#")]
    try:
        words = shlex.split(_filled("\n".join(lines), variables), comments=True)
    except ValueError as error:
        raise ConfigError(f"the argument file cannot be split into words: {error}") from None
    values: dict[str, tuple[str, ...]] = {}
    name = None
    for word in _flat(words):
        if word.startswith("--"):
            name, _, value = word.removeprefix("--").partition("=")
            name = name.replace("_", "-")
            values[name] = (value,) if value else ()
        elif name is not None:
            values[name] = (*values[name], word)
    return Flags(values)


def _flat(words: list[str]) -> list[str]:
    """Words without the brackets of arrays; a quoted string of flags is split as a shell would."""
    flat: list[str] = []
    for word in words:
        parts = word.split() if " --" in f" {word.strip()}" else [word]
        for part in parts:
            head, array, first = part.partition("=(")
            inner = first if array and head.isidentifier() else part
            if "(" not in inner:
                inner = inner.rstrip(")")
            if inner.strip("();"):
                flat.append(inner)
    return flat


def _filled(text: str, variables: Mapping[str, str]) -> str:
    def value(match: re.Match[str]) -> str:
        name = match[1] or match[3]
        default: str | None = match[2]
        found = variables.get(name, default)
        return str(match[0]) if found is None else found

    for _ in range(_ROUNDS):
        filled = _VARIABLE.sub(value, text)
        if filled == text:
            break
        text = filled
    return text
