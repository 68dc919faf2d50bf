"""Writing TOML, which the standard library only reads."""

import math
import re
from collections.abc import Mapping
from typing import Any

_ESCAPES = {'"': '\\"', "\\": "\\\\", "\n": "\\n", "\t": "\\t", "\r": "\\r"}
_BARE_KEY = re.compile(r"[A-Za-z0-9_-]+")
_PASSWORD_IN_URL = re.compile(r"(?P<head>[a-z][a-z0-9+.-]*://[^:@/?#\s]*):[^@\s]*@", re.IGNORECASE)
_SECRET_PARAMETER = re.compile(
    r"(?P<head>[?&](?:[\w-]*(?:password|passwd|token|secret|api_?key))=)[^&#\s]*", re.IGNORECASE
)
_SECRET_KEY = re.compile(r"password|passwd|token$|secret|api_?key|credential", re.IGNORECASE)


def _character(char: str) -> str:
    if char in _ESCAPES:
        return _ESCAPES[char]
    return f"\\u{ord(char):04x}" if ord(char) < 32 or ord(char) == 127 else char


def _string(text: str) -> str:
    """A basic string; control characters, which TOML forbids, as escapes."""
    return f'"{"".join(map(_character, text))}"'


def _float(number: float) -> str:
    if math.isnan(number):
        return "nan"
    if math.isinf(number):
        return "inf" if number > 0 else "-inf"
    return repr(number)


def toml_key(name: str) -> str:
    """`name` as it stands left of the equals sign, quoted where it has to be."""
    return name if _BARE_KEY.fullmatch(name) else _string(name)


def toml_value(value: Any) -> str:
    """`value` as it stands right of the equals sign; tables are written inline."""
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, int):
        return str(value)
    if isinstance(value, float):
        return _float(value)
    if isinstance(value, Mapping):
        inside = ", ".join(f"{toml_key(key)} = {toml_value(item)}" for key, item in value.items())
        return f"{{ {inside} }}" if inside else "{}"
    if isinstance(value, list | tuple):
        return f"[{', '.join(map(toml_value, value))}]"
    return _string(str(value))


def to_toml_text(document: Mapping[str, Any]) -> str:
    """A TOML document: top-level values, then a `[section]` per mapping that is not empty."""
    values = {key: value for key, value in document.items() if not isinstance(value, Mapping)}
    lines = [f"{toml_key(key)} = {toml_value(value)}" for key, value in values.items()]
    for name, section in document.items():
        if isinstance(section, Mapping) and section:
            lines += ["", f"[{toml_key(name)}]"]
            lines += [f"{toml_key(key)} = {toml_value(value)}" for key, value in section.items()]
    return "\n".join(lines).lstrip("\n") + "\n"


def without_password(url: str) -> str:
    """`url` without a password, in its authority or among its parameters."""
    return _SECRET_PARAMETER.sub(r"\g<head>", _PASSWORD_IN_URL.sub(r"\g<head>@", url))


def without_secrets(value: Any) -> Any:
    """`value` with passwords cut out of its URLs and keys that name a secret left out."""
    if isinstance(value, Mapping):
        return {
            key: without_secrets(item)
            for key, item in value.items()
            if not _SECRET_KEY.search(str(key))
        }
    if isinstance(value, list | tuple):
        return [without_secrets(item) for item in value]
    return without_password(value) if isinstance(value, str) else value
