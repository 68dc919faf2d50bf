"""What all pages share: the open database, templates, and what is worth keeping in memory."""

import threading
import time
from collections import OrderedDict
from collections.abc import Callable, Hashable
from dataclasses import dataclass, field
from typing import Any, TypeVar

from starlette.requests import Request

from results_db import study_facts
from results_db.errors import NotFound
from results_db.records import StudyRecord
from results_db.store import Store
from results_db.study_facts import Pulse
from tuner.web.study_data import StudyData, load_study_data

_T = TypeVar("_T")

PULSE_S = 1.0
"""How old the state of a study may be."""


class PageProblem(Exception):
    """A request that has no answer: shown as a page of its own."""

    def __init__(self, status: int, message: str, hint: str = "") -> None:
        super().__init__(message)
        self.status = status
        self.message = message
        self.hint = hint


class Kept:
    """The newest few results of costly functions; one thread makes each, the others wait for it."""

    def __init__(self, size: int) -> None:
        self._size = size
        self._found: OrderedDict[Hashable, tuple[Hashable, Any]] = OrderedDict()
        self._locks: dict[Hashable, threading.Lock] = {}
        self._guard = threading.Lock()

    def get(self, key: Hashable, version: Hashable, make: Callable[[], _T]) -> _T:
        """The result for `key`, made anew when its version changed."""
        with self._guard:
            lock = self._locks.setdefault(key, threading.Lock())
        with lock:
            with self._guard:
                known = self._found.get(key)
            if known is not None and known[0] == version:
                made: _T = known[1]
                return made
            made = make()
            with self._guard:
                self._found[key] = (version, made)
                self._found.move_to_end(key)
                while len(self._found) > self._size:
                    self._locks.pop(self._found.popitem(last=False)[0], None)
            return made


@dataclass
class Dashboard:
    """One running dashboard."""

    store: Store
    """Open for reading only."""
    store_url: str
    """As it was given: the SQL page opens the database by it, read-only."""
    sql_slots: threading.BoundedSemaphore = field(
        default_factory=lambda: threading.BoundedSemaphore(2)
    )
    """Queries of users that may run at once; the pages keep the rest of the machine."""
    _pulses: dict[int, tuple[float, Pulse]] = field(default_factory=dict)
    _kept: Kept = field(default_factory=lambda: Kept(64))
    _studies: Kept = field(default_factory=lambda: Kept(2))

    def study(self, study_id: int) -> StudyRecord:
        """A study by id.

        Raises:
            PageProblem: there is none.
        """
        try:
            return self.store.get_study(study_id)
        except NotFound:
            raise PageProblem(404, f"There is no study with the id {study_id}") from None

    def pulse(self, study_id: int) -> Pulse:
        """How far a study is, at most `PULSE_S` ago: a page and its figures ask many times."""
        now = time.monotonic()
        known = self._pulses.get(study_id)
        if known is None or now - known[0] > PULSE_S:
            known = (now, study_facts.pulse(self.store, study_id))
            self._pulses[study_id] = known
        return known[1]

    def knob_values(self, study_id: int, num_trials: int) -> dict[str, list[Any]]:
        """Values of the knobs that differ between a study's trials."""
        return self._kept.get(
            ("knobs", study_id),
            num_trials,
            lambda: study_facts.knob_values(self.store, study_id),
        )

    def study_data(self, study_id: int, version: Pulse) -> StudyData:
        """All that the figures of a study need, read once per change of it."""
        return self._studies.get(
            study_id, _hashable(version), lambda: load_study_data(self.store, study_id)
        )

    def figure(self, key: Hashable, version: Pulse, make: Callable[[], _T]) -> _T:
        """A figure, made once per change of its study."""
        return self._kept.get(key, _hashable(version), make)


def _hashable(version: Pulse) -> Hashable:
    return (version.status, *sorted(version.counts.items()), version.last_finished_at,
            version.num_untried)  # fmt: skip


def dashboard_of(request: Request) -> Dashboard:
    """The dashboard that a request came to."""
    found = request.app.state.dashboard
    assert isinstance(found, Dashboard)  # noqa: S101 -- set by application.build
    return found


def id_of(request: Request, name: str = "id") -> int:
    """A number in the path; the database's keys have 63 bits.

    Raises:
        PageProblem: it is larger than any key.
    """
    number = int(request.path_params[name])
    if number >= 2**63:
        raise PageProblem(404, f"There is nothing with the id {number}")
    return number
