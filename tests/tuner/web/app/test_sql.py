"""The SQL box and the downloads: reading alone, within limits, on both databases."""

import csv
import io
import sys

import pytest

import results_db
from results_db.testing.postgres import PostgresUnavailable, private_postgres
from tuner.testing.example_studies import add_example_study, add_hostile_study


@pytest.fixture(scope="module")
def postgres_url():
    try:
        with private_postgres() as server:
            url = server.new_database("dashboard")
            with results_db.open(url) as store:
                add_example_study(store)
                add_hostile_study(store)
            yield url
    except PostgresUnavailable as error:
        pytest.skip(f"no private PostgreSQL: {error}")


@pytest.fixture(params=["sqlite", pytest.param("postgresql", marks=pytest.mark.postgres)])
def both(request, database, client_of):
    url = database if request.param == "sqlite" else request.getfixturevalue("postgres_url")
    return client_of(url)


def test_pages_work_on_both_databases(both):
    for path in ("/", "/studies/1", "/studies/2", "/studies/1/trials?tp=2&q=tp&sort=-tokens_per_s",
                 "/studies/1/trials?sort=-mfu&compile=true", "/trials/1", "/compare?id=1&id=14",
                 "/studies/1/trials.csv", "/studies/1/trials.parquet", "/sql",
                 "/studies/1/figures/progress.json"):  # fmt: skip
        assert both.get(path).status_code == 200, path


def test_answers_are_shown(both):
    text = both.get("/sql", params={"q": "SELECT 4711 AS answer, NULL AS absent"}).text
    assert "4711" in text
    assert "1 row" in text


@pytest.mark.parametrize(
    "query",
    ["DELETE FROM trials", "UPDATE studies SET name = 'x'", "DROP TABLE trials",
     "INSERT INTO study_tags VALUES (1, 'x')", "SELECT 1; DELETE FROM trials", "VACUUM",
     "CREATE TABLE x (a INTEGER)", "SELEC", "COMMIT", "PRAGMA query_only = OFF",
     "ATTACH 'other.db' AS other", "SELECT '\x00'"],
)  # fmt: skip
def test_everything_else_is_refused_by_the_database(both, query):
    answer = both.get("/sql", params={"q": query})
    assert answer.status_code == 400
    assert 'role="alert"' in answer.text
    assert both.get("/sql.csv", params={"q": query}).status_code == 400
    assert (
        "13"
        in both.get("/sql", params={"q": "SELECT COUNT(*) FROM trials WHERE study_id = 1"}).text
    )


def test_long_answers_are_cut_and_said_so(both, monkeypatch):
    monkeypatch.setattr("tuner.web.app.sql_page.MOST_ROWS", 5)
    text = both.get("/sql", params={"q": "SELECT id FROM trials ORDER BY id"}).text
    assert "The first 5 rows" in text
    monkeypatch.setattr("tuner.web.app.downloads.MOST_SQL_ROWS", 5)
    answer = both.get("/sql.csv", params={"q": "SELECT id FROM trials ORDER BY id"})
    assert answer.status_code == 400


def test_slow_and_large_queries_end(both, monkeypatch):
    monkeypatch.setattr("tuner.web.app.sql_page.TIMEOUT_S", 0.2)
    endless = ("WITH RECURSIVE n(x) AS (SELECT 1 UNION ALL SELECT x + 1 FROM n) "
               "SELECT COUNT(*) FROM n")  # fmt: skip
    assert both.get("/sql", params={"q": endless}).status_code == 400
    monkeypatch.setattr("tuner.web.app.sql_page.TIMEOUT_S", 10.0)
    monkeypatch.setattr("tuner.web.app.sql_page.MOST_BYTES", 2**16)
    many = ("WITH RECURSIVE n(x) AS (SELECT 1 UNION ALL SELECT x + 1 FROM n WHERE x < 900) "
            "SELECT 'abcdefghijklmnopqrstuvwxyzabcdefghijklmnopqrstuvwxyz'"
            " || 'abcdefghijklmnopqrstuvwxyzabcdefghijklmnopqrstuvwxyz' FROM n")  # fmt: skip
    answer = both.get("/sql", params={"q": many})
    assert answer.status_code == 400
    assert "MiB" in answer.text


def test_too_many_queries_at_once_are_refused(client, monkeypatch):
    monkeypatch.setattr("tuner.web.app.sql_page.WAIT_S", 0.01)
    slots = client.app.app.state.dashboard.sql_slots
    assert slots.acquire()
    assert slots.acquire()
    assert client.get("/sql", params={"q": "SELECT 1"}).status_code == 503
    slots.release()
    assert client.get("/sql", params={"q": "SELECT 1"}).status_code == 200


def test_csv_holds_the_filtered_trials(both):
    text = both.get("/studies/1/trials.csv?status=infeasible").text
    rows = list(csv.DictReader(io.StringIO(text)))
    assert [row["trial"] for row in rows] == ["11", "12"]
    assert rows[0]["failure"] == "oom"


def test_parquet_is_typed(both):
    pq = pytest.importorskip("pyarrow.parquet")
    table = pq.read_table(io.BytesIO(both.get("/studies/1/trials.parquet").content))
    assert table.num_rows == 13
    assert str(table.schema.field("tokens_per_s").type) == "double"
    assert str(table.schema.field("finished_at").type) == "timestamp[us, tz=UTC]"
    answer = both.get("/sql.parquet", params={"q": "SELECT study, trial FROM trial_summary"})
    assert pq.read_table(io.BytesIO(answer.content)).num_rows == 18
    assert both.get("/sql.parquet", params={"q": "SELECT 1 AS a, 2 AS a"}).status_code == 400


def test_parquet_without_its_package_says_so(client, monkeypatch):
    monkeypatch.setitem(sys.modules, "pyarrow", None)
    answer = client.get("/studies/1/trials.parquet")
    assert answer.status_code == 501
    assert "pyarrow" in answer.text


def test_an_empty_download_is_refused(client):
    assert client.get("/sql.csv").status_code == 400
