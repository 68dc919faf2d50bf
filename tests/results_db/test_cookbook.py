"""Every query of the cookbook runs on both databases, says something, and says the same."""

import re
from datetime import datetime
from decimal import Decimal
from pathlib import Path

import pytest

import results_db
from results_db.queries import read_only_sql
from results_db.testing.postgres import PostgresServer
from results_db.views import view_statements

DOC = Path(__file__).parents[2] / "docs" / "database" / "cookbook.md"
QUERIES = re.findall(r"^### (.+?)\n.*?```sql\n(.+?)```", DOC.read_text(), re.MULTILINE | re.DOTALL)


@pytest.fixture(scope="module")
def sample_databases(request, tmp_path_factory):
    """URLs by kind; filled once for the module."""
    return {"folder": tmp_path_factory.mktemp("cookbook")}


def filled(databases, kind, fill, request):
    if kind not in databases:
        if kind == "sqlite":
            databases[kind] = str(databases["folder"] / "sample.db")
        else:
            server: PostgresServer = request.getfixturevalue("postgres_server")
            template = request.getfixturevalue("postgres_template")
            databases[kind] = server.new_database("cookbook", template)
        with results_db.open(databases[kind]) as store:
            fill(store)
    return databases[kind]


def normal(value):
    """What a value means, whichever driver brought it."""
    if isinstance(value, bool):
        return int(value)
    if isinstance(value, float | Decimal):
        return float(f"{float(value):.9g}")
    if isinstance(value, datetime):
        return value.strftime("%Y-%m-%d %H:%M:%S.%f")
    return value


def test_the_cookbook_answers_at_least_twenty_questions():
    assert len(QUERIES) >= 20
    assert len({title for title, _ in QUERIES}) == len(QUERIES)


@pytest.mark.parametrize(("title", "query"), QUERIES, ids=[title for title, _ in QUERIES])
def test_every_query_says_something(title, query, sample_databases, fill_sample, request):
    url = filled(sample_databases, "sqlite", fill_sample, request)
    _, rows = read_only_sql(url, query)
    assert rows, f"{title}: no rows, so nothing is tested"


@pytest.mark.postgres
def test_both_databases_give_the_same_answers(sample_databases, fill_sample, request):
    urls = [filled(sample_databases, kind, fill_sample, request) for kind in ("sqlite", "postgres")]
    for title, query in QUERIES:
        answers = []
        for url in urls:
            columns, rows = read_only_sql(url, query)
            answers.append((columns, [tuple(map(normal, row)) for row in rows]))
        assert answers[0] == answers[1], title


@pytest.mark.postgres
def test_both_databases_show_the_same_views(sample_databases, fill_sample, request):
    urls = [filled(sample_databases, kind, fill_sample, request) for kind in ("sqlite", "postgres")]
    for name in view_statements():
        answers = []
        for url in urls:
            columns, rows = read_only_sql(url, f"SELECT * FROM {name}")
            keep = [place for place, column in enumerate(columns) if not column.endswith("_at")]
            shown = [tuple(normal(row[place]) for place in keep) for row in rows]
            answers.append((columns, sorted(shown, key=repr)))
        assert answers[0] == answers[1], name
        assert answers[0][1], f"{name} is empty"
