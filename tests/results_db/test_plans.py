"""How the databases answer what is asked most: by index, however much is stored."""

import json
import re
from collections.abc import Callable

import pytest
from sqlalchemy import text

import results_db
from results_db.maintenance import analyze
from results_db.median_rows import MARK_FIRST
from results_db.records import TrialRecord

LARGE = ("trials", "steps", "measurements", "study_configs", "parallel_configs")
"""Tables that grow with the trials."""
ALIASES = {
    **dict.fromkeys(("sc", "o", "leading", "marked", "other"), "study_configs"),
    "t": "trials", "c": "parallel_configs", "x": "measurements",
}  # fmt: skip
"""What the views and statements call them."""
FIRST = "SELECT * FROM leaderboard WHERE study = 'study1' ORDER BY tokens_per_s DESC LIMIT 20"
FIRST_OF_ALL = "SELECT * FROM leaderboard ORDER BY tokens_per_s DESC LIMIT 20"
BEST = "SELECT * FROM best_configs"
ONE_TRIAL = "SELECT * FROM trial_summary WHERE study = 'study1' AND trial = 7"


@pytest.fixture(
    scope="module", params=["sqlite", pytest.param("postgresql", marks=pytest.mark.postgres)]
)
def filled(request, tmp_path_factory):
    """40 studies of 100 trials, with the planner's statistics."""
    if request.param == "sqlite":
        url = str(tmp_path_factory.mktemp("plans") / "r.db")
    else:
        server = request.getfixturevalue("postgres_server")
        url = server.new_database("plans", request.getfixturevalue("postgres_template"))
    return url


@pytest.fixture
def store(filled, make_study: Callable, make_outcome: Callable):
    with results_db.open(filled) as store:
        if not store.list_studies():
            for number in range(40):
                study = store.create_study(make_study(f"study{number}"))
                pairs = [
                    (
                        TrialRecord(
                            study_id=study.id, config_key=f"{number}-{n}", knobs={"dp": n + 1}
                        ),
                        make_outcome(1000.0 + (n * 37 % 100)),
                    )
                    for n in range(100)
                ]
                store.add_results(study.id, pairs)
            analyze(store)
        yield store


def scanned(store, query):
    """Large tables that a plan reads from end to end."""
    with store.database.read() as connection:
        if store.database.is_sqlite:
            rows = connection.execute(text(f"EXPLAIN QUERY PLAN {query}")).all()
            steps = [str(row[-1]).split() for row in rows]
            scans = {step[1] for step in steps if step[0] == "SCAN" and "INDEX" not in step}
            return {ALIASES.get(name, name) for name in scans} & set(LARGE)
        found = connection.execute(text(f"EXPLAIN (FORMAT JSON) {query}")).scalar_one()
    plan = found if isinstance(found, list) else json.loads(found)
    return {
        node["Relation Name"]
        for node in nodes(plan[0]["Plan"])
        if node["Node Type"] == "Seq Scan" and node["Relation Name"] in LARGE
    }


def nodes(node):
    yield node
    for child in node.get("Plans", ()):
        yield from nodes(child)


@pytest.mark.parametrize("query", [FIRST, FIRST_OF_ALL, BEST, ONE_TRIAL])
def test_no_large_table_is_read_from_end_to_end(store, query):
    found = scanned(store, query)
    if query == BEST and not store.database.is_sqlite:
        # PostgreSQL joins many first positions by one pass over a table of this size
        found -= {"parallel_configs"}
    assert found == set()


def test_the_end_of_a_trial_reads_no_whole_table_and_no_whole_study(store):
    """The statement that marks the first positions of a study, run at every completed trial."""
    name = "sqlite" if store.database.is_sqlite else "postgresql"
    dialect = store.database.engine.dialect
    statement = str(MARK_FIRST[name].compile(dialect=dialect))
    statement = re.sub(r"\?|%\(study\)s(::BIGINT)?", "3", statement)
    assert scanned(store, statement) == set()
    if store.database.is_sqlite:
        with store.database.read() as connection:
            rows = connection.execute(text(f"EXPLAIN QUERY PLAN {statement}")).all()
        plan = " ".join(str(row[-1]) for row in rows)
        assert "SEARCH marked USING INDEX ix_study_configs_first" in plan
        assert "PRIMARY KEY (study_id=?)" not in plan
