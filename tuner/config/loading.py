"""Reading a study file: defaults, then the file, then what the command line says."""

import logging
import os
import tomllib
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from pydantic import ValidationError

from tuner.config.problems import Origins, dotted, first_problem
from tuner.config.sections import STORE_VARIABLE, StudyConfig
from tuner.config.trainer import anchored_command
from tuner.errors import ConfigError
from tuner.paths import DEFAULT_STORE

log = logging.getLogger(__name__)

STUDY_FILES = ("study.toml", "tuner.toml")
_INTEGER_LIMIT = 2**63

# Keys that may hold a path.
_PATHS = (
    ("model", "source"),
    ("cluster", "path"),
    ("store", "url"),
    ("space", "constraint"),
    ("search", "objective"),
)
# What the command line's own options set.
_CLI_KEYS: Mapping[str, str] = {
    "name": "name",
    "model": "model.source",
    "devices": "cluster.devices",
    "max_trials": "search.max_trials",
    "searcher": "search.searcher",
    "launcher": "launcher.name",
    "store": "store.url",
}


def find_study_file(folder: Path) -> Path | None:
    """The study file that a command without one uses: `study.toml` or `tuner.toml`.

    It is looked for in `folder`, then in those above it up to the root of a repository, the home
    folder or the root. Above `folder` only files of the user's own count: anybody may put one into
    a shared folder such as /tmp.
    """
    here = folder.resolve()
    for place in (here, *here.parents):
        for name in STUDY_FILES:
            path = place / name
            if path.is_file() and (place == here or _is_own(path)):
                return folder / os.path.relpath(path, here)
        if (place / ".git").exists() or place == Path.home():
            return None
    return None


def _is_own(path: Path) -> bool:
    return not hasattr(os, "getuid") or path.stat().st_uid == os.getuid()


def load_study_config(
    path: Path | None = None, overrides: Sequence[str] = (), *, is_found: bool = False, **cli: Any
) -> StudyConfig:
    """Read a study file and put `--set` overrides and command-line options over it.

    Args:
        path: a TOML file; none for the defaults alone.
        overrides: `key=value` with dotted keys (`search.max_trials=8`); the value is TOML, and a
            bare word is a string.
        is_found: the user did not name the file; a database that nothing names then lies beside it,
            so that commands in any folder below mean the same one.
        **cli: command-line options by name (`model`, `devices`, `max_trials`, ...); none is unset.

    Raises:
        ConfigError: in one sentence, with the legal keys or values.
    """
    document = {} if path is None else _read(path)
    if path is not None:
        if is_found and path.parent != Path() and STORE_VARIABLE not in os.environ:
            _default_store(document)
        _anchor(document, path.parent)
    origins = Origins("the command line" if path is None else str(path))
    for text in overrides:
        key, value = parse_override(text)
        _put(document, key, value, origins, "--set")
    for option, value in cli.items():
        if value is not None:
            flag = f"--{option.replace('_', '-')}"
            _put(document, _CLI_KEYS[option], value, origins, flag)
    return study_config_from(document, origins)


def study_config_from(document: Mapping[str, Any], origins: Origins | None = None) -> StudyConfig:
    """Check a document of plain values.

    Raises:
        ConfigError: it is not a study.
    """
    origins = origins or Origins("the study")
    if not isinstance(document, Mapping):
        raise ConfigError(f"{origins.default} is not a table of keys and values")
    _refuse_huge(document, origins)
    if document.get("model") is None:
        raise _no_model(origins)
    try:
        config = StudyConfig.model_validate(dict(document))
    except ValidationError as error:
        raise first_problem(error, StudyConfig, document, origins) from error
    except RecursionError as error:
        raise ConfigError(f"{origins.default} is nested too deeply") from error
    return config.with_recipe_defaults()


def parse_study_text(text: str, source: str = "the study") -> StudyConfig:
    """Read a study from TOML text, such as the one that the database keeps.

    Raises:
        ConfigError: it is not TOML, or not a study.
    """
    return study_config_from(_parse(text, source), Origins(source))


def parse_override(text: str) -> tuple[str, Any]:
    """Split `key=value` and read the value.

    Raises:
        ConfigError: there is no `=` or no key.
    """
    key, equals, value = text.partition("=")
    key = key.strip()
    if not equals or not all(key.split(".")):
        raise ConfigError(
            f"--set {text!r} is not of the form key=value", hint="for example search.max_trials=8"
        )
    return key, parse_value(value.strip())


def parse_value(text: str) -> Any:
    """A TOML value; `[none, full]` is a list of words, what else is not TOML is a string."""
    try:
        parsed = tomllib.loads(f"value = {text}")
    except (ValueError, RecursionError):
        parsed = {}
    if parsed.keys() == {"value"}:
        return parsed["value"]
    if text.startswith("[") and text.endswith("]") and "[" not in text[1:]:
        return [parse_value(item.strip()) for item in text[1:-1].split(",") if item.strip()]
    return text


def _read(path: Path) -> dict[str, Any]:
    try:
        text = path.read_bytes().decode("utf-8-sig")
    except FileNotFoundError as error:
        raise ConfigError(
            f"no study file {path}", hint="`tuner init` writes one; `--model NAME` does without"
        ) from error
    except UnicodeDecodeError as error:
        raise ConfigError(f"{path} is not a text file in UTF-8") from error
    except (OSError, ValueError) as error:
        reason = getattr(error, "strerror", None) or error
        raise ConfigError(f"the study file {path} cannot be read: {reason}") from error
    return _parse(text, str(path))


def _parse(text: str, source: str) -> dict[str, Any]:
    try:
        return tomllib.loads(text)
    except RecursionError as error:
        raise ConfigError(f"{source} is nested too deeply") from error
    except ValueError as error:
        raise ConfigError(
            f"{source} is not TOML: {error}", hint="`tuner init` writes a file to start from"
        ) from error


def _default_store(document: dict[str, Any]) -> None:
    store = document.setdefault("store", {})
    if isinstance(store, dict):
        store.setdefault("url", f"sqlite:///{DEFAULT_STORE.as_posix()}")


def _anchor(document: dict[str, Any], folder: Path) -> None:
    """Make the relative paths of a study file relative to the file's own folder."""
    for section, key in _PATHS:
        table = document.get(section)
        value = table.get(key) if isinstance(table, dict) else None
        if isinstance(table, dict) and isinstance(value, str):
            table[key] = _anchored(section, value, folder)
    trainer = document.get("trainer")
    if isinstance(trainer, dict) and "command" in trainer:
        trainer["command"] = anchored_command(trainer["command"], folder)


def _anchored(section: str, value: str, folder: Path) -> str:
    """`value` under `folder`, where it is a relative path and not the name of a preset."""
    if section == "store":
        prefix = "sqlite:///"
        path = value.removeprefix(prefix)
        if not path or path.startswith((":memory:", "file:")) or "://" in path:
            return value
        return f"{prefix}{_join(folder, path)}"
    if section in ("space", "search"):
        return _join(folder, value) if ".py:" in value else value
    is_path = section == "cluster" or "/" in value or value.endswith(".json")
    return _join(folder, value) if is_path else value


def _join(folder: Path, path: str) -> str:
    try:
        return (folder / Path(path).expanduser()).as_posix()
    except (RuntimeError, ValueError):  # an unknown user after `~`
        return path


def _put(document: dict[str, Any], key: str, value: Any, origins: Origins, origin: str) -> None:
    """Set a dotted key, making its sections where they are absent."""
    *sections, last = key.split(".")
    table = document
    for depth, section in enumerate(sections):
        child = table.setdefault(section, {})
        if not isinstance(child, dict):
            where = ".".join(sections[: depth + 1])
            raise ConfigError(f"`{where}` is not a section, so {origin} cannot set `{key}`")
        table = child
    table[last] = value
    origins.put(key, origin)


def _no_model(origins: Origins) -> ConfigError:
    return ConfigError(
        f"no model is named in {origins.default}",
        hint="pass `--model NAME` or set `source` in [model]; `tuner presets` lists the names",
    )


def _walk(
    value: Any, path: tuple[str, ...], depth: int = 0
) -> Iterator[tuple[tuple[str, ...], Any]]:
    """All leaves of a document with their keys; a too deep one is a leaf of its own."""
    if depth < 50 and isinstance(value, Mapping):
        for key, item in value.items():
            yield from _walk(item, (*path, str(key)), depth + 1)
    elif depth < 50 and isinstance(value, list | tuple):
        for item in value:
            yield from _walk(item, path, depth + 1)
    else:
        yield path, value


def _refuse_huge(document: Mapping[str, Any], origins: Origins) -> None:
    """Refuse what TOML must not hold: integers beyond 64 bits, broken text, endless nesting."""
    for path, leaf in _walk(document, ()):
        where = f"`{dotted(path)}` in {origins.of(path)}"
        if isinstance(leaf, int) and not -_INTEGER_LIMIT <= leaf < _INTEGER_LIMIT:
            raise ConfigError(f"{where} is beyond the 64 bits of an integer")
        if isinstance(leaf, str) and any("\ud800" <= char <= "\udfff" for char in leaf):
            raise ConfigError(f"{where} is not Unicode text")
        if isinstance(leaf, Mapping | list | tuple) and leaf:
            raise ConfigError(f"{where} is nested too deeply")
