"""`Store`: the only writer of the results database. Every method is one transaction.

A store may be used by several threads; it must not be used in a process forked from the one that
opened it. Reads see one consistent state and never block a writer.
"""

from collections.abc import Collection, Iterable, Mapping, Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import Self

from sqlalchemy import Connection, insert

from results_db import detail_rows, outcome_rows, study_rows, trial_rows, trial_summaries, versions
from results_db.bulk import insert_or_ignore
from results_db.engine import Database, parse_url
from results_db.errors import NotFound
from results_db.records import (
    FailureRow,
    Lease,
    PredictionRow,
    RankRow,
    StepRow,
    StudyRecord,
    StudyStatus,
    TrialOutcome,
    TrialRecord,
    TrialStatus,
    TrialSummary,
    UntriedRow,
)
from results_db.schema import SCHEMA_VERSION, notes, study_tags, trial_tags, trials


class Store:
    """An open results database; made by `results_db.open`."""

    def __init__(self, database: Database) -> None:
        self.database = database

    @classmethod
    def open(cls, url_or_path: str | Path, *, create: bool = True, read_only: bool = False) -> Self:
        """Open a database, made with its tables when it is absent and `create` is true.

        Raises:
            NotFound: it does not exist and may not be made.
            DatabaseUnreadable: it is no results database, is damaged, or cannot be reached.
            NewerDatabase: a later version of the program wrote it.
            OutdatedDatabase: it needs `tuner db upgrade`.
        """
        database = Database(parse_url(url_or_path), create=create, read_only=read_only)
        try:
            with database.read() as connection:
                version = versions.stored_version(connection)
            if version is None and create and not read_only:
                database.write(versions.create_tables)
                version = SCHEMA_VERSION
            versions.check_version(version, database.shown)
        except BaseException:
            database.close()
            raise
        return cls(database)

    @property
    def url(self) -> str:
        """Where the database is, without secrets."""
        return self.database.shown

    def close(self) -> None:
        """Give up all connections."""
        self.database.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *exception: object) -> None:
        self.close()

    # studies

    def create_study(self, study: StudyRecord) -> StudyRecord:
        """Store a new study; returns it with its id. Raises `AlreadyExists` for a taken name."""

        def work(connection: Connection) -> StudyRecord:
            return study_rows.find(connection, study_rows.create(connection, study))

        return self.database.write(work)

    def get_study(self, name_or_id: str | int) -> StudyRecord:
        """A study by name or id; raises `NotFound`."""
        return self.database.query(lambda conn: study_rows.find(conn, name_or_id))

    def list_studies(self) -> list[StudyRecord]:
        """All studies, oldest first."""
        return self.database.query(lambda conn: study_rows.find_all(conn))

    def set_study_status(self, study_id: int, status: StudyStatus) -> None:
        """Change a study's status; completing it sets `finished_at`."""
        self.database.write(lambda conn: study_rows.set_status(conn, study_id, status))

    def claim_study(self, study_id: int, lease: Lease, takeover: bool = False) -> None:
        """Become the one controller of a study.

        Raises:
            Busy: another controller holds it. Whether that one is dead is the caller's to judge
                (`leases.lease_is_dead`), who then claims with `takeover`.
        """
        self.database.write(lambda conn: study_rows.claim(conn, study_id, lease, takeover=takeover))

    def study_lease(self, study_id: int) -> Lease | None:
        """The controller that holds a study, if any; whether it lives is the caller's to judge."""
        return self.database.query(lambda conn: study_rows.holder(conn, study_id))

    def heartbeat_study(self, study_id: int, when: datetime, lease: Lease) -> None:
        """Say that the study's controller lives; raises `IllegalTransition` once it lost it."""
        self.database.write(lambda conn: study_rows.beat(conn, study_id, when, lease))

    def release_study(self, study_id: int, lease: Lease | None = None) -> None:
        """Give a study up; with a lease only when that is its owner."""
        self.database.write(lambda conn: study_rows.release(conn, study_id, lease))

    # the life of a trial

    def add_trial(self, trial: TrialRecord) -> TrialRecord:
        """Queue a trial; returns it with id and number.

        Raises:
            AlreadyExists: this configuration, repeat and attempt is in the study already.
            InvalidRecord: a knob is unknown or of the wrong type.
        """
        return self.add_trials([trial])[0]

    def add_trials(
        self, records: Sequence[TrialRecord], predictions: Sequence[PredictionRow] = ()
    ) -> list[TrialRecord]:
        """Queue trials of one study in one transaction, all or none; as `add_trial`.

        What was predicted of them is stored with them.
        """
        if not records:
            return []

        def work(connection: Connection) -> list[TrialRecord]:
            added = trial_rows.add(connection, records)
            detail_rows.write_predictions(connection, records[0].study_id, predictions)
            return added

        return self.database.write(work)

    def claim_trial(self, trial_id: int, lease: Lease, folder: str | Path) -> datetime:
        """QUEUED -> RUNNING; returns its start.

        Raises:
            IllegalTransition: it is not queued (any more).
        """
        return self.database.write(
            lambda conn: trial_rows.claim(conn, trial_id, lease, str(folder))
        )

    def claim_trials(self, folders: Mapping[int, str | Path], lease: Lease) -> list[datetime]:
        """Claim trials, given by id with their folders, all or none; as `claim_trial`."""
        return self.database.write(
            lambda conn: [
                trial_rows.claim(conn, trial_id, lease, str(folder))
                for trial_id, folder in folders.items()
            ]
        )

    def heartbeat(
        self, trial_ids: int | Collection[int], when: datetime, lease: Lease | None = None
    ) -> int:
        """Say that the owner of running trials lives; returns how many of them run (for it)."""
        ids = [trial_ids] if isinstance(trial_ids, int) else sorted(trial_ids)
        return self.database.write(lambda conn: trial_rows.beat(conn, ids, when, lease))

    def requeue_trial(self, trial_id: int, lease: Lease | None = None) -> None:
        """RUNNING -> QUEUED after its owner's death; with a lease only while that one owns it."""
        self.database.write(lambda conn: trial_rows.requeue(conn, trial_id, lease))

    def finish_trial(
        self,
        trial_id: int,
        outcome: TrialOutcome,
        finished_at: datetime | None = None,
        lease: Lease | None = None,
    ) -> None:
        """Make a trial terminal and store all it left, in one transaction.

        Raises:
            IllegalTransition: it is terminal already, or did not run.
            LeaseLost: `lease` is given and another process owns the trial now.
            InvalidRecord: the outcome contradicts itself or holds a number that is not finite.
        """
        self.finish_trials([(trial_id, outcome, finished_at)], lease)

    def finish_trials(
        self,
        ended: Sequence[tuple[int, TrialOutcome, datetime | None]],
        lease: Lease | None = None,
    ) -> None:
        """Make trials terminal, all or none; given as (id, outcome, time of the end or none = now).

        Raises as `finish_trial` does.
        """
        now = datetime.now(UTC)
        for _, outcome, _ in ended:
            outcome_rows.check(outcome)
        stored = [(trial_id, outcome, when or now) for trial_id, outcome, when in ended]
        if stored:
            self.database.write(lambda conn: outcome_rows.finish(conn, stored, lease))

    def add_results(
        self, study_id: int, results: Iterable[tuple[TrialRecord, TrialOutcome]]
    ) -> list[int]:
        """Store trials that ran elsewhere, all or none; returns their ids in order."""
        pairs = list(results)
        for _, outcome in pairs:
            outcome_rows.check(outcome)
        return self.database.write(lambda conn: outcome_rows.add_finished(conn, study_id, pairs))

    # reads

    def trials(
        self, study_id: int, statuses: Collection[TrialStatus] | None = None
    ) -> list[TrialSummary]:
        """Trials of a study by number, all or those of some statuses."""
        query = trial_summaries.summary_query().where(trials.c.study_id == study_id)
        if statuses is not None:
            query = query.where(trials.c.status.in_([status.value for status in statuses]))
        return self.database.query(
            lambda conn: trial_summaries.summaries(conn, query.order_by(trials.c.number))
        )

    def trials_by_id(self, trial_ids: Collection[int]) -> list[TrialSummary]:
        """Trials by their ids, in the order of their ids; those that do not exist are left out."""
        return self.database.query(lambda conn: trial_summaries.by_ids(conn, sorted(trial_ids)))

    def running_trials(self, study_id: int) -> list[TrialSummary]:
        """Trials of a study that run, with their leases."""
        return self.trials(study_id, [TrialStatus.RUNNING])

    def trial(self, study: int | str, number: int) -> TrialSummary:
        """One trial by its number in a study; raises `NotFound`."""

        def work(connection: Connection) -> list[TrialSummary]:
            study_id = study_rows.find_id(connection, study)
            query = trial_summaries.summary_query().where(
                trials.c.study_id == study_id, trials.c.number == number
            )
            return trial_summaries.summaries(connection, query)

        found = self.database.query(work)
        if not found:
            raise NotFound(f"Study {study!r} has no trial {number}", "see: tuner rank")
        return found[0]

    def steps(self, trial_id: int) -> list[StepRow]:
        """Steps of a trial in order."""
        return self.database.query(lambda conn: detail_rows.read_steps(conn, trial_id))

    def ranks(self, trial_id: int) -> list[RankRow]:
        """Ranks of a trial in order."""
        return self.database.query(lambda conn: detail_rows.read_ranks(conn, trial_id))

    def failures(self, trial_id: int) -> list[FailureRow]:
        """Failures of a trial, the cause first."""
        return self.database.query(lambda conn: detail_rows.read_failures(conn, trial_id))

    # what is known of points that did not run

    def add_predictions(self, study_id: int, rows: Sequence[PredictionRow]) -> None:
        """Store predictions; a later one of the same cost model replaces an earlier."""
        self.database.write(lambda conn: detail_rows.write_predictions(conn, study_id, rows))

    def predictions(self, study_id: int) -> list[PredictionRow]:
        """Predictions of a study."""
        return self.database.query(lambda conn: detail_rows.read_predictions(conn, study_id))

    def add_untried(self, study_id: int, rows: Sequence[UntriedRow]) -> None:
        """Store points that were not run, with the rule and reason."""
        self.database.write(lambda conn: detail_rows.write_untried(conn, study_id, rows))

    def untried(self, study_id: int) -> list[UntriedRow]:
        """Points of a study that were not run."""
        return self.database.query(lambda conn: detail_rows.read_untried(conn, study_id))

    # words of the users

    def tag_study(self, study_id: int, tag: str) -> None:
        """Put a tag on a study; twice is once."""
        row = {"study_id": study_id, "tag": tag}
        self.database.write(lambda conn: insert_or_ignore(conn, study_tags, [row]))

    def tag_trial(self, trial_id: int, tag: str) -> None:
        """Put a tag on a trial; twice is once."""
        row = {"trial_id": trial_id, "tag": tag}
        self.database.write(lambda conn: insert_or_ignore(conn, trial_tags, [row]))

    def add_note(
        self, study_id: int, body: str, *, author: str = "", trial_id: int | None = None
    ) -> None:
        """Write something about a study or one of its trials."""
        row = {
            "study_id": study_id,
            "trial_id": trial_id,
            "author": author,
            "body": body,
            "created_at": datetime.now(UTC),
        }
        self.database.write(lambda conn: conn.execute(insert(notes), row).rowcount)
