"""A user's SQL: any question, no change, on both databases."""

import contextlib

import pytest
from sqlalchemy import NullPool, create_engine, text

import results_db
from results_db.errors import InvalidQuery, NotFound
from results_db.queries import QueryLimits, read_only_sql
from results_db.testing.postgres import PostgresServer

WRITES = (
    "DELETE FROM trials", "UPDATE trials SET status = 'failed'", "DROP TABLE trials",
    "INSERT INTO study_tags VALUES (1, 'x')", "CREATE TABLE x (a INTEGER)",
    "CREATE TEMP TABLE x (a INTEGER)", "ALTER TABLE trials ADD COLUMN x INTEGER",
    "SELECT 1; DELETE FROM trials", "COMMIT; DELETE FROM trials", "VACUUM", "COMMIT", "BEGIN",
    "WITH gone AS (SELECT 1) DELETE FROM trials",
)  # fmt: skip
SQLITE_WRITES = (
    "ATTACH 'other.db' AS other", "PRAGMA query_only = OFF", "PRAGMA journal_mode = DELETE",
    "PRAGMA writable_schema = ON", "SELECT load_extension('x')", "DETACH main", "ANALYZE",
    "REPLACE INTO study_tags VALUES (1, 'x')", "VACUUM INTO 'copy.db'", "PRAGMA user_version = 3",
)  # fmt: skip
POSTGRES_WRITES = (
    "SET TRANSACTION READ WRITE", "SET transaction_read_only = off",
    "DO $$ BEGIN DELETE FROM trials; END $$",
    "DO $$ BEGIN COMMIT; DELETE FROM trials; END $$",
    "DO $$ BEGIN SET transaction_read_only = off; DELETE FROM trials; END $$",
    "WITH gone AS (DELETE FROM trials RETURNING id) SELECT * FROM gone",
    "SELECT set_config('transaction_read_only', 'off', false), nextval('trials_id_seq')",
    "SELECT nextval('trials_id_seq')", "TRUNCATE trials CASCADE", "SELECT * FROM trials FOR UPDATE",
    "COPY trials FROM '/etc/passwd'",
)  # fmt: skip


def contents(url):
    place = url if "://" in url else f"sqlite:///{url}"
    with create_engine(place, poolclass=NullPool).connect() as connection:
        rows = connection.execute(text("SELECT id, status FROM trials ORDER BY id")).all()
        tags = connection.execute(text("SELECT COUNT(*) FROM study_tags")).scalar()
    return [tuple(row) for row in rows], tags


def test_no_statement_writes(url, store, fill_sample, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    fill_sample(store)
    before = contents(url)
    files = set(tmp_path.iterdir())
    own = SQLITE_WRITES if store.database.is_sqlite else POSTGRES_WRITES
    for statement in (*WRITES, *own):
        with pytest.raises(InvalidQuery):
            read_only_sql(url, statement)
        assert contents(url) == before, statement
    assert set(tmp_path.iterdir()) == files


@pytest.mark.postgres
def test_side_effects_of_functions_are_undone(postgres_server, postgres_template):
    url = postgres_server.new_database("effects", postgres_template)
    with contextlib.suppress(InvalidQuery):  # PostgreSQL 16 and later refuse it
        read_only_sql(url, "SELECT lo_create(4711)")
    count = "SELECT COUNT(*) FROM pg_largeobject_metadata"
    assert read_only_sql(url, count)[1] == [(0,)]


def test_questions_are_answered_with_names(url, store, fill_sample):
    fill_sample(store)
    columns, rows = read_only_sql(
        url, "SELECT study, COUNT(*) AS n FROM trial_summary GROUP BY study ORDER BY study"
    )
    assert columns == ["study", "n"]
    assert rows == [("gpt2-1-node", 14), ("gpt2-2-nodes", 14)]
    assert read_only_sql(url, "SELECT '50%' AS x")[1] == [("50%",)]
    assert read_only_sql(url, "SELECT 1 WHERE 1 = 0") == (read_only_sql(url, "SELECT 1")[0], [])


def test_wrong_questions_are_explained(url, store):
    for question, words in (
        ("SELECT nothing FROM trials", "nothing"),
        ("SELEC 1", "syntax error"),
        ("", "no rows"),
        ("SELECT a\0b", "."),
    ):
        with pytest.raises(InvalidQuery, match=words):
            read_only_sql(url, question)


def test_limits_of_a_query(url, store):
    head = "WITH RECURSIVE n(i) AS (SELECT 1 UNION ALL SELECT i + 1 FROM n"
    endless = head + ") SELECT COUNT(*) FROM n"
    with pytest.raises(InvalidQuery, match=r"longer than|timeout"):
        read_only_sql(url, endless, QueryLimits(timeout_s=0.3))
    few = head + " WHERE i < 9) SELECT i FROM n"
    with pytest.raises(InvalidQuery, match="more than 8 rows"):
        read_only_sql(url, few, QueryLimits(max_rows=8))
    assert len(read_only_sql(url, few, QueryLimits(max_rows=9))[1]) == 9


def test_there_must_be_a_database(tmp_path):
    with pytest.raises(NotFound):
        read_only_sql(tmp_path / "none.db", "SELECT 1")
    assert not (tmp_path / "none.db").exists()


def test_a_file_without_write_right_can_be_asked(tmp_path, fill_sample):
    path = tmp_path / "x.db"
    with results_db.open(path) as store:
        fill_sample(store)
    path.chmod(0o444)
    assert read_only_sql(path, "SELECT COUNT(*) FROM trials")[1] == [(28,)]


@pytest.mark.postgres
def test_the_documented_reader_role(
    postgres_server: PostgresServer, postgres_template, fill_sample
):
    """The grants of the guide suffice to read everything, and for nothing else."""
    from pathlib import Path

    guide = (Path(__file__).parents[2] / "docs" / "database" / "guide.md").read_text()
    grants = guide.split("```sql\n-- reader role")[1].split("```")[0]
    url = postgres_server.new_database("roles", postgres_template)
    with results_db.open(url) as store:
        fill_sample(store)
        engine = create_engine(url, poolclass=NullPool)
        with engine.begin() as connection:
            for statement in grants.split(";")[:-1]:
                bare = "\n".join(statement.splitlines()[1:] or [statement])
                connection.execute(text(bare.replace("tuner_results", "roles")))
    reader = postgres_server.url("roles", user="tuner_reader")
    assert read_only_sql(reader, "SELECT COUNT(*) FROM leaderboard")[1] == [(16,)]
    with results_db.open(reader, read_only=True) as opened:
        assert len(opened.list_studies()) == 2
    with (
        create_engine(reader, poolclass=NullPool).connect() as connection,
        pytest.raises(Exception, match="permission denied"),
    ):
        connection.execute(text("DELETE FROM trials"))
