"""The list of trials: filters and order in the address, pages by key."""

import contextlib
import re

import pytest
from hypothesis import given
from hypothesis import strategies as st
from starlette.datastructures import QueryParams

from results_db.trial_lists import SORT_KEYS, Cursor
from tuner.web.app.dashboard import PageProblem
from tuner.web.app.trial_query import encode_cursor, read_query

NUM_TRIALS = 13


def numbers(text):
    return [int(n) for n in re.findall(r'<th scope="row" class="number"><a [^>]*>(\d+)</a>', text)]


@pytest.mark.parametrize(
    ("query", "expected"),
    [
        ("", list(range(NUM_TRIALS, 0, -1))),
        ("sort=number", list(range(1, NUM_TRIALS + 1))),
        ("status=infeasible", [12, 11]),
        ("status=infeasible&status=failed", [13, 12, 11]),
        ("purpose=baseline", [1]),
        ("failure=oom&sort=number", [11, 12]),
        ("tp=2&pp=2", [4]),
        ("tp=2&tp=4&status=completed&sort=number", [2, 4, 6, 8, 10]),
        ("compile=true", [8]),
        ("q=GPIPE", [4]),
        ("q=out+of+memory", [12, 11]),
        ("q=100%25", []),
        ("min_speed=16000", [1]),
        ("max_memory=1&sort=number", [1, 5, 9]),
        ("recompute=full&zero_stage=1", [6]),
    ],
)
def test_filters(client, query, expected):
    answer = client.get(f"/studies/1/trials?{query}")
    assert numbers(answer.text) == expected
    assert f"{len(expected)} trial" in answer.text


@pytest.mark.parametrize("direction", ["", "-"])
@pytest.mark.parametrize("key", SORT_KEYS)
def test_pages_hold_every_trial_once_in_both_directions(client, monkeypatch, key, direction):
    monkeypatch.setattr("tuner.web.app.trial_list.PAGE_SIZE", 3)
    address, seen = f"/studies/1/trials?sort={direction}{key}", []
    while address:
        text = client.get(address).text
        seen.append(numbers(text))
        found = re.search(r'id="page-after" href="([^"]+)"', text)
        last, address = address, found and found[1].replace("&amp;", "&")
    forward = [n for page in seen for n in page]
    assert sorted(forward) == list(range(1, NUM_TRIALS + 1))
    backward, address = [], last
    while address:
        text = client.get(address).text
        backward.append(numbers(text))
        found = re.search(r'id="page-before" href="([^"]+)"', text)
        address = found and found[1].replace("&amp;", "&")
    assert [n for page in reversed(backward) for n in page] == forward


def test_order_puts_trials_without_a_number_last(client):
    for sort in ("tokens_per_s", "-tokens_per_s"):
        assert set(numbers(client.get(f"/studies/1/trials?sort={sort}").text)[-3:]) == {11, 12, 13}


def test_sorted_column_is_marked(client):
    text = client.get("/studies/1/trials?sort=-tokens_per_s&status=completed").text
    assert text.count("aria-sort") == 1
    head = re.search(r'<th[^>]*aria-sort="descending"><a[^>]*href="([^"]+)"', text)
    assert head
    assert "status=completed" in head[1]
    assert "sort=tokens_per_s" in head[1]


def test_htmx_gets_the_table_alone(client):
    text = client.get("/studies/1/trials?tp=2", headers={"hx-request": "true"}).text
    assert text.lstrip().startswith('<section id="results"')
    restored = {"hx-request": "true", "hx-history-restore-request": "true"}
    assert "<html" in client.get("/studies/1/trials?tp=2", headers=restored).text


@pytest.mark.parametrize(
    "query",
    ["colour=red", "status=happy", "sort=beauty", "min_speed=fast", "min_speed=nan", "tp=two",
     "tp=-1", "compile=2", "after=x", "after=W3t9LDFd", "after=WzEsdHJ1ZV0", "purpose=fun",
     "tp=99999999999999999999", "max_memory=inf"],
)  # fmt: skip
def test_wrong_filters_are_refused_with_the_legal_ones(client, query):
    answer = client.get(f"/studies/1/trials?{query}")
    assert answer.status_code == 400
    assert "Traceback" not in answer.text


@given(
    value=st.none() | st.integers(-(2**60), 2**60) | st.text() | st.floats(allow_nan=False),
    number=st.integers(0, 2**63 - 1), is_backward=st.booleans(),
)  # fmt: skip
def test_cursors_come_back_as_they_were(value, number, is_backward):
    cursor = Cursor(value, number, is_backward)
    name = "before" if is_backward else "after"
    assert read_query(1, QueryParams({name: encode_cursor(cursor)})).cursor == cursor


@given(st.dictionaries(st.sampled_from(["q", "sort", "after", "tp", "status", "min_speed"]),
                       st.text(max_size=30)))  # fmt: skip
def test_no_address_breaks_the_reader(params):
    with contextlib.suppress(PageProblem):
        read_query(1, QueryParams(params))
