"""What figures are made from agrees with the database's own views and stays cheap."""

import pytest
from sqlalchemy import event

import results_db
from results_db.errors import NotFound
from results_db.queries import read_only_sql
from tuner.web.study_data import StudyData, load_study_data


def test_it_agrees_with_the_views(study_url: str, full: StudyData) -> None:
    _, rows = read_only_sql(
        study_url, "SELECT trial, status, tokens_per_s, failure FROM trial_summary "
        "WHERE study = 'full' ORDER BY trial"
    )  # fmt: skip
    found = [(t.number, t.status, t.tokens_per_s, t.failure_kind) for t in full.trials]
    assert found == rows
    _, stages = read_only_sql(
        study_url, "SELECT stage, num_ranks, peak_memory_bytes FROM stage_summary WHERE "
        f"study = 'full' AND trial = {full.leaders[0].trial_number} ORDER BY stage"
    )  # fmt: skip
    leader = full.leaders[0]
    assert [(s.pp_rank, s.num_ranks, s.peak_memory_bytes) for s in leader.stages] == stages
    assert sum(leader.parts_s.values()) == pytest.approx(full.leaderboard[0].step_time_s)


def test_baseline_and_median_are_found(full: StudyData) -> None:
    assert full.baseline is not None
    assert full.baseline.knobs["dp"] == 4
    assert full.best is not None
    assert full.baseline.tokens_per_s < (full.median_tokens_per_s or 0) < full.best.tokens_per_s
    assert set(full.varying_knobs) == {"dp", "tp", "pp", "micro_batch_size", "recompute"}


def test_the_timeline_is_that_of_one_pipeline(full: StudyData) -> None:
    pipelined = full.pipelined
    assert pipelined is not None
    pp = full.configs[pipelined.config_key].knobs["pp"]
    assert {action.pp_rank for action in pipelined.timeline} == set(range(pp))
    assert len({action.rank for action in pipelined.timeline}) == pp


def test_points_that_did_not_run_are_grouped(full: StudyData) -> None:
    assert [(g.rule, g.count, g.is_legal) for g in full.untried] == [
        ("budget", 1, True),
        ("devices", 900, False),
    ]


def test_the_lower_limit_of_memory_counts(full: StudyData) -> None:
    assert full.memory_limit_bytes == 512 * 2**20


def test_the_number_of_queries_does_not_grow_with_trials(study_url: str) -> None:
    counts = []
    for name in ("full", "empty"):
        with results_db.open(study_url, read_only=True) as store:
            seen: list[str] = []
            event.listen(
                store.database.engine, "before_cursor_execute",
                lambda *args, seen=seen: seen.append(args[2]),
            )  # fmt: skip
            load_study_data(store, name, num_leaders=0)
            counts.append(len(seen))
    # the one leader with a pipeline is read beside them
    assert counts[0] <= counts[1] + 8


def test_an_unknown_study_is_an_error(study_url: str) -> None:
    with results_db.open(study_url, read_only=True) as store, pytest.raises(NotFound):
        load_study_data(store, "nothing")
