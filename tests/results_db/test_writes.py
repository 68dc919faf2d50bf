"""What a write costs, what it remembers, and what happens when the database is away."""

import shutil
import threading
import time
from dataclasses import replace
from pathlib import Path

import pytest
from sqlalchemy import event, text

import results_db
from results_db import engine, known_ids
from results_db.checks import check
from results_db.errors import (
    AlreadyExists,
    Busy,
    DatabaseUnreadable,
    IllegalTransition,
    InvalidRecord,
    Locked,
    NotFound,
    ReadOnly,
    Unreachable,
)
from results_db.queries import leaderboard
from results_db.records import (
    FailureRow,
    PredictionRow,
    RankRow,
    TrialOutcome,
    TrialRecord,
    TrialStatus,
)
from results_db.testing.postgres import private_postgres


def record(study, n=0, **fields):
    return TrialRecord(
        study_id=study.id, config_key=f"k{n}", knobs={"dp": n + 1}, measured_steps=3, **fields
    )


class Counted:
    """The statements that a store sends while it is watched: each is a trip to the server."""

    def __init__(self, store):
        self.statements = []
        event.listen(store.database.engine, "before_cursor_execute", self._note)

    def _note(self, _connection, _cursor, statement, *_):
        if not statement.startswith("BEGIN"):
            self.statements.append(statement.split()[0])

    def take(self):
        taken, self.statements = self.statements, []
        return taken


def test_a_trial_takes_few_trips_to_the_server(store, make_study, make_outcome, lease):
    """Ids of known configurations and software are remembered; all rows of a table go at once."""
    study = store.create_study(make_study())
    store.add_results(study.id, [(record(study), make_outcome())])
    counted = Counted(store)
    store.add_results(study.id, [(record(study, repeat=1), make_outcome())])
    # PostgreSQL takes the few rows of all tables at once; SQLite has no trips to save
    is_sqlite = store.database.is_sqlite
    left = ["INSERT"] * 2 if is_sqlite else ["WITH"]  # measurement, steps
    added = ["UPDATE", "INSERT", *left] if is_sqlite else ["WITH"]  # number and trial too
    # then medians read and written, first positions; PostgreSQL first tries whether there were any
    medians = (
        ["SELECT", "INSERT", "UPDATE"] if is_sqlite else ["INSERT", "SELECT", "INSERT", "UPDATE"]
    )
    assert counted.take() == [*added, *medians]

    trial = store.add_trial(record(study, repeat=2))
    assert counted.take() == ["UPDATE", "INSERT"]
    store.claim_trial(trial.id, lease, "f")
    assert counted.take() == ["UPDATE"]
    ranks = tuple(
        RankRow(rank=n, hostname="h", device="cpu", coordinates={"dp": n}, stages=(0,), layers=(0,),
                num_parameters=1, peak_memory_bytes=1, state_memory_bytes=1,
                breakdown_s={"forward": 0.1, "backward": 0.2}, collectives={"all_reduce": {}},
                timeline=())
        for n in range(8)
    )  # fmt: skip
    store.finish_trial(trial.id, replace(make_outcome(), ranks=ranks), lease=lease)
    # measurement, steps, ranks, coordinates, stages, parts, collectives
    left = ["INSERT"] * 7 if is_sqlite else ["WITH"]
    assert counted.take() == ["SELECT", "UPDATE", *left, "SELECT", "INSERT", "UPDATE"]

    store.add_trial(record(study, 1))
    assert counted.take() == ["UPDATE", "SELECT", "INSERT", "INSERT"], "a new configuration"


@pytest.mark.parametrize("num_ranks", [1, 199, 201])
def test_what_a_trial_leaves_is_stored_whatever_its_size(
    store, make_study, make_outcome, num_ranks
):
    """Many rows take another way than few; the few of a table may belong to the many of another."""
    ranks = tuple(
        RankRow(rank=n, hostname="h", device="cpu", coordinates={"dp": n}, stages=(0,), layers=(0,),
                num_parameters=1, peak_memory_bytes=1, state_memory_bytes=1, breakdown_s={},
                collectives={"all_reduce": {"calls": 2}} if n == num_ranks - 1 else {}, timeline=())
        for n in range(num_ranks)
    )  # fmt: skip
    study = store.create_study(make_study())
    outcome = replace(make_outcome(), ranks=ranks)
    outcome = replace(outcome, steps=outcome.steps[:1])
    for number in (1, 2):  # the second has a known configuration and known software
        (trial_id,) = store.add_results(study.id, [(record(study, repeat=number), outcome)])
        found = store.ranks(trial_id)
        assert [rank.coordinates for rank in found] == [rank.coordinates for rank in ranks]
        assert [rank.rank for rank in found if rank.collectives] == [num_ranks - 1]
        assert store.steps(trial_id) == list(outcome.steps)
        stored = store.trial(study.name, number)
        assert stored.trial.id == trial_id
        assert stored.measurement == outcome.measurement
    assert check(store) == []
    with pytest.raises(NotFound, match="no study 77"):
        store.add_results(77, [(record(study), outcome)])


def test_a_failed_trial_is_stored_alone(store, make_study, make_outcome):
    study = store.create_study(make_study())
    store.add_results(study.id, [(record(study), make_outcome())])
    failure = FailureRow(kind="oom", phase="step", message="a\0b", rank=1)
    failed = TrialOutcome(status=TrialStatus.FAILED, failure=failure)
    for repeat in (1, 2):
        (trial_id,) = store.add_results(study.id, [(record(study, repeat=repeat), failed)])
        assert [row.message for row in store.failures(trial_id)] == ["a\\0b"]
        assert store.trial(study.name, 1 + repeat).trial.status is TrialStatus.FAILED
    with pytest.raises(AlreadyExists):
        store.add_results(study.id, [(record(study, repeat=2), failed)])
    assert check(store) == []


def test_the_first_trial_of_a_known_configuration_takes_two_statements(
    store, make_study, make_outcome
):
    if store.database.is_sqlite:
        pytest.skip("SQLite has no trips to save")
    known = store.create_study(make_study("known"))
    for n in range(4):
        store.add_results(known.id, [(record(known, n), make_outcome())])
    study = store.create_study(make_study("new"))
    counted, marks = Counted(store), [1, 0, 1, 0]
    for n, tokens_per_s in enumerate((100.0, 1.0, 1000.0, 1000.0)):
        store.add_results(study.id, [(record(study, n), make_outcome(tokens_per_s))])
        assert counted.take() == ["WITH", "INSERT", *["UPDATE"] * marks[n]]
    assert [row.position for row in leaderboard(store, "new")] == [1, 1, 3, 4]
    assert check(store) == []


def test_first_positions_are_marked_anew_only_when_the_bar_may_have_moved(
    store, make_study, make_outcome
):
    study = store.create_study(make_study())
    store.add_results(study.id, [(record(study, n), make_outcome(1000.0 - n)) for n in range(3)])
    counted = Counted(store)
    for n, tokens_per_s in ((3, 1.0), (4, 5000.0)):
        store.add_results(study.id, [(record(study, n), make_outcome(tokens_per_s))])
        assert counted.take().count("UPDATE") == (2 if tokens_per_s == 5000.0 else 1)


def test_many_trials_go_through_their_life_together(store, make_study, make_outcome, lease):
    study = store.create_study(make_study())
    predictions = [PredictionRow(config_key="k3", model_name="analytic", step_time_s=1.0)]
    added = store.add_trials([record(study, n) for n in range(70)], predictions)
    assert [trial.number for trial in added] == list(range(1, 71))
    assert store.predictions(study.id) == predictions
    assert store.add_trials([]) == []
    store.claim_trials({trial.id: f"f{trial.number}" for trial in added}, lease)
    found = store.trials_by_id([trial.id for trial in added])
    assert [(item.trial.number, item.trial.folder) for item in found] == [
        (n, f"f{n}") for n in range(1, 71)
    ]
    store.finish_trials(
        [(trial.id, make_outcome(1000.0 + trial.number), None) for trial in added], lease
    )
    assert len(store.trials(study.id, [TrialStatus.COMPLETED])) == 70
    assert check(store) == []


def test_one_refused_trial_of_many_refuses_them_all(store, make_study, make_outcome, lease):
    study = store.create_study(make_study())
    first = store.add_trial(record(study))
    with pytest.raises(AlreadyExists, match="Trial 1 of this study is configuration k0"):
        store.add_trials([record(study, 1), record(study, 0)])
    with pytest.raises(AlreadyExists, match="configuration k1, repeat 0, attempt 1"):
        store.add_trials([record(study, 1), record(study, 1)])
    second = store.add_trial(record(study, 1))
    assert second.number == 2
    store.claim_trial(first.id, lease, "f")
    with pytest.raises(IllegalTransition):
        store.claim_trials({second.id: "g", first.id: "h"}, lease)
    with pytest.raises(IllegalTransition):
        store.finish_trials([(trial.id, make_outcome(), None) for trial in (first, second)])
    statuses = [item.trial.status.value for item in store.trials(study.id)]
    assert statuses == ["running", "queued"]
    assert check(store) == []


def test_ids_of_a_transaction_that_failed_are_not_remembered(store, make_study):
    study = store.create_study(make_study())
    with pytest.raises(InvalidRecord):
        store.add_trials([record(study, 0), replace(record(study, 1), seed=2**63)])
    other = store.create_study(make_study("other"))
    # takes the id that the failed transaction had given to k0
    assert store.add_trial(record(other, 5)).number == 1
    store.add_trial(record(study, 0))
    knobs = {item.trial.config_key: item.trial.knobs["dp"] for item in store.trials(study.id)}
    assert knobs == {"k0": 1}


def test_remembered_ids_are_bounded(store, make_study, monkeypatch):
    monkeypatch.setattr(known_ids, "_MOST", 10)
    study = store.create_study(make_study())
    for n in range(30):
        store.add_trial(record(study, n))
        store.add_trial(record(study, n, repeat=1))
    assert len(known_ids._OF_ENGINE[store.database.engine]) <= 10
    assert len(store.trials(study.id)) == 60


def test_a_study_of_another_controller_is_refused_at_once(store, make_study, lease):
    """Only another writer's lock is waited for."""
    study = store.create_study(make_study())
    store.claim_study(study.id, lease)
    began = time.monotonic()
    with pytest.raises(Busy) as caught:
        store.claim_study(study.id, replace(lease, host="elsewhere"))
    assert not isinstance(caught.value, Locked)
    assert time.monotonic() - began < 2


def test_a_locked_file_is_waited_for_and_then_named(tmp_path: Path, make_study, monkeypatch):
    monkeypatch.setattr(engine, "BUSY_TIMEOUT_S", 0.05)
    path = tmp_path / "r.db"
    with results_db.open(path) as store, results_db.open(path) as other:
        study = store.create_study(make_study())
        held = other.database.engine.connect()
        held.exec_driver_sql("SELECT 1")  # begins, which takes the write lock
        timer = threading.Timer(0.5, held.close)
        timer.start()
        assert store.add_trial(record(study)).number == 1
        timer.join()
        held = other.database.engine.connect()
        held.exec_driver_sql("SELECT 1")
        monkeypatch.setattr(engine, "WRITE_DEADLINE_S", 0.3)
        with pytest.raises(Locked, match="is locked by another writer"):
            store.add_trial(record(study, 1))
        held.close()
        assert store.add_trial(record(study, 1)).number == 2


def test_a_file_that_may_not_be_written_is_named(tmp_path: Path, make_study):
    path = tmp_path / "r.db"
    with results_db.open(path) as store:
        study = store.create_study(make_study())
        store.database.write(lambda conn: conn.exec_driver_sql("PRAGMA query_only=ON"))
        with pytest.raises(ReadOnly, match="may not be written"):
            store.add_trial(record(study))


def test_a_full_disk_is_named_and_nothing_is_half_stored(tmp_path: Path, make_study, make_outcome):
    path = tmp_path / "r.db"
    with results_db.open(path) as store:
        study = store.create_study(make_study())

        def shrink(connection):
            pages = connection.exec_driver_sql("PRAGMA page_count").scalar()
            connection.exec_driver_sql(f"PRAGMA max_page_count={pages}")

        store.database.write(shrink)

        def fill():
            for n in range(1000):
                store.add_results(study.id, [(record(study, n), make_outcome())])

        with pytest.raises(DatabaseUnreadable, match="full"):
            fill()
        store.database.write(lambda c: c.exec_driver_sql("PRAGMA max_page_count=1000000"))
        assert check(store) == []
        num_stored = len(store.trials(study.id))
        store.add_results(study.id, [(record(study, 2000), make_outcome())])
        assert len(store.trials(study.id)) == num_stored + 1


def test_a_file_that_was_moved_away_is_waited_for(tmp_path: Path, make_study, monkeypatch):
    path, away = tmp_path / "r.db", tmp_path / "away.db"
    with results_db.open(path) as store:
        study = store.create_study(make_study())
        path.rename(away)
        timer = threading.Timer(0.5, lambda: away.rename(path))
        timer.start()
        store.add_trial(record(study))
        timer.join()
        monkeypatch.setattr(engine, "GONE_DEADLINE_S", 0.2)
        path.rename(away)
        with pytest.raises(Unreachable, match="was moved or deleted while in use"):
            store.add_trial(record(study, 1))
        shutil.copy(away, path)
        with pytest.raises(Unreachable, match="is another file now"):
            store.trials(study.id)
        away.rename(path)
        assert store.add_trial(record(study, 1)).number == 2


def test_a_relative_path_is_that_of_the_start(tmp_path: Path, make_study, monkeypatch):
    monkeypatch.chdir(tmp_path)
    with results_db.open("r.db") as store:
        study = store.create_study(make_study())
        (tmp_path / "elsewhere").mkdir()
        monkeypatch.chdir(tmp_path / "elsewhere")
        store.database.engine.dispose()  # so that the next one is a new connection
        assert store.add_trial(record(study)).number == 1
        assert store.url == "r.db"
    assert list((tmp_path / "elsewhere").iterdir()) == []


@pytest.mark.postgres
def test_a_server_that_restarts_is_waited_for(
    postgres_server, make_study, make_outcome, lease, monkeypatch
):
    """The connection is cut, and the server refuses new ones for a while."""
    with private_postgres(durable=True) as server, results_db.open(server.url()) as store:
        study = store.create_study(make_study())
        trial = store.add_trial(record(study))
        server.restart(down_s=1.0)
        store.claim_trial(trial.id, lease, "f")
        server.restart(down_s=0.5)
        assert store.trial(study.id, 1).trial.status is TrialStatus.RUNNING
        server.restart(down_s=0.5)
        store.finish_trial(trial.id, make_outcome(), lease=lease)
        assert check(store) == []
        server.stop()
        monkeypatch.setattr(engine, "GONE_DEADLINE_S", 0.3)
        with pytest.raises(Unreachable, match="cannot be reached"):
            store.add_trial(record(study, 1))


@pytest.mark.postgres
def test_a_commit_whose_answer_is_lost_is_not_repeated(postgres_server, postgres_template,
                                                       make_study):  # fmt: skip
    url = postgres_server.new_database("lost_commit", postgres_template)
    with results_db.open(url) as store:
        store.create_study(make_study())
        calls = []

        def cut_at_commit(connection):
            calls.append(1)
            pid = connection.execute(text("SELECT pg_backend_pid()")).scalar()
            with results_db.open(postgres_server.url("lost_commit")) as admin:
                admin.database.write(
                    lambda other: other.execute(text(f"SELECT pg_terminate_backend({pid})"))
                )
                time.sleep(0.1)

        with pytest.raises(DatabaseUnreadable, match="went away during a commit") as caught:
            store.database.write(cut_at_commit)
        assert not isinstance(caught.value, Unreachable)
        assert len(calls) == 1
        assert len(store.list_studies()) == 1
