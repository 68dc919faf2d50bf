"""Lists of trials and facts of studies: the same as by counting all rows, on both databases."""

from itertools import pairwise

import pytest

from results_db import study_facts
from results_db.errors import InvalidQuery
from results_db.queries import QueryLimits, leaderboard, read_only_sql
from results_db.records import PredictionRow
from results_db.trial_lists import (
    SORT_KEYS,
    TrialFilter,
    TrialOrder,
    count_trials,
    trial_page,
    trials_by_id,
)


@pytest.fixture
def filled(store, fill_sample):
    fill_sample(store)
    return store


def all_lines(store, wanted, order, size):
    """Every page from the first to the last, and back."""
    pages, cursor = [], None
    while not pages or cursor is not None:
        found = trial_page(store, wanted, order, cursor, size)
        pages.append(found)
        cursor = found.after
    back, cursor = [pages[-1]], pages[-1].before
    while cursor is not None:
        back.append(trial_page(store, wanted, order, cursor, size))
        cursor = back[-1].before
    forward = [line for page in pages for line in page.lines]
    backward = [line for page in reversed(back) for line in page.lines]
    assert backward == forward
    return forward


@pytest.mark.parametrize("is_descending", [False, True])
@pytest.mark.parametrize("key", SORT_KEYS)
def test_pages_are_ordered_and_complete(filled, key, is_descending):
    study_id = filled.list_studies()[0].id
    wanted = TrialFilter(study_id=study_id)
    lines = all_lines(filled, wanted, TrialOrder(key, is_descending), 4)
    assert sorted(line.number for line in lines) == [
        row.trial.number for row in filled.trials(study_id)
    ]
    values = [getattr(line, key) for line in lines]
    known = [value for value in values if value is not None]
    assert values[: len(known)] == known, "trials without a value come last"
    if key not in ("config", "status"):  # texts sort by the database's collation
        for before, after in pairwise(known):
            assert before >= after if is_descending else before <= after


def test_filters_agree_with_the_rows(filled):
    study_id = filled.list_studies()[0].id
    rows = filled.trials(study_id)

    def numbers(**parts):
        wanted = TrialFilter(study_id=study_id, **parts)
        lines = all_lines(filled, wanted, TrialOrder("number", descending=False), 3)
        assert count_trials(filled, wanted) == len(lines)
        return [line.number for line in lines]

    def expected(holds):
        return [row.trial.number for row in rows if holds(row)]

    assert numbers(knobs={"tp": (2,)}) == expected(lambda row: row.trial.knobs["tp"] == 2)
    assert numbers(knobs={"tp": (1, 2), "compile": (True,)}) == expected(
        lambda row: row.trial.knobs["compile"]
    )
    assert numbers(knobs={"stage_layers": (None,)}) == expected(lambda _: True)
    assert numbers(statuses=("completed",)) == expected(lambda r: r.trial.status == "completed")
    assert numbers(failure_kinds=("oom",)) == expected(
        lambda row: row.failure is not None and row.failure.kind == "oom"
    )
    assert numbers(min_tokens_per_s=1200.0) == expected(
        lambda row: row.measurement is not None and row.measurement.tokens_per_s >= 1200
    )
    assert numbers(max_memory_bytes=2.0**31) == expected(
        lambda row: row.measurement is not None and row.measurement.peak_memory_bytes <= 2**31
    )
    assert numbers(text="ZERO1") == expected(lambda row: row.trial.knobs["zero_stage"] == 1)
    assert numbers(text="%") == []


def test_trials_by_id_keep_the_order_asked_for(filled):
    ids = [row.trial.id for study in filled.list_studies() for row in filled.trials(study.id)]
    wanted = [ids[-1], 10**9, ids[0]]
    assert [row.trial.id for row in trials_by_id(filled, wanted)] == [ids[-1], ids[0]]


def test_facts_of_a_study(filled):
    for study in filled.list_studies():
        rows, board = filled.trials(study.id), leaderboard(filled, study.id)
        pulse = study_facts.pulse(filled, study.id)
        assert pulse.num_trials == len(rows)
        assert pulse.num_finished == sum(row.trial.status.is_terminal for row in rows)
        assert study_facts.counts_by_study(filled)[study.id] == dict(pulse.counts)
        reference = study_facts.reference(filled, study.id)
        speeds = sorted(row.tokens_per_s for row in board)
        half = len(speeds) // 2
        assert reference.num_configs == len(board)
        assert reference.median_tokens_per_s == pytest.approx((speeds[half] + speeds[~half]) / 2)
        varying = study_facts.knob_values(filled, study.id)
        for name, values in varying.items():
            assert len(values) > 1
            stored = {row.trial.knobs[name] for row in rows}
            assert len(stored) == len(values)
        kinds = {row.failure.kind for row in rows if row.failure is not None}
        assert study_facts.failure_kinds(filled, study.id) == sorted(kinds)


def test_predictions_of_one_configuration(filled):
    study = filled.list_studies()[0]
    row = PredictionRow(config_key="dp4", model_name="analytic", step_time_s=1.5)
    filled.add_predictions(study.id, [row])
    assert row in study_facts.predictions_of(filled, study.id, "dp4")
    assert study_facts.predictions_of(filled, study.id, "none") == []


def test_an_empty_study_has_facts(store, make_study):
    study = store.create_study(make_study())
    assert study_facts.pulse(store, study.id).num_trials == 0
    assert study_facts.reference(store, study.id).median_tokens_per_s is None
    assert study_facts.knob_values(store, study.id) == {}
    page = trial_page(store, TrialFilter(study_id=study.id), TrialOrder(), None, 5)
    assert (page.lines, page.before, page.after) == ([], None, None)


MANY = (
    "WITH RECURSIVE n(x) AS (SELECT 1 UNION ALL SELECT x + 1 FROM n WHERE x < {}) SELECT {} FROM n"
)


def test_answers_can_be_cut(store, url):
    limits = QueryLimits(max_rows=5, max_bytes=2**20, cuts=True)
    columns, rows = read_only_sql(url, MANY.format(1000, "x"), limits)
    assert columns == ["x"]
    assert [row[0] for row in rows] == [1, 2, 3, 4, 5, 6]
    assert read_only_sql(url, "SELECT 1 AS one WHERE 1 = 2", limits) == (["one"], [])
    with pytest.raises(InvalidQuery, match="more than 5 rows"):
        read_only_sql(url, MANY.format(1000, "x"), QueryLimits(max_rows=5, max_bytes=2**20))


def test_answers_have_a_size(store, url):
    limits = QueryLimits(max_rows=10_000, max_bytes=2**16)
    with pytest.raises(InvalidQuery, match="larger than"):
        read_only_sql(url, MANY.format(5000, "'abcdefghijklmnopqrstuvwxyz'"), limits)


@pytest.mark.parametrize(
    "statement",
    ["DELETE FROM trials", "SELECT 1; DELETE FROM trials", "COMMIT", "CREATE TABLE x (a INTEGER)"],
)
def test_limits_do_not_open_a_way_to_write(store, url, statement):
    limits = QueryLimits(max_rows=5, max_bytes=2**20, cuts=True)
    with pytest.raises(InvalidQuery):
        read_only_sql(url, statement, limits)
