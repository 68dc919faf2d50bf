"""Compares the best measured throughput of two studies: did it fall by more than the noise?

Each configuration has the median of its trials and an interval that says how far two medians must
lie apart to differ (`results_db.intervals`). The best fell when its whole interval lies below that
of the other study's best, and by more than a threshold that the user sets.
"""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path
from statistics import median
from typing import Any, Protocol

from results_db import queries
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

    study: str
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
    """Configurations of the study that gave a number."""


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
            or `STUDY` (of the default database).
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
        first, second = (_opened(study, opened) for study in (base, head))
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


def _opened(study: StoredStudy | str, opened: list[Store]) -> tuple[Store, StudyRecord]:
    if not isinstance(study, str):
        return study.store, study.record
    url, name = parse_reference(study)
    opened.append(store := open_store(url, read_only=True))
    return store, find_study(store, name)


def _compare(
    base: tuple[Store, StudyRecord],
    head: tuple[Store, StudyRecord],
    threshold: float,
    anyway: bool,
) -> Comparison:
    differences = _differences(base[1], head[1])
    if differences and not anyway:
        raise ConfigError(
            f"{base[1].name!r} and {head[1].name!r} ask different questions: {differences[0]}",
            hint="compare studies of one model, recipe and number of devices, or say --anyway",
        )
    boards = [queries.leaderboard(store, record.name) for store, record in (base, head)]
    for (_, record), board in zip((base, head), boards, strict=True):
        if not board:
            raise NothingFeasibleError(
                f"study {record.name!r} has no measured configuration to compare",
                hint="`tuner rank --all` lists why its trials gave no number",
            )
    fastest = [max(board, key=lambda row: row.tokens_per_s) for board in boards]
    sides = [
        _side(store, record, row, len(board))
        for (store, record), row, board in zip((base, head), fastest, boards, strict=True)
    ]
    matches = _matches(boards[0], boards[1], threshold)
    notes = [*differences, *_machines(base[1], head[1])]
    if fastest[0].config_key not in {row.config_key for row in boards[1]}:
        notes.append(f"the best configuration of {base[1].name!r} was not measured in head")
    return Comparison(
        base=sides[0],
        head=sides[1],
        threshold=threshold,
        verdict=_verdict(fastest[0], fastest[1], threshold),
        matches=matches,
        notes=notes,
    )


def _side(store: Store, record: StudyRecord, row: LeaderboardRow, num_configs: int) -> Side:
    return Side(
        study=record.name,
        store=store.url,
        label=row.label,
        trial_number=row.trial_number,
        tokens_per_s=row.tokens_per_s,
        tokens_per_s_low=row.tokens_per_s_low,
        tokens_per_s_high=row.tokens_per_s_high,
        step_time_s=row.step_time_s,
        num_trials=row.num_trials,
        num_configs=num_configs,
    )


def _verdict(base: LeaderboardRow, head: LeaderboardRow, threshold: float) -> Verdict:
    ratio = head.tokens_per_s / base.tokens_per_s
    if head.tokens_per_s_high < base.tokens_per_s_low and ratio < 1 - threshold:
        return Verdict.REGRESSION
    if head.tokens_per_s_low > base.tokens_per_s_high and ratio > 1 + threshold:
        return Verdict.FASTER
    return Verdict.SAME


def _matches(
    base: Sequence[LeaderboardRow], head: Sequence[LeaderboardRow], threshold: float
) -> list[Match]:
    others = {row.config_key: row for row in head}
    pairs = [(row, others[row.config_key]) for row in base if row.config_key in others]
    return [
        Match(
            label=row.label,
            base_tokens_per_s=row.tokens_per_s,
            head_tokens_per_s=other.tokens_per_s,
            verdict=_verdict(row, other, threshold),
        )
        for row, other in sorted(pairs, key=lambda pair: -pair[0].tokens_per_s)
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
