"""Turning a failed check into one sentence that names the key, the value and what is legal."""

import difflib
from collections.abc import Mapping, Sequence
from typing import Any, get_args

from pydantic import BaseModel, ValidationError

from tuner.config.toml_text import toml_key, toml_value
from tuner.errors import ConfigError

_LONGEST_SHOWN = 80


class Origins:
    """Where each key was set, to name the place that the user has to change."""

    def __init__(self, default: str) -> None:
        self.default = default
        self._by_key: dict[tuple[str, ...], str] = {}

    def put(self, key: str, origin: str) -> None:
        """Remember that `key` (dotted) came from `origin`."""
        self._by_key[tuple(key.split("."))] = origin

    def of(self, path: Sequence[str | int]) -> str:
        """The place where the key at `path`, or a section around it, was set."""
        names = tuple(str(part) for part in path)
        for length in range(len(names), 0, -1):
            if names[:length] in self._by_key:
                return self._by_key[names[:length]]
        inside = [key for key in self._by_key if key[: len(names)] == names]
        return self._by_key[inside[-1]] if inside else self.default


def nearest(name: str, known: Sequence[str], cutoff: float = 0.6) -> str | None:
    """The known name that `name` is most likely a misspelling of."""
    close = difflib.get_close_matches(name.lower(), known, n=1, cutoff=cutoff)
    return close[0] if close else None


def first_problem(
    error: ValidationError, root: type[BaseModel], document: Mapping[str, Any], origins: Origins
) -> ConfigError:
    """The first failed check of `document`, read as a `root`, as an error for the user."""
    details = error.errors(include_url=False)
    detail = min(details, key=lambda item: item["type"] != "extra_forbidden")
    path = _path_in(root, document, detail["loc"])
    where = f"`{dotted(path)}` in {origins.of(path)}"
    if detail["type"] == "extra_forbidden":
        return _unknown_key(path, root, where)
    if detail["type"] == "missing":
        return ConfigError(f"{where} is missing")
    more = f" (and {len(details) - 1} more)" if len(details) > 1 else ""
    is_section = isinstance(detail["input"], dict)
    shown = "" if is_section else f"is {_shown(detail['input'])}, but "
    return ConfigError(f"{where} {shown}should be {_wanted(detail)}{more}")


def dotted(path: Sequence[str | int]) -> str:
    """A path of keys and indices as a study file would write it."""
    parts = [f"[{part}]" if isinstance(part, int) else f".{toml_key(part)}" for part in path]
    return "".join(parts).lstrip(".")


def _unknown_key(path: Sequence[str | int], root: type[BaseModel], where: str) -> ConfigError:
    section = _section_at(root, path[:-1])
    keys = list(section.model_fields)
    close = nearest(str(path[-1]), keys)
    hint = f"did you mean `{close}`? " if close else elsewhere(str(path[-1]), root)
    name = f"[{dotted(path[:-1])}]" if len(path) > 1 else "a study"
    return ConfigError(f"unknown key {where}", hint=f"{hint}keys of {name}: {', '.join(keys)}")


def elsewhere(key: str, root: type[BaseModel]) -> str:
    """Where a key like this one belongs, when it stands in the wrong section; else empty."""
    for name, section in sections_of(root).items():
        if close := nearest(key, list(section.model_fields), cutoff=0.8):
            return f"`{close}` belongs in [{name}]; "
    return ""


def sections_of(root: type[BaseModel]) -> dict[str, type[BaseModel]]:
    """The fields of `root` that are models, by name."""
    found = {name: _model_in(info.annotation) for name, info in root.model_fields.items()}
    return {name: model for name, model in found.items() if model is not None}


def _model_in(annotation: Any) -> type[BaseModel] | None:
    """The model in an annotation such as `Annotated[Section, ...] | None`."""
    if isinstance(annotation, type) and issubclass(annotation, BaseModel):
        return annotation
    found = (_model_in(part) for part in get_args(annotation))
    return next((model for model in found if model is not None), None)


def _section_at(root: type[BaseModel], path: Sequence[str | int]) -> type[BaseModel]:
    section = root
    for part in path:
        section = sections_of(section).get(str(part), section)
    return section


def _path_in(
    root: type[BaseModel], document: Mapping[str, Any], loc: Sequence[str | int]
) -> tuple[str | int, ...]:
    """`loc` as far as the user wrote it: without pydantic's tags and the index of a lone value."""
    path: list[str | int] = []
    value: Any = document
    section: type[BaseModel] | None = root
    for part in loc:
        is_written = part in value if isinstance(value, Mapping) else isinstance(value, list)
        if section is not None or is_written:
            path.append(part)
            value = _child(value, part)
        section = sections_of(section).get(str(part)) if section is not None else None
    return tuple(path)


def _child(value: Any, part: str | int) -> Any:
    try:
        return value[part]
    except (KeyError, IndexError, TypeError):
        return None


def _shown(value: Any) -> str:
    """A value as TOML, cut to a readable length."""
    text = toml_value(value)
    return text if len(text) <= _LONGEST_SHOWN else f"{text[:_LONGEST_SHOWN]}..."


def _wanted(detail: Any) -> str:
    """What was asked for, from pydantic's own words."""
    context = detail.get("ctx", {})
    if detail["type"] == "value_error":
        return str(context.get("error", detail["msg"]))
    if detail["type"] == "literal_error":
        return f"one of {str(context['expected']).replace(' or ', ', ')}"
    if detail["type"] in ("model_type", "dict_type", "model_attributes_type"):
        return "a section of keys and values"
    words: str = detail["msg"]
    for prefix in ("Input should be ", "Value should be ", "Input should "):
        words = words.removeprefix(prefix)
    words = words.replace("a valid tuple", "a list").replace("a valid ", "a ")
    return words.replace("a integer", "an integer").replace("a boolean", "true or false")
