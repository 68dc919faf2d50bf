"""Care for a database: facts about it, backup, pruning."""

from dataclasses import dataclass
from datetime import datetime
from pathlib import Path

from sqlalchemy import Connection, delete, exists, func, select
from sqlalchemy.sql.elements import ColumnElement

from results_db import study_rows
from results_db.copying import copy_sqlite
from results_db.errors import AlreadyExists, Busy
from results_db.filesystems import network_filesystem
from results_db.merging import merge
from results_db.records import TrialStatus
from results_db.schema import (
    SCHEMA_VERSION,
    breakdowns,
    collectives,
    metadata,
    rank_coordinates,
    rank_stages,
    steps,
    studies,
    study_configs,
    timeline,
    trials,
)
from results_db.store import Store

DETAIL_TABLES = (steps, timeline, collectives, breakdowns, rank_coordinates, rank_stages)
"""What pruning may delete of a trial: all that no leaderboard, failure or summary needs."""


@dataclass(frozen=True, kw_only=True)
class DatabaseInfo:
    """Facts about a database; `size_bytes` counts the SQLite file with its log, or the server's."""

    url: str
    kind: str
    schema_version: str
    size_bytes: int
    network_filesystem: str | None
    num_rows: dict[str, int]
    trials_by_status: dict[str, int]


def info(store: Store) -> DatabaseInfo:
    """Count rows and measure the size."""
    with store.database.read() as connection:
        counts = {
            name: int(connection.execute(select(func.count()).select_from(table)).scalar_one())
            for name, table in sorted(metadata.tables.items())
        }
        by_status = select(trials.c.status, func.count()).group_by(trials.c.status)
        statuses = {status: int(count) for status, count in connection.execute(by_status)}
        size = 0
        if not store.database.is_sqlite:
            size_of = func.pg_database_size(func.current_database())
            size = int(connection.execute(select(size_of)).scalar_one())
    path = Path(store.url)
    if store.database.is_sqlite:
        files = [path, path.with_name(path.name + "-wal")]
        size = sum(item.stat().st_size for item in files if item.exists())
    return DatabaseInfo(
        url=store.url,
        kind="SQLite" if store.database.is_sqlite else "PostgreSQL",
        schema_version=SCHEMA_VERSION,
        size_bytes=size,
        network_filesystem=network_filesystem(path) if store.database.is_sqlite else None,
        num_rows=counts,
        trials_by_status=statuses,
    )


def backup(store: Store, target: Path) -> None:
    """Copy a database into a new SQLite file while others go on using it.

    SQLite files are copied page by page; a PostgreSQL database row by row in one snapshot.

    Raises:
        AlreadyExists: the target file is there.
        DatabaseUnreadable: it cannot be written, or the copy is damaged.
    """
    if store.database.is_sqlite:
        copy_sqlite(Path(store.url), target)
        return
    if target.exists():
        raise AlreadyExists(f"{target} exists", "name a new file")
    with Store.open(target) as copy:
        merge(store, copy)


@dataclass(frozen=True, kw_only=True)
class PruneReport:
    """What pruning deleted, or would delete."""

    num_studies: int
    num_trials: int
    num_detail_rows: int


def prune_study(store: Store, study: str, *, dry_run: bool) -> PruneReport:
    """Delete a study with all its trials.

    Raises:
        NotFound: there is no such study.
        Busy: a controller runs it.
    """

    def work(connection: Connection) -> PruneReport:
        study_id = study_rows.find_id(connection, study)
        row = study_rows.lock(connection, study_id)
        if row["lease_host"] is not None:
            raise Busy(f"Study {study!r} is being run", "stop its controller first")
        counted = select(func.count()).select_from(trials).where(trials.c.study_id == study_id)
        report = PruneReport(
            num_studies=1,
            num_trials=int(connection.execute(counted).scalar_one()),
            num_detail_rows=0,
        )
        if not dry_run:
            connection.execute(delete(studies).where(studies.c.id == study_id))
        return report

    return store.database.write(work)


def prune_details(store: Store, before: datetime, keep_best: int, *, dry_run: bool) -> PruneReport:
    """Delete steps, timelines and the like of trials that ended before a moment.

    Summaries, measurements and failures stay, so no leaderboard changes.

    Args:
        store: where.
        before: trials that ended earlier lose their details.
        keep_best: so many of the fastest configurations of every study keep them.
        dry_run: only count.
    """

    def work(connection: Connection) -> PruneReport:
        victims = select(trials.c.id).where(_is_old(before), ~_is_among_best(keep_best))
        count = 0
        for table in DETAIL_TABLES:
            mine = table.c.trial_id.in_(victims)
            if dry_run:
                query = select(func.count()).select_from(table).where(mine)
                count += int(connection.execute(query).scalar_one())
            else:
                count += connection.execute(delete(table).where(mine)).rowcount
        affected = connection.execute(select(func.count()).select_from(victims.subquery()))
        return PruneReport(
            num_studies=0, num_trials=int(affected.scalar_one()), num_detail_rows=count
        )

    return store.database.write(work)


def _is_old(before: datetime) -> ColumnElement[bool]:
    ended = [status.value for status in TrialStatus if status.is_terminal]
    return trials.c.status.in_(ended) & (trials.c.finished_at < before)


def _is_among_best(count: int) -> ColumnElement[bool]:
    """Whether the trial's configuration is one of the fastest `count` of its study."""
    mine = study_configs.alias("mine")
    faster = (
        select(func.count())
        .select_from(study_configs)
        .where(
            study_configs.c.study_id == mine.c.study_id,
            study_configs.c.tokens_per_s > mine.c.tokens_per_s,
        )
        .scalar_subquery()
    )
    return exists(
        select(mine.c.config_id).where(
            mine.c.study_id == trials.c.study_id,
            mine.c.config_id == trials.c.config_id,
            faster < count,
        )
    )


def compact(store: Store) -> None:
    """Give deleted space back to the file system and refresh the planner's statistics."""
    raw = store.database.engine.raw_connection()
    try:
        driver = raw.driver_connection
        if driver is None:
            return
        if not store.database.is_sqlite:
            driver.autocommit = True
        cursor = driver.cursor()
        cursor.execute("VACUUM")
        cursor.execute("ANALYZE")
        cursor.close()
    finally:
        raw.invalidate()
        raw.close()


def analyze(store: Store) -> None:
    """Write SQLite's log into its file, and refresh what a planner knows of a database.

    On PostgreSQL the leaderboard's table is vacuumed too: only then do indexes answer alone, which
    positions of a whole study need.
    """
    raw = store.database.engine.raw_connection()
    try:
        driver = raw.driver_connection
        if driver is None:
            return
        cursor = driver.cursor()
        if store.database.is_sqlite:
            cursor.execute("PRAGMA wal_checkpoint(TRUNCATE)")
            # a sample suffices: the indexes are regular, and a whole pass reads the whole file
            cursor.execute("PRAGMA analysis_limit=1000")
        else:
            driver.autocommit = True
            cursor.execute(f"VACUUM {study_configs.name}")
        cursor.execute("ANALYZE")
        cursor.close()
    finally:
        raw.invalidate()
        raw.close()
