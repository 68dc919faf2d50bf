"""Merges, backups, pruning, exports and the check of laws."""

import sqlite3
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from sqlalchemy import text

import results_db
from results_db import maintenance
from results_db.checks import check
from results_db.errors import AlreadyExists, Busy, NotFound
from results_db.exports import export
from results_db.merging import merge
from results_db.queries import leaderboard
from results_db.records import TrialOutcome, TrialRecord, TrialStatus
from results_db.schema import metadata, schema_versions


def keyed(store, study_id):
    """What a study holds, whatever its numbers."""
    return sorted(
        (item.trial.config_key, item.trial.queued_at, item.trial.status,
         item.measurement and item.measurement.tokens_per_s)
        for item in store.trials(study_id)
    )  # fmt: skip


def test_a_merge_brings_everything_once(new_url, fill_sample, tmp_path):
    with results_db.open(tmp_path / "source.db") as source, results_db.open(new_url()) as target:
        fill_sample(source)
        first = merge(source, target)
        assert (first.num_studies_added, first.num_trials_added) == (2, 28)
        second = merge(source, target)
        assert (second.num_trials_added, second.num_trials_known) == (0, 28)
        for study in source.list_studies():
            copy = target.get_study(study.name)
            assert keyed(source, study.id) == keyed(target, copy.id)
            assert target.predictions(copy.id) == source.predictions(study.id)
            assert target.untried(copy.id) == source.untried(study.id)
            assert copy.provenance == study.provenance
            for item in source.trials(study.id):
                twin = target.trial(study.name, item.trial.number)
                assert twin.measurement == item.measurement
                assert target.ranks(twin.trial.id) == source.ranks(item.trial.id)
                assert str(target.steps(twin.trial.id)) == str(source.steps(item.trial.id))
                assert target.failures(twin.trial.id) == source.failures(item.trial.id)
            ours = leaderboard(source, study.id)
            assert leaderboard(target, copy.id) == ours
        counts = [maintenance.info(store).num_rows for store in (source, target)]
        assert counts[0] == counts[1]
        assert check(target) == []


@settings(
    max_examples=5, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture]
)
@given(
    shared=st.integers(0, 4), left=st.integers(0, 3), right=st.integers(0, 3),
    finish_left=st.booleans(), finish_right=st.booleans(),
)  # fmt: skip
def test_copies_that_went_on_separately(
    tmp_path_factory,
    make_study,
    make_outcome,
    lease,
    shared,
    left,
    right,
    finish_left,
    finish_right,
):
    """Neither side's trials are lost or doubled, in whichever order the two are merged."""
    folder = tmp_path_factory.mktemp("merge")
    with results_db.open(folder / "a.db") as store:
        study = store.create_study(make_study())
        for n in range(shared):
            record = TrialRecord(study_id=study.id, config_key=f"s{n}", knobs={"dp": n + 1})
            store.add_trial(record)
        maintenance.backup(store, folder / "b.db")
    results = {}
    for name, count, finish in (("a", left, finish_left), ("b", right, finish_right)):
        with results_db.open(folder / f"{name}.db") as store:
            for n in range(count):
                record = TrialRecord(study_id=study.id, config_key=f"x{n}", knobs={"tp": n + 1})
                store.add_trial(record)
            if finish:
                for item in store.trials(study.id):
                    store.claim_trial(item.trial.id, lease, "f")
                    store.finish_trial(item.trial.id, make_outcome(float(len(name) + n_of(item))))
            results[name] = keyed(store, study.id)
    for target, source in (("a", "b"), ("b", "a")):
        merged = folder / f"{target}{source}.db"
        with results_db.open(folder / f"{target}.db") as store:
            maintenance.backup(store, merged)
        with results_db.open(merged) as store, results_db.open(folder / f"{source}.db") as other:
            merge(other, store)
            merge(other, store)
            found = keyed(store, study.id)
            assert check(store) == []
        ended = [row for side in ("a", "b") for row in results[side] if row[3] is not None]
        assert sorted(row for row in found if row[3] is not None) == sorted(ended)
        everything = {row[:2] for side in ("a", "b") for row in results[side]}
        assert {row[:2] for row in found} == everything
        # a shared trial that both sides ran is there twice, any other once
        twice = shared if finish_left and finish_right else 0
        assert len(found) == len(everything) + twice


def n_of(item):
    return item.trial.number


def test_a_name_that_is_taken_by_another_study(tmp_path, make_study):
    with results_db.open(tmp_path / "a.db") as one, results_db.open(tmp_path / "b.db") as other:
        one.create_study(make_study("same"))
        other.create_study(make_study("same"))
        merge(other, one)
        merge(other, one)
        names = [study.name for study in one.list_studies()]
        assert len(names) == 2
        assert names[0] == "same"
        assert names[1].startswith("same (")


def test_a_backup_is_whole_and_new(store, fill_sample, tmp_path):
    fill_sample(store)
    target = tmp_path / "deep" / "copy.db"
    maintenance.backup(store, target)
    with pytest.raises(AlreadyExists):
        maintenance.backup(store, target)
    with results_db.open(target, read_only=True) as copy:
        assert check(copy) == []
        assert maintenance.info(copy).num_rows == maintenance.info(store).num_rows


def test_pruning_details_keeps_the_leaderboard(store, fill_sample):
    fill_sample(store)
    before = {study.name: leaderboard(store, study.id) for study in store.list_studies()}
    later = datetime(2026, 4, 1, tzinfo=UTC)
    planned = maintenance.prune_details(store, later, 2, dry_run=True)
    done = maintenance.prune_details(store, later, 2, dry_run=False)
    assert planned.num_detail_rows == done.num_detail_rows > 0
    assert {study.name: leaderboard(store, study.id) for study in store.list_studies()} == before
    best = store.trial("gpt2-1-node", before["gpt2-1-node"][0].trial_number)
    worst = store.trial("gpt2-1-node", before["gpt2-1-node"][-1].trial_number)
    assert store.steps(best.trial.id)
    assert store.steps(worst.trial.id) == []
    assert worst.measurement is not None
    early = datetime(2025, 1, 1, tzinfo=UTC)
    assert maintenance.prune_details(store, early, 0, dry_run=False).num_detail_rows == 0
    maintenance.compact(store)
    assert check(store) == []


def test_pruning_a_study(store, fill_sample, lease):
    fill_sample(store)
    study = store.get_study("gpt2-1-node")
    assert maintenance.prune_study(store, "gpt2-1-node", dry_run=True).num_trials == 14
    store.claim_study(study.id, lease)
    with pytest.raises(Busy):
        maintenance.prune_study(store, "gpt2-1-node", dry_run=False)
    store.release_study(study.id)
    maintenance.prune_study(store, "gpt2-1-node", dry_run=False)
    with pytest.raises(NotFound):
        maintenance.prune_study(store, "gpt2-1-node", dry_run=False)
    counts = maintenance.info(store).num_rows
    assert counts["studies"] == 1
    assert counts["trials"] == 14
    assert check(store) == []


@pytest.mark.parametrize("file_format", ["parquet", "csv"])
def test_exports_hold_all_rows(store, fill_sample, tmp_path, file_format):
    import pandas as pd

    fill_sample(store)
    files = export(store, tmp_path / "out", file_format)
    counts = maintenance.info(store).num_rows
    read = pd.read_parquet if file_format == "parquet" else pd.read_csv
    frames = {path.stem: read(path) for path in files}
    for name in metadata.tables:
        if name != schema_versions.name:
            assert len(frames[name]) == counts[name], name
    assert len(frames["trial_summary"]) == counts["trials"]
    if file_format == "parquet":
        trials = frames["trials"]
        assert str(trials["finished_at"].dtype) == "datetime64[us, UTC]"
        assert frames["leaderboard"]["compile"].dtype == bool
        assert frames["models"]["num_parameters"].iloc[0] == 10**12


def test_exports_of_unknown_things(store, tmp_path):
    with pytest.raises(NotFound, match="no table or view 'tables'"):
        export(store, tmp_path, names=["tables"])
    with pytest.raises(NotFound, match="no format 'xml'"):
        export(store, tmp_path, "xml")
    assert [path.name for path in export(store, tmp_path, names=["pareto"])] == ["pareto.parquet"]


BREAKS = {
    "a completed trial has a measurement": "DELETE FROM measurements WHERE trial_id = 1",
    "an open trial left nothing yet":
        "UPDATE trials SET status = 'running', lease_host = 'h', finished_at = NULL WHERE id = 2",
    "a trial that ended says when": "UPDATE trials SET finished_at = NULL WHERE id = 3",
    "an open trial has no end":
        "UPDATE trials SET finished_at = queued_at WHERE status = 'running'",
    "a running trial has an owner and a start":
        "UPDATE trials SET lease_host = NULL WHERE status = 'running'",
    "a queued trial has no owner": "UPDATE trials SET status = 'queued' WHERE status = 'running'",
    "numbers count from 1 to the study's count": "UPDATE studies SET num_trials = 3 WHERE id = 1",
    "a configuration with a completed trial is on the leaderboard":
        "DELETE FROM study_configs WHERE config_id = 1",
    "an interval contains its median":
        "UPDATE study_configs SET tokens_per_s_low = 1e9 WHERE config_id = 1",
    "the first positions are marked": "UPDATE study_configs SET is_first = NOT is_first",
    "stored medians are those of the trials":
        "UPDATE study_configs SET step_time_s = 2 * step_time_s WHERE config_id = 2",
    "a prediction's bounds are in order": "UPDATE predictions SET step_time_low_s = 1e9",
    "all views exist": "DROP VIEW pareto",
}  # fmt: skip


@pytest.mark.parametrize(("law", "damage"), BREAKS.items(), ids=list(BREAKS))
def test_every_broken_law_is_found(tmp_path, fill_sample, law, damage):
    with results_db.open(tmp_path / "x.db") as store:
        fill_sample(store)
        assert check(store) == []
        store.database.write(lambda connection: connection.execute(text(damage)).rowcount)
        assert law in [problem.law for problem in check(store)]


def test_a_damaged_file_is_found(tmp_path: Path, fill_sample):
    path = tmp_path / "x.db"
    with results_db.open(path) as store:
        fill_sample(store)
    with sqlite3.connect(path) as link:
        link.execute("PRAGMA wal_checkpoint(TRUNCATE)")
        root = link.execute("SELECT rootpage FROM sqlite_master WHERE name = 'steps'").fetchone()[0]
        size = link.execute("PRAGMA page_size").fetchone()[0]
    link.close()
    data = bytearray(path.read_bytes())
    data[(root - 1) * size + 8 : (root - 1) * size + 200] = b"\xff" * 192
    path.write_bytes(data)
    with results_db.open(path) as store:
        found = check(store)
    assert found
    assert found[0].law in ("the file is intact", "references lead somewhere")


def test_an_outcome_of_many_queued_trials_is_exact(store, make_study, make_outcome):
    study = store.create_study(make_study())
    start = datetime(2026, 1, 1, tzinfo=UTC)
    base = TrialRecord(study_id=study.id, config_key="k", knobs={})
    pairs = [
        (replace(base, repeat=n, queued_at=start + timedelta(seconds=n)), make_outcome(100.0 + n))
        for n in range(1201)
    ]
    store.add_results(study.id, pairs)
    (row,) = leaderboard(store, study.id)
    assert (row.num_trials, row.tokens_per_s, row.position) == (1201, 700.0, 1)
    assert store.trials(study.id, [TrialStatus.COMPLETED])[-1].trial.number == 1201
    assert TrialOutcome(status=TrialStatus.FAILED).steps == ()
