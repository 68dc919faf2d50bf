"""The store's promises, on SQLite and PostgreSQL alike."""

import math
from dataclasses import replace
from datetime import UTC, datetime, timedelta, timezone
from pathlib import Path

import pytest

import results_db
from results_db.errors import (
    AlreadyExists,
    Busy,
    DatabaseUnreadable,
    IllegalTransition,
    InvalidRecord,
    LeaseLost,
    NewerDatabase,
    NotFound,
    ReadOnly,
)
from results_db.knobs import KNOBS
from results_db.records import (
    FailureRow,
    PredictionRow,
    RankRow,
    StepRow,
    StudyStatus,
    TrialOutcome,
    TrialRecord,
    TrialStatus,
    UntriedRow,
)

RANK = RankRow(
    rank=1,
    hostname="node0",
    device="cuda:1",
    coordinates={"dp": 0, "tp": 1},
    stages=(0, 2),
    layers=(0, 1, 4, 5),
    num_parameters=500_000_000_000,
    peak_memory_bytes=2**36,
    state_memory_bytes=2**35,
    breakdown_s={"forward": 0.1, "backward": 0.2},
    collectives={"all_reduce": {"calls": 2.0, "bytes": 1e9, "seconds": 0.1, "algo_gbps": 4.5}},
    timeline=(("F", 0, 0, 0.0, 0.5), ("B", 0, 0, 0.5, 1.5)),
)


def queue(store, study, key="k", **fields):
    knobs = fields.pop("knobs", {"dp": 2})
    return store.add_trial(TrialRecord(study_id=study.id, config_key=key, knobs=knobs, **fields))


def test_a_study_comes_back_as_it_went_in(store, make_study):
    facts = {
        "git": {"commit": "abc", "is_dirty": True},
        "host": "node0",
        "devices": [{"name": "H200", "index": 0}],
        "environment": {},
        "numbers": {"count": 3, "share": 0.5, "none": None},
    }
    created = store.create_study(make_study("näme with spaces", provenance=facts, seed=2**62))
    found = store.get_study("näme with spaces")
    assert found == created == store.get_study(created.id)
    assert found.provenance == facts
    assert found.model["num_parameters"] == 10**12
    assert found.created_at.tzinfo is not None
    assert store.list_studies() == [created]


def test_a_study_name_is_taken_once(store, make_study):
    store.create_study(make_study("one"))
    with pytest.raises(AlreadyExists, match="'one'"):
        store.create_study(make_study("one"))
    with pytest.raises(NotFound, match="the latest studies are one"):
        store.get_study("two")


def test_status_sets_and_clears_the_end(store, make_study):
    study = store.create_study(make_study())
    store.set_study_status(study.id, StudyStatus.COMPLETED)
    assert store.get_study(study.id).finished_at is not None
    store.set_study_status(study.id, StudyStatus.RUNNING)
    assert store.get_study(study.id).finished_at is None
    with pytest.raises(NotFound):
        store.set_study_status(99, StudyStatus.RUNNING)


def test_the_life_of_a_trial(store, make_study, make_outcome, lease):
    study = store.create_study(make_study())
    trial = queue(store, study, knobs={"pp": 2, "stage_layers": [3, 1], "compile": True})
    assert trial.number == 1
    store.claim_trial(trial.id, lease, "trials/1")
    (running,) = store.running_trials(study.id)
    assert running.trial.lease == lease
    assert running.trial.folder == "trials/1"
    assert running.trial.knobs["stage_layers"] == (3, 1)
    assert running.trial.knobs["compile"] is True
    later = lease.heartbeat_at + timedelta(seconds=5)
    assert store.heartbeat(trial.id, later, lease) == 1
    assert store.running_trials(study.id)[0].trial.lease.heartbeat_at == later
    outcome = replace(make_outcome(), ranks=(RANK,))
    store.finish_trial(trial.id, outcome, lease=lease)
    found = store.trial("study", 1)
    assert found.trial.status is TrialStatus.COMPLETED
    assert found.measurement == outcome.measurement
    assert found.failure is None
    assert tuple(store.steps(trial.id)) == outcome.steps
    assert store.ranks(trial.id) == [RANK]
    assert store.heartbeat([trial.id], later) == 0


def test_a_failed_trial_keeps_all_reports_in_order(store, make_study, lease):
    study = store.create_study(make_study())
    trial = queue(store, study)
    store.claim_trial(trial.id, lease, "x")
    cause = FailureRow(
        kind="oom", phase="backward", message="a\0b", rank=3, stage=1, step=2, traceback="t",
        peak_memory_bytes=2**40,
    )  # fmt: skip
    echo = FailureRow(kind="comm", phase="backward", message="peer closed", rank=0)
    outcome = TrialOutcome(
        status=TrialStatus.INFEASIBLE, failure=cause, other_failures=(echo,),
        steps=(StepRow(step=0, is_warmup=True, step_time_s=0.1, loss=None, tokens=1),),
    )  # fmt: skip
    store.finish_trial(trial.id, outcome)
    stored = replace(cause, message="a\\0b")  # PostgreSQL's text has no NUL
    assert store.trial(study.id, 1).failure == stored
    assert store.failures(trial.id) == [stored, echo]
    assert store.steps(trial.id)[0].loss is None


def test_terminal_is_final(store, make_study, make_outcome, lease):
    study = store.create_study(make_study())
    trial = queue(store, study)
    with pytest.raises(IllegalTransition, match="is queued, not running"):
        store.finish_trial(trial.id, make_outcome())
    store.claim_trial(trial.id, lease, "x")
    with pytest.raises(IllegalTransition, match="is running, not queued"):
        store.claim_trial(trial.id, lease, "x")
    store.finish_trial(trial.id, make_outcome())
    for change in (
        lambda: store.finish_trial(trial.id, TrialOutcome(status=TrialStatus.FAILED)),
        lambda: store.requeue_trial(trial.id),
        lambda: store.claim_trial(trial.id, lease, "x"),
    ):
        with pytest.raises(IllegalTransition, match="is completed"):
            change()
    with pytest.raises(NotFound):
        store.finish_trial(99, TrialOutcome(status=TrialStatus.FAILED))
    assert store.trial("study", 1).measurement is not None


def test_the_same_trial_is_not_stored_twice(store, make_study):
    study = store.create_study(make_study())
    queue(store, study)
    with pytest.raises(AlreadyExists, match="Trial 1 of this study"):
        queue(store, study)
    assert queue(store, study, repeat=1).number == 2, "a refused trial takes no number"
    assert queue(store, study, attempt=2).number == 3
    other = store.create_study(make_study("other"))
    assert queue(store, other).number == 1


def test_a_zombie_cannot_finish_what_another_owns_now(store, make_study, make_outcome, lease):
    study = store.create_study(make_study())
    trial = queue(store, study)
    store.claim_trial(trial.id, lease, "x")
    store.requeue_trial(trial.id, lease)
    assert store.trial("study", 1).trial.lease is None
    heir = replace(lease, pid=1)
    store.claim_trial(trial.id, heir, "y")
    with pytest.raises(LeaseLost):
        store.finish_trial(trial.id, make_outcome(), lease=lease)
    with pytest.raises(LeaseLost):
        store.requeue_trial(trial.id, lease)
    assert store.heartbeat(trial.id, datetime.now(UTC), lease) == 0
    store.finish_trial(trial.id, make_outcome(), lease=heir)


def test_one_controller_per_study(store, make_study, lease):
    study = store.create_study(make_study())
    store.claim_study(study.id, lease)
    store.claim_study(study.id, lease)
    other = replace(lease, host="node1")
    with pytest.raises(Busy, match="process 4711 on node0"):
        store.claim_study(study.id, other)
    store.release_study(study.id, other)
    assert store.get_study(study.id).lease == lease, "only the owner gives it up"
    store.claim_study(study.id, other, takeover=True)
    with pytest.raises(IllegalTransition):
        store.heartbeat_study(study.id, datetime.now(UTC), lease)
    later = other.heartbeat_at + timedelta(minutes=1)
    store.heartbeat_study(study.id, later, other)
    assert store.get_study(study.id).lease == replace(other, heartbeat_at=later)
    store.release_study(study.id, other)
    assert store.get_study(study.id).lease is None


def test_trials_that_end_before_they_run(store, make_study):
    study = store.create_study(make_study())
    failure = FailureRow(kind="launch", phase="launch", message="no room")
    for place, status in enumerate(("cancelled", "infeasible", "failed")):
        trial = queue(store, study, key=f"k{place}", knobs={"dp": 1 + place})
        outcome = TrialOutcome(status=TrialStatus(status), failure=failure)
        store.finish_trial(trial.id, outcome)
    found = store.trials(study.id, [TrialStatus.FAILED, TrialStatus.CANCELLED])
    assert [item.trial.number for item in found] == [1, 3]
    assert len(store.trials(study.id)) == 3


def test_nonfinite_losses_survive_and_nonfinite_times_are_refused(
    store, make_study, make_outcome, lease
):
    study = store.create_study(make_study())
    trial = queue(store, study)
    store.claim_trial(trial.id, lease, "x")
    for broken in (math.nan, math.inf, 0.0, -1.0):
        with pytest.raises(InvalidRecord):
            store.finish_trial(trial.id, make_outcome(1.0, step_time_s=broken))
    losses = (1.0, math.nan, math.inf, -math.inf, None)
    steps = tuple(
        StepRow(step=n, is_warmup=False, step_time_s=0.1, loss=loss, tokens=1)
        for n, loss in enumerate(losses)
    )
    store.finish_trial(trial.id, replace(make_outcome(final_loss=-math.inf), steps=steps))
    assert store.trial("study", 1).measurement.final_loss == -math.inf
    found = [step.loss for step in store.steps(trial.id)]
    assert str(found) == str(list(losses))


def test_predictions_are_replaced_and_nonfinite_ones_say_nothing(store, make_study):
    study = store.create_study(make_study())
    row = PredictionRow(config_key="k", model_name="analytic", step_time_s=0.5)
    store.add_predictions(study.id, [row])
    wild = replace(row, step_time_s=math.inf, peak_memory_bytes=3e9, probability_fits=0.5)
    store.add_predictions(study.id, [wild, replace(row, model_name="learned")])
    assert store.predictions(study.id) == [
        replace(wild, step_time_s=None),
        replace(row, model_name="learned"),
    ]


def test_untried_points_in_bulk(store, make_study):
    study = store.create_study(make_study())
    rows = [
        UntriedRow(config_key=f"k{n}", knobs={"dp": n + 1}, rule="devices", reason=f"{n} > 2")
        for n in range(2500)
    ]
    store.add_untried(study.id, rows)
    store.add_untried(study.id, rows[:1] * 2)
    found = store.untried(study.id)
    assert len(found) == 2500
    by_key = {row.config_key: row for row in found}
    assert by_key["k7"].reason == "7 > 2"
    assert by_key["k7"].knobs["dp"] == 8


def test_unknown_and_mistyped_knobs_are_refused(store, make_study):
    study = store.create_study(make_study())
    with pytest.raises(InvalidRecord, match="Unknown knob warp"):
        queue(store, study, knobs={"warp": 9})
    for wrong in ({"tp": True}, {"tp": "2"}, {"compile": 1}, {"stage_layers": 3}, {"dp": None}):
        with pytest.raises(InvalidRecord, match="is not of type"):
            queue(store, study, knobs=wrong)
    queue(store, study)
    with pytest.raises(InvalidRecord, match="stored with other knobs"):
        queue(store, study, knobs={"dp": 4}, repeat=1)
    assert len(store.trials(study.id)) == 1


def test_numbers_that_do_not_fit_are_refused(store, make_study):
    with pytest.raises(InvalidRecord, match="64 bits"):
        store.create_study(make_study(seed=2**63))
    assert store.list_studies() == []
    store.create_study(make_study(seed=-(2**63)))


def test_times_are_utc_wherever_they_come_from(store, make_study):
    tokyo = timezone(timedelta(hours=9))
    moment = datetime(2026, 12, 1, 3, 30, 0, 123456, tzinfo=tokyo)
    study = store.create_study(make_study(created_at=moment))
    assert study.created_at == moment
    assert study.created_at.utcoffset() == timedelta(0)
    with pytest.raises(InvalidRecord, match="no time zone"):
        store.create_study(make_study("b", created_at=datetime(2026, 1, 1)))  # noqa: DTZ001


def test_results_that_ran_elsewhere(store, make_study, make_outcome):
    study = store.create_study(make_study())
    pairs = [
        (TrialRecord(study_id=study.id, config_key=f"k{n}", knobs={"dp": n + 1}), make_outcome())
        for n in range(120)
    ]
    ids = store.add_results(study.id, pairs)
    assert [store.trial("study", n).trial.id for n in (1, 120)] == [ids[0], ids[-1]]
    assert store.add_results(study.id, []) == []
    with pytest.raises(AlreadyExists):
        store.add_results(study.id, [(replace(pairs[0][0], repeat=1), pairs[0][1]), pairs[1]])
    assert len(store.trials(study.id)) == 120, "a refused batch leaves nothing"
    assert len(store.steps(ids[7])) == 5


def test_a_reader_cannot_write(url, store, make_study):
    store.create_study(make_study())
    with results_db.open(url, read_only=True) as reader:
        assert [study.name for study in reader.list_studies()] == ["study"]
        with pytest.raises(ReadOnly):
            reader.create_study(make_study("b"))


def test_a_reader_sees_one_state_and_blocks_nobody(store, url, make_study):
    store.create_study(make_study("a"))
    from sqlalchemy import text

    with results_db.open(url) as other, other.database.read() as connection:
        count = text("SELECT COUNT(*) FROM studies")
        assert connection.execute(count).scalar() == 1
        store.create_study(make_study("b"))
        assert connection.execute(count).scalar() == 1
    assert len(store.list_studies()) == 2


def test_newer_and_foreign_databases_are_refused(url, store):
    from sqlalchemy import text

    store.database.write(
        lambda conn: conn.execute(text("UPDATE alembic_version SET version_num = '9999'"))
    )
    store.close()
    with pytest.raises(NewerDatabase, match="schema 9999"):
        results_db.open(url)


@pytest.mark.parametrize(
    ("target", "error", "words"),
    [
        ("missing.db", NotFound, "There is no database"),
        (".", DatabaseUnreadable, "is a folder"),
        ("notes.txt", DatabaseUnreadable, "is not a database"),
        ("mysql://user:secret@host/x", DatabaseUnreadable, "mysql databases are not supported"),
        ("postgresql://user:secret@localhost:1/x", DatabaseUnreadable, "cannot be reached"),
        ("sqlite://", DatabaseUnreadable, "needs a file"),
        ("bad://[", DatabaseUnreadable, "URL cannot be read|not supported"),
    ],
)
def test_bad_places_are_named_without_secrets(tmp_path: Path, target, error, words):
    (tmp_path / "notes.txt").write_text("not a database at all, " * 100)
    where = target if "://" in target else tmp_path / target
    with pytest.raises(error, match=words) as caught:
        results_db.open(where, create=False)
    chain = []
    cause: BaseException | None = caught.value
    while cause is not None:
        chain.append(str(cause))
        cause = cause.__cause__
    assert "secret" not in " ".join(chain)


def test_every_knob_keeps_its_value(store, make_study):
    study = store.create_study(make_study())
    samples = {int: 3, str: "full", bool: True, tuple: (1, 2, 3)}
    knobs = {knob.name: samples[knob.kind] for knob in KNOBS}
    queue(store, study, knobs=knobs)
    assert store.trial("study", 1).trial.knobs == knobs


@pytest.mark.postgres
def test_a_cut_connection_is_replaced(postgres_server, postgres_template, make_study, monkeypatch):
    """After a rest the store notices that the server closed its connections."""
    from sqlalchemy import NullPool, create_engine, text

    from results_db import engine

    with results_db.open(postgres_server.new_database("cut", postgres_template)) as opened:
        opened.create_study(make_study("before"))
        admin = create_engine(postgres_server.url(), poolclass=NullPool)
        with admin.connect() as connection:
            connection.execute(
                text("SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE datname = 'cut'")
            )
        monkeypatch.setattr(engine, "IDLE_S", 0.0)
        opened.create_study(make_study("after"))
        assert len(opened.list_studies()) == 2
