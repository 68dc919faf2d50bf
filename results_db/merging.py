"""Merging databases without losing or doubling a trial.

A study is the same in two databases when its `uuid` is, whatever it is called. A trial of it is the
same when configuration and the microsecond at which it was queued are. Copies that went on
separately keep the trials of both sides, also when both ran one that was queued in the original; a
trial that has ended on one side only is taken from there. The source is read in one snapshot; every
study is one transaction of the target.
"""

from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Any

from sqlalchemy import Connection, Table, func, insert, select, update

from results_db import median_rows, study_rows, trial_rows
from results_db.bulk import insert_or_ignore, insert_rows, intern
from results_db.records import TrialStatus
from results_db.schema import (
    breakdowns,
    clusters,
    collectives,
    failure_reports,
    measurements,
    models,
    notes,
    parallel_configs,
    predictions,
    provenance,
    rank_coordinates,
    rank_stages,
    ranks,
    software,
    software_versions,
    steps,
    studies,
    study_tags,
    timeline,
    trial_tags,
    trials,
    untried_points,
)
from results_db.store import Store

_CHUNK = 500
_OF_TRIAL = (failure_reports, steps, ranks, rank_coordinates, rank_stages, breakdowns,
             collectives, timeline, trial_tags)  # fmt: skip
_OF_STUDY = (provenance, predictions, study_tags)
_OPEN = (TrialStatus.QUEUED.value, TrialStatus.RUNNING.value)
_Key = tuple[str, datetime]


@dataclass
class MergeReport:
    """What a merge did."""

    num_studies_added: int = 0
    num_trials_added: int = 0
    num_trials_completed: int = 0
    """Trials that were open in the target and had ended in the source."""
    num_trials_known: int = 0


def merge(source: Store, target: Store) -> MergeReport:
    """Bring everything of `source` into `target`; doing it twice changes nothing more."""
    report = MergeReport()
    with source.database.read() as reading:
        for study in reading.execute(select(studies).order_by(studies.c.id)).mappings().all():
            merger = _StudyMerger(reading, dict(study))
            found = target.database.write(merger.run)
            report.num_studies_added += found.num_studies_added
            report.num_trials_added += found.num_trials_added
            report.num_trials_completed += found.num_trials_completed
            report.num_trials_known += found.num_trials_known
    return report


class _StudyMerger:
    """One study's way into the target; `run` is the work of one write transaction."""

    def __init__(self, reading: Connection, study: dict[str, Any]) -> None:
        self.reading = reading
        self.study = study
        self.configs: dict[int, int] = {}
        self.software: dict[int, int] = {}

    def run(self, target: Connection) -> MergeReport:
        report = MergeReport()
        study_id = self._study_id(target, report)
        study_rows.lock(target, study_id)
        self.configs = self._map_configs(target)
        known = _known_trials(target, study_id)
        changed: set[int] = set()
        for rows in self._trial_chunks():
            mapping = self._place_trials(target, study_id, rows, known, report)
            self._copy_details(target, mapping)
            changed |= {self.configs[row["config_id"]] for row in rows if row["id"] in mapping}
        self._copy_of_study(target, study_id)
        median_rows.refresh_study_configs(target, study_id, sorted(changed))
        last = select(func.coalesce(func.max(trials.c.number), 0)).where(
            trials.c.study_id == study_id
        )
        number = max(target.execute(last).scalar_one(), self.study["num_trials"])
        current = studies.c.id == study_id
        target.execute(
            update(studies).where(current, studies.c.num_trials < number).values(num_trials=number)
        )
        return report

    def _study_id(self, target: Connection, report: MergeReport) -> int:
        same = select(studies.c.id).where(studies.c.uuid == self.study["uuid"])
        found = target.execute(same).scalar_one_or_none()
        if found is not None:
            return int(found)
        values = {name: value for name, value in self.study.items() if name != "id"}
        values |= dict.fromkeys((name for name in values if name.startswith("lease_")), None)
        for table, column in ((models, "model_id"), (clusters, "cluster_id")):
            row = self.reading.execute(select(table).where(table.c.id == values[column]))
            spec = {name: value for name, value in row.mappings().one().items() if name != "id"}
            values[column] = intern(target, table, "spec_hash", spec)
        taken = select(studies.c.id).where(studies.c.name == values["name"])
        if target.execute(taken).first() is not None:
            values["name"] = f"{values['name']} ({self.study['uuid'][:8]})"
        report.num_studies_added = 1
        return int(target.execute(insert(studies).returning(studies.c.id), values).scalar_one())

    def _map_configs(self, target: Connection) -> dict[int, int]:
        """Ids of the target by ids of the source, for every configuration the study names."""
        mine = self.study["id"]
        used = select(trials.c.config_id).where(trials.c.study_id == mine)
        named = select(untried_points.c.config_id).where(untried_points.c.study_id == mine)
        query = select(parallel_configs).where(parallel_configs.c.id.in_(used.union(named)))
        rows = {row["config_key"]: row for row in self.reading.execute(query).mappings()}
        plain = [
            {name: value for name, value in rows[key].items() if name != "id"}
            for key in sorted(rows)
        ]
        for start in range(0, len(plain), _CHUNK):
            insert_or_ignore(target, parallel_configs, plain[start : start + _CHUNK])
        ids = trial_rows.known_config_ids(target, sorted(rows))
        return {int(rows[key]["id"]): found for key, found in ids.items()}

    def _trial_chunks(self) -> Iterator[Sequence[Mapping[Any, Any]]]:
        last = 0
        base = (
            select(trials, parallel_configs.c.config_key)
            .join(parallel_configs, parallel_configs.c.id == trials.c.config_id)
            .where(trials.c.study_id == self.study["id"])
            .order_by(trials.c.number)
            .limit(_CHUNK)
        )
        while rows := self.reading.execute(base.where(trials.c.number > last)).mappings().all():
            yield rows
            last = rows[-1]["number"]

    def _place_trials(
        self,
        target: Connection,
        study_id: int,
        rows: Sequence[Mapping[Any, Any]],
        known: "_KnownTrials",
        report: MergeReport,
    ) -> dict[int, int]:
        """Insert or update trials; maps source ids to target ids of those whose details come."""
        mapping: dict[int, int] = {}
        for row in rows:
            is_known, open_id = known.find(row)
            values = {name: row[name] for name in trials.columns.keys() if name != "id"}  # noqa: SIM118
            values |= {"study_id": study_id, "config_id": self.configs[row["config_id"]]}
            if is_known:
                report.num_trials_known += 1
            elif open_id is None:
                known.make_room(values)
                added = target.execute(insert(trials).returning(trials.c.id), values).scalar_one()
                mapping[row["id"]] = int(added)
                report.num_trials_added += 1
            else:
                for name in ("number", "repeat", "attempt"):
                    del values[name]
                target.execute(update(trials).where(trials.c.id == open_id).values(values))
                mapping[row["id"]] = open_id
                report.num_trials_completed += 1
        return mapping

    def _copy_details(self, target: Connection, mapping: Mapping[int, int]) -> None:
        if not mapping:
            return
        self._copy_measurements(target, mapping)
        for table in _OF_TRIAL:
            names = tuple(table.columns.keys())
            wanted = select(table).where(table.c.trial_id.in_(mapping))
            rows = self.reading.execute(wanted).all()
            insert_rows(target, table, names, [(mapping[row[0]], *row[1:]) for row in rows])

    def _copy_measurements(self, target: Connection, mapping: Mapping[int, int]) -> None:
        wanted = select(measurements).where(measurements.c.trial_id.in_(mapping))
        rows = [dict(row) for row in self.reading.execute(wanted).mappings()]
        for row in rows:
            row["trial_id"] = mapping[row["trial_id"]]
            row["software_id"] = self._software_id(target, row["software_id"])
        names = tuple(measurements.columns.keys())
        values = [tuple(row[name] for name in names) for row in rows]
        insert_rows(target, measurements, names, values)

    def _software_id(self, target: Connection, source_id: int | None) -> int | None:
        if source_id is None:
            return None
        if source_id not in self.software:
            query = select(software.c.versions_hash).where(software.c.id == source_id)
            row = {"versions_hash": self.reading.execute(query).scalar_one()}
            mine = intern(target, software, "versions_hash", row)
            packages = select(software_versions).where(software_versions.c.software_id == source_id)
            found = [
                {**item, "software_id": mine} for item in self.reading.execute(packages).mappings()
            ]
            insert_or_ignore(target, software_versions, found)
            self.software[source_id] = mine
        return self.software[source_id]

    def _copy_of_study(self, target: Connection, study_id: int) -> None:
        mine = self.study["id"]
        for table in (*_OF_STUDY, untried_points):
            rows = [dict(row) for row in _rows_of_study(self.reading, table, mine)]
            for row in rows:
                row["study_id"] = study_id
                if table is untried_points:
                    row["config_id"] = self.configs[row["config_id"]]
            for start in range(0, len(rows), _CHUNK):
                insert_or_ignore(target, table, rows[start : start + _CHUNK])
        self._copy_notes(target, study_id)

    def _copy_notes(self, target: Connection, study_id: int) -> None:
        known = {
            (row["created_at"], row["author"], row["body"])
            for row in _rows_of_study(target, notes, study_id)
        }
        numbers = dict(
            self.reading.execute(
                select(trials.c.id, trials.c.queued_at).where(
                    trials.c.study_id == self.study["id"],
                    trials.c.id.in_(
                        select(notes.c.trial_id).where(notes.c.study_id == self.study["id"])
                    ),
                )
            ).all()
        )
        for row in _rows_of_study(self.reading, notes, self.study["id"]):
            if (row["created_at"], row["author"], row["body"]) in known:
                continue
            values = {name: value for name, value in row.items() if name != "id"}
            values["study_id"] = study_id
            if row["trial_id"] is not None:
                mine = select(trials.c.id).where(
                    trials.c.study_id == study_id,
                    trials.c.queued_at == numbers[row["trial_id"]],
                )
                values["trial_id"] = target.execute(mine.limit(1)).scalar_one_or_none()
            target.execute(insert(notes), values)


def _rows_of_study(connection: Connection, table: Table, study_id: int) -> Sequence[Any]:
    return connection.execute(select(table).where(table.c.study_id == study_id)).mappings().all()


class _KnownTrials:
    """The trials that a study of the target holds, and the places that are taken in it."""

    def __init__(self, rows: Sequence[Any]) -> None:
        self.by_key: dict[_Key, list[Any]] = defaultdict(list)
        self.numbers: set[int] = set()
        self.places: set[tuple[int, int, int]] = set()
        for row in rows:
            self.by_key[row.config_key, row.queued_at].append(row)
            self.numbers.add(row.number)
            self.places.add((row.config_id, row.repeat, row.attempt))
        self.last = max(self.numbers, default=0)

    def find(self, row: Mapping[Any, Any]) -> tuple[bool, int | None]:
        """Whether a trial is here, and else the id of the same trial while it is still open."""
        twins = self.by_key.get((row["config_key"], row["queued_at"]), [])
        if row["status"] in _OPEN:
            return bool(twins), None
        if any(twin.finished_at == row["finished_at"] for twin in twins):
            return True, None
        # both ended, at different moments: copies of a queued trial ran twice, and both count
        return False, next((twin.id for twin in twins if twin.status in _OPEN), None)

    def make_room(self, values: dict[str, Any]) -> None:
        """Give a trial whose number or (repeat, attempt) is taken the next free one."""
        if values["number"] in self.numbers:
            values["number"] = self.last + 1
        self.numbers.add(values["number"])
        self.last = max(self.last, values["number"])
        while (values["config_id"], values["repeat"], values["attempt"]) in self.places:
            values["repeat"] += 1
        self.places.add((values["config_id"], values["repeat"], values["attempt"]))


def _known_trials(connection: Connection, study_id: int) -> _KnownTrials:
    query = (
        select(
            trials.c.id,
            trials.c.number,
            trials.c.status,
            trials.c.queued_at,
            trials.c.finished_at,
            trials.c.config_id,
            trials.c.repeat,
            trials.c.attempt,
            parallel_configs.c.config_key,
        )
        .join(parallel_configs, parallel_configs.c.id == trials.c.config_id)
        .where(trials.c.study_id == study_id)
    )
    return _KnownTrials(connection.execute(query).all())
