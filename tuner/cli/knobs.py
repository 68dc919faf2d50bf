"""Reading a configuration as people type it: `tp=2,pp=1` or the short form of a leaderboard."""

import re
from collections.abc import Callable, Mapping
from typing import Any, get_args

from pydantic import ValidationError

from search_spaces.parallel_config import (
    KNOBS,
    ParallelConfig,
    Precision,
    Recompute,
    ReduceDtype,
    ScheduleName,
    TpLayout,
)
from tuner.config import nearest, parse_value
from tuner.errors import UsageError

_SEPARATORS = re.compile(r"[,\s]+(?![^\[]*\])")  # not inside [ ]
_NUMBERED = re.compile(r"(?P<tag>[a-z_]+)(?P<number>\d+)")
_TAGS: Mapping[str, str] = {
    "tp": "tp", "pp": "pp", "dp": "dp", "cp": "cp", "ep": "ep", "mbs": "micro_batch_size",
    "depth": "tp_depth", "vs": "virtual_stages", "zero": "zero_stage", "shard": "zero_shard_degree",
    "recompute_layers": "recompute_layers",
}  # fmt: skip
_FLAGS: Mapping[str, str] = {
    "sp": "sequence_parallel",
    "compile": "compile",
    "offload": "optimizer_offload",
}
_WORDS: Mapping[str, str] = {
    **dict.fromkeys(get_args(TpLayout), "tp_layout"),
    **dict.fromkeys(get_args(ScheduleName), "pipeline_schedule"),
    **dict.fromkeys(get_args(Precision), "dtype"),
}


def parse_knobs(text: str) -> dict[str, Any]:
    """The knobs that `text` names, e.g. `tp=2,pp=1`, `tp2 pp1 zero1 recompute-full`, or a mixture.

    Raises:
        UsageError: an item is no knob.
    """
    items = [item for item in _SEPARATORS.split(text.strip()) if item]
    if not items:
        raise UsageError("no configuration is given", 'write knobs, for example "tp=2,pp=1"')
    return dict(_parse_item(item) for item in items)


def parse_config(text: str, dtype: str = "fp32") -> ParallelConfig:
    """The configuration that `text` describes; knobs left out have their defaults.

    Raises:
        UsageError: an item is no knob, or its value is of the wrong type.
    """
    try:
        return ParallelConfig.model_validate({"dtype": dtype} | parse_knobs(text))
    except ValidationError as error:
        detail = error.errors(include_url=False)[0]
        words = detail["msg"].removeprefix("Input should be ")
        raise UsageError(
            f"{detail['loc'][0]} is {detail['input']!r}, but should be {words}"
        ) from error


def _parse_item(item: str) -> tuple[str, Any]:
    key, equals, value = item.partition("=")
    if equals:
        return _knob(_TAGS.get(key, _FLAGS.get(key, key))), _value(key, value)
    for read in _SHORT_FORMS:
        if (found := read(item)) is not None:
            return found
    raise _unknown(item)


def _value(key: str, text: str) -> Any:
    value = parse_value(text)
    if (key, value) in (("recompute_layers", "all"), ("stage_layers", "even")):
        return None
    return tuple(value) if isinstance(value, list) else value


def _knob(name: str) -> str:
    if name in KNOBS:
        return name
    raise _unknown(name)


def _unknown(name: str) -> UsageError:
    close = nearest(name, KNOBS)
    hint = f"did you mean {close!r}? " if close else ""
    return UsageError(f"{name!r} is no knob", f"{hint}knobs: {', '.join(KNOBS)}")


def _numbered(item: str) -> tuple[str, Any] | None:
    match = _NUMBERED.fullmatch(item)
    if match is None or match["tag"] not in _TAGS:
        return None
    return _TAGS[match["tag"]], int(match["number"])


def _flag(item: str) -> tuple[str, Any] | None:
    return (_FLAGS[item], True) if item in _FLAGS else None


def _word(item: str) -> tuple[str, Any] | None:
    return (_WORDS[item], item) if item in _WORDS else None


def _hyphenated(item: str) -> tuple[str, Any] | None:
    head, _, word = item.partition("-")
    if head == "recompute" and word in get_args(Recompute):
        return "recompute", word
    if head == "reduce" and word in get_args(ReduceDtype):
        return "reduce_dtype", word
    return None


def _split(item: str) -> tuple[str, Any] | None:
    match = re.fullmatch(r"stages(\d+(?:/\d+)*)", item)
    return ("stage_layers", tuple(map(int, match[1].split("/")))) if match else None


_SHORT_FORMS: tuple[Callable[[str], tuple[str, Any] | None], ...] = (
    _numbered,
    _flag,
    _word,
    _hyphenated,
    _split,
)
