"""Filters, order and page of a list of trials as they stand in an address, and back."""

import base64
import binascii
import json
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from starlette.datastructures import QueryParams

from results_db.knobs import KNOBS, Knob
from results_db.records import Purpose, TrialStatus
from results_db.trial_lists import SORT_KEYS, Cursor, TrialFilter, TrialOrder
from tuner.web.app.dashboard import PageProblem

ABSENT = "none"
"""How an address says that a knob has no value."""
_KNOBS = {knob.name: knob for knob in KNOBS}
_WORDS = ("status", "purpose", "failure")
_TEXTS = ("q", "min_speed", "max_memory")
_FILTERS = (*_WORDS, *_TEXTS, *_KNOBS)
_PLACES = ("sort", "after", "before")
GIB = 2**30
_MOST_WORDS = 200


@dataclass(frozen=True)
class TrialQuery:
    """What an address asks of the trials of a study."""

    wanted: TrialFilter
    order: TrialOrder
    cursor: Cursor | None
    filters: Sequence[tuple[str, str]]
    """The filters as they stand in the address."""

    @property
    def sort(self) -> str:
        """The order as it stands in the address."""
        return f"{'-' if self.order.descending else ''}{self.order.key}"

    def pairs(self, **changes: str) -> list[tuple[str, str]]:
        """The address's pairs with the filters, the order and these instead; the first page."""
        kept = [("sort", self.sort)] if self.sort != _DEFAULT_SORT else []
        return [*self.filters, *(pair for pair in kept if pair[0] not in changes),
                *changes.items()]  # fmt: skip

    def sorted_by(self, key: str) -> list[tuple[str, str]]:
        """Pairs with another order: the natural one of the key, then the other way round."""
        starts_down = key not in _ASCENDING_FIRST
        is_current = self.order.key == key
        descending = not self.order.descending if is_current else starts_down
        return self.pairs(sort=f"{'-' if descending else ''}{key}")

    def at(self, cursor: Cursor) -> list[tuple[str, str]]:
        """Pairs with a page."""
        name = "before" if cursor.is_backward else "after"
        return self.pairs(**{name: encode_cursor(cursor)})

    def values(self, name: str) -> list[str]:
        """What a filter is set to."""
        return [value for key, value in self.filters if key == name]

    def value(self, name: str) -> str:
        """What a filter with one value is set to; empty when it is not."""
        return next(iter(self.values(name)), "")


_DEFAULT_SORT = "-number"
_ASCENDING_FIRST = ("step_time_s", "peak_memory_bytes", "wall_s", "config", "status")


def read_query(study_id: int, params: QueryParams) -> TrialQuery:
    """What an address asks.

    Raises:
        PageProblem: it names a filter, value or order that does not exist.
    """
    pairs = [(name, value.strip()) for name, value in params.multi_items()]
    unknown = sorted({name for name, _ in pairs} - {*_FILTERS, *_PLACES})
    if unknown:
        raise PageProblem(
            400, f"There is no filter {unknown[0]!r}", f"the filters are {', '.join(_FILTERS)}"
        )
    # a form sends its empty fields, too
    filters = [(name, value) for name, value in pairs if value and name in _FILTERS]
    if len(filters) > _MOST_WORDS:
        raise PageProblem(400, f"More than {_MOST_WORDS} filters at once are too many")
    given: dict[str, list[str]] = {}
    for name, value in filters:
        given.setdefault(name, []).append(value)
    wanted = TrialFilter(
        study_id=study_id,
        statuses=_words(given, "status", [status.value for status in TrialStatus]),
        purposes=_words(given, "purpose", [purpose.value for purpose in Purpose]),
        failure_kinds=tuple(given.get("failure", ())),
        knobs={
            name: tuple(_knob_value(_KNOBS[name], text) for text in texts)
            for name, texts in given.items()
            if name in _KNOBS
        },
        text=given.get("q", [""])[0],
        min_tokens_per_s=_number(given, "min_speed"),
        max_memory_bytes=_number(given, "max_memory", GIB),
    )
    places = {name: value for name, value in pairs if name in _PLACES and value}
    return TrialQuery(wanted, _order(places.get("sort", _DEFAULT_SORT)), _cursor(places), filters)


def _words(given: Mapping[str, list[str]], name: str, known: list[str]) -> tuple[str, ...]:
    words = tuple(given.get(name, ()))
    for word in words:
        if word not in known:
            raise PageProblem(400, f"There is no {name} {word!r}", f"there are {', '.join(known)}")
    return words


def _number(given: Mapping[str, list[str]], name: str, scale: float = 1.0) -> float | None:
    text = given.get(name, [""])[0]
    if not text:
        return None
    try:
        number = float(text)
    except ValueError:
        number = math.nan
    if not math.isfinite(number):
        raise PageProblem(400, f"{name} is {text!r}", "write a number, e.g. 1500 or 2.5")
    return number * scale


def _knob_value(knob: Knob, text: str) -> Any:
    """A knob's column value from its text in an address."""
    if text == ABSENT and knob.is_optional:
        return None
    if knob.kind is bool and text in ("true", "false"):
        return text == "true"
    if knob.kind is int and text.isascii() and text.isdigit() and len(text) < 10:
        return int(text)
    if knob.kind in (str, tuple):
        return text
    example = "true or false" if knob.kind is bool else "a whole number"
    raise PageProblem(400, f"{knob.name} cannot be {text!r}", f"it is {example}")


def knob_text(value: Any) -> str:
    """A knob's column value as it stands in an address."""
    if value is None:
        return ABSENT
    return str(value).lower() if isinstance(value, bool) else str(value)


def _order(text: str) -> TrialOrder:
    key = text.removeprefix("-")
    if key not in SORT_KEYS:
        raise PageProblem(
            400, f"Trials cannot be sorted by {key!r}", f"they can by {', '.join(SORT_KEYS)}"
        )
    return TrialOrder(key, descending=text.startswith("-"))


def encode_cursor(cursor: Cursor) -> str:
    """A page's place in a form that an address can hold."""
    text = json.dumps([cursor.value, cursor.number], separators=(",", ":"))
    return base64.urlsafe_b64encode(text.encode()).decode().rstrip("=")


def _cursor(places: Mapping[str, str]) -> Cursor | None:
    for name, is_backward in (("after", False), ("before", True)):
        if name in places:
            return _decoded(places[name], is_backward=is_backward)
    return None


def _decoded(text: str, *, is_backward: bool) -> Cursor:
    try:
        raw = base64.urlsafe_b64decode(text + "=" * (-len(text) % 4))
        value, number = json.loads(raw)
    except (ValueError, TypeError, binascii.Error, RecursionError):
        value, number = {}, 0
    is_known = value is None or isinstance(value, int | float | str)
    if not is_known or isinstance(value, bool) or not _is_key(number):
        raise PageProblem(400, "The address names no page of the list", "begin at its first page")
    return Cursor(value, number, is_backward)


def _is_key(number: Any) -> bool:
    return isinstance(number, int) and not isinstance(number, bool) and 0 <= number < 2**63
