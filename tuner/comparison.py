"""Compares the best measured throughput of two studies: did it fall by more than the noise?

Each configuration has the median of its trials and an interval that says how far two medians must
lie apart to differ (`results_db.intervals`). The best fell when its whole interval lies below that
of the other side's best, and by more than a threshold that the user sets.

A side may be several studies of one question. Then the spread between them counts as well, which no
single study can see: another load on the machine, another placement.
"""

import fnmatch
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path
from statistics import median
from typing import Any, Protocol

from results_db import queries
from results_db.intervals import Interval, combine
from results_db.queries import LeaderboardRow
from results_db.records import StudyRecord
from results_db.store import Store
from tuner.config import default_store_url
from tuner.errors import ConfigError, NothingFeasibleError
from tuner.study import find_study, open_store

DEFAULT_THRESHOLD = 0.05
_SUFFIXES = (".db", ".sqlite", ".sqlite3")


class Verdict(StrEnum):
    """What became of the best throughput."""

    REGRESSION = "regression"
    SAME = "same"
    FASTER = "faster"


@dataclass(frozen=True, kw_only=True)
class Pooled:
    """A configuration with its median and interval over the studies of one side."""

    config_key: str
    label: str
    trial_number: int
    """Its first trial in the first study that measured it."""
    num_trials: int
    tokens_per_s: float
    tokens_per_s_low: float
    tokens_per_s_high: float
    step_time_s: float


class StoredStudy(Protocol):
    """An open study; `tuner.Study` is one."""

    @property
    def store(self) -> Store:
        """Its database."""
        ...

    @property
    def record(self) -> StudyRecord:
        """Its row."""
        ...


@dataclass(frozen=True, kw_only=True)
class Side:
    """The best of one of the two studies."""

    studies: Sequence[str]
    store: str
    label: str
    """The best configuration, for people."""
    trial_number: int
    tokens_per_s: float
    tokens_per_s_low: float
    tokens_per_s_high: float
    step_time_s: float
    num_trials: int
    """Completed trials of the best configuration."""
    num_configs: int
    """Configurations that gave a number."""

    @property
    def name(self) -> str:
        """The study's name, or how many there are."""
        first = self.studies[0]
        return first if len(self.studies) == 1 else f"{first} and {len(self.studies) - 1} more"


@dataclass(frozen=True, kw_only=True)
class Match:
    """A configuration that both studies measured."""

    label: str
    base_tokens_per_s: float
    head_tokens_per_s: float
    verdict: Verdict

    @property
    def ratio(self) -> float:
        """Throughput of head over that of base."""
        return self.head_tokens_per_s / self.base_tokens_per_s


@dataclass(frozen=True, kw_only=True)
class Comparison:
    """Two studies side by side."""

    base: Side
    head: Side
    threshold: float
    """The fall, as a share, that is too small to matter."""
    verdict: Verdict
    matches: Sequence[Match]
    """Configurations that both measured, the fastest of base first."""
    notes: Sequence[str]
    """Sentences on what makes the comparison weaker than it looks."""

    @property
    def ratio(self) -> float:
        """Best throughput of head over that of base."""
        return self.head.tokens_per_s / self.base.tokens_per_s

    @property
    def is_regression(self) -> bool:
        """Whether the best throughput fell by more than the noise and the threshold."""
        return self.verdict is Verdict.REGRESSION

    @property
    def matched_ratio(self) -> float | None:
        """Median of head over base, configuration by configuration; none without a match."""
        return median(match.ratio for match in self.matches) if self.matches else None

    def sentence(self) -> str:
        """The verdict in one line."""
        change = f"{self.ratio - 1:+.1%}".replace("%", " %")
        limit = f"{self.threshold:.0%}".replace("%", " %")
        said = {
            Verdict.REGRESSION: f"the best throughput fell ({change}) by more than the noise",
            Verdict.FASTER: f"the best throughput rose ({change}) by more than the noise",
            Verdict.SAME: f"the best throughput is the same ({change}) within the noise or {limit}",
        }
        return said[self.verdict]


def compare(
    base: StoredStudy | str,
    head: StoredStudy | str,
    *,
    threshold: float = DEFAULT_THRESHOLD,
    anyway: bool = False,
) -> Comparison:
    """Compare two studies of the same question.

    Args:
        base: the study to compare with: open, or `DATABASE:STUDY`, `DATABASE` (its newest study)
            or `STUDY` (of the default database). `STUDY` may be a pattern (`smoke-*`) that several
            studies of one question match.
        head: the study in question.
        threshold: a fall or rise below this share does not count, however sure.
        anyway: also compare studies of different models, recipes or numbers of devices.

    Raises:
        ConfigError: no such study, a threshold outside of 0 to 1, or two different questions.
        StorageProblem: a database cannot be read.
        NothingFeasibleError: one of them has no measured configuration.
    """
    if not 0 <= threshold < 1:
        raise ConfigError(f"the threshold {threshold:g} is not a share from 0 to below 1")
    opened: list[Store] = []
    try:
        first, second = (_side_of(study, opened) for study in (base, head))
        return _compare(first, second, threshold, anyway)
    finally:
        for store in opened:
            store.close()


def parse_reference(text: str, store: str | None = None) -> tuple[str, str | None]:
    """`DATABASE:STUDY`, `DATABASE` or `STUDY` as the database's URL and the study's name.

    `store` is the database of a lone study; left out: `TUNER_STORE` or the default.
    """
    place, colon, study = text.rpartition(":")
    if colon and place and "/" not in study:
        return place, study or None
    if "://" in text or text.endswith(_SUFFIXES) or "/" in text or Path(text).is_file():
        return text, None
    return store or default_store_url(), text


@dataclass(frozen=True)
class _Given:
    """One side as it was asked for: studies of one database."""

    store: Store
    records: Sequence[StudyRecord]

    @property
    def names(self) -> str:
        return ", ".join(repr(record.name) for record in self.records)


def _side_of(study: StoredStudy | str, opened: list[Store]) -> _Given:
    if not isinstance(study, str):
        return _Given(study.store, [study.record])
    url, name = parse_reference(study)
    opened.append(store := open_store(url, read_only=True))
    if name is None or not set(name) & set("*?["):
        return _Given(store, [find_study(store, name)])
    records = [record for record in store.list_studies() if fnmatch.fnmatch(record.name, name)]
    if not records:
        raise ConfigError(f"no study of {store.url} matches {name!r}", hint="see `tuner studies`")
    return _Given(store, records)


def _compare(base: _Given, head: _Given, threshold: float, anyway: bool) -> Comparison:
    every = [*base.records, *head.records]
    differences = [found for record in every[1:] for found in _differences(every[0], record)]
    if differences and not anyway:
        raise ConfigError(
            f"{base.names} and {head.names} ask different questions: {differences[0]}",
            hint="compare studies of one model, recipe and number of devices, or say --anyway",
        )
    boards = [_pooled(side) for side in (base, head)]
    sides = [_side(side, board) for side, board in zip((base, head), boards, strict=True)]
    notes = [*differences, *_machines(base.records[-1], head.records[-1])]
    if boards[0][0].config_key not in {row.config_key for row in boards[1]}:
        notes.append(f"the best configuration of {base.names} was not measured in head")
    if len(base.records) == len(head.records) == 1:
        notes.append(
            "with one study a side, a machine that changed speed in between looks like a change of"
            " the code; measure in turns and compare several (smoke-*)"
        )
    return Comparison(
        base=sides[0],
        head=sides[1],
        threshold=threshold,
        verdict=verdict_of(boards[0][0], boards[1][0], threshold),
        matches=_matches(boards[0], boards[1], threshold),
        notes=list(dict.fromkeys(notes)),
    )


def _pooled(side: _Given) -> list[Pooled]:
    """Configurations of one side, the fastest first.

    Raises:
        NothingFeasibleError: there is none.
    """
    rows: dict[str, list[LeaderboardRow]] = {}
    for record in side.records:
        for row in queries.leaderboard(side.store, record.name):
            rows.setdefault(row.config_key, []).append(row)
    if not rows:
        raise NothingFeasibleError(
            f"study {side.names} has no measured configuration to compare",
            hint="`tuner rank --all` lists why its trials gave no number",
        )
    return sorted(map(_pool, rows.values()), key=lambda row: -row.tokens_per_s)


def _pool(rows: Sequence[LeaderboardRow]) -> Pooled:
    span = combine(
        [Interval(row.tokens_per_s, row.tokens_per_s_low, row.tokens_per_s_high) for row in rows]
    )
    return Pooled(
        config_key=rows[0].config_key,
        label=rows[0].label,
        trial_number=rows[0].trial_number,
        num_trials=sum(row.num_trials for row in rows),
        tokens_per_s=span.median,
        tokens_per_s_low=span.low,
        tokens_per_s_high=span.high,
        step_time_s=median(row.step_time_s for row in rows),
    )


def _side(side: _Given, board: Sequence[Pooled]) -> Side:
    best = board[0]
    return Side(
        studies=[record.name for record in side.records],
        store=side.store.url,
        label=best.label,
        trial_number=best.trial_number,
        tokens_per_s=best.tokens_per_s,
        tokens_per_s_low=best.tokens_per_s_low,
        tokens_per_s_high=best.tokens_per_s_high,
        step_time_s=best.step_time_s,
        num_trials=best.num_trials,
        num_configs=len(board),
    )


def verdict_of(base: Pooled, head: Pooled, threshold: float) -> Verdict:
    """What became of a configuration: a change must be both sure and above the threshold."""
    ratio = head.tokens_per_s / base.tokens_per_s
    if head.tokens_per_s_high < base.tokens_per_s_low and ratio < 1 - threshold:
        return Verdict.REGRESSION
    if head.tokens_per_s_low > base.tokens_per_s_high and ratio > 1 + threshold:
        return Verdict.FASTER
    return Verdict.SAME


def _matches(base: Sequence[Pooled], head: Sequence[Pooled], threshold: float) -> list[Match]:
    others = {row.config_key: row for row in head}
    return [
        Match(
            label=row.label,
            base_tokens_per_s=row.tokens_per_s,
            head_tokens_per_s=others[row.config_key].tokens_per_s,
            verdict=verdict_of(row, others[row.config_key], threshold),
        )
        for row in base
        if row.config_key in others
    ]


def _differences(base: StudyRecord, head: StudyRecord) -> list[str]:
    """What makes two studies different questions, one sentence each."""
    found = []
    for section in ("model", "training"):
        found += _unequal(section, getattr(base, section), getattr(head, section))
    devices = [_num_devices(record.cluster) for record in (base, head)]
    if devices[0] != devices[1]:
        found.append(f"devices are {devices[0]} and {devices[1]}")
    if (base.launcher == "simulated") != (head.launcher == "simulated"):
        found.append("one of them was simulated")
    return found


def _machines(base: StudyRecord, head: StudyRecord) -> list[str]:
    """Differences of the machines, which a user may be after or may have overlooked."""
    found = _unequal("cluster", _of_devices(base.cluster), _of_devices(head.cluster))
    for name in ("host", "cpu"):
        values = [record.provenance.get(name) for record in (base, head)]
        if all(values) and values[0] != values[1]:
            found.append(f"the {name} is {values[0]} and {values[1]}")
    versions = [dict(record.provenance.get("versions") or {}) for record in (base, head)]
    return found + (_unequal("version", *versions) if all(versions) else [])


def _of_devices(cluster: Mapping[str, Any]) -> dict[str, Any]:
    names = ("device_kind", "device_name", "threads_per_device")
    return {name: cluster[name] for name in names if name in cluster}


def _num_devices(cluster: Mapping[str, Any]) -> int:
    return math.prod(int(cluster.get(name, 1)) for name in ("num_nodes", "devices_per_node"))


def _unequal(section: str, base: Mapping[str, Any], head: Mapping[str, Any]) -> list[str]:
    names = sorted({*base, *head})
    return [
        f"{section}.{name} is {base.get(name)} and {head.get(name)}"
        for name in names
        if base.get(name) != head.get(name)
    ]
