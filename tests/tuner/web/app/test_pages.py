"""What the pages show, and that it is right."""

import re
from html.parser import HTMLParser

import pytest

import results_db
from results_db.queries import leaderboard
from tuner.testing.example_studies import add_finished_trial
from tuner.web.app.application import ROUTES
from tuner.web.app.cookbook import EXAMPLE_STUDY, saved_queries
from tuner.web.app.figure_pages import UNFORESEEN
from tuner.web.figures import FIGURES

PAGES = (
    "/", "/studies/1", "/studies/2", "/studies/1/trials", "/studies/2/trials", "/trials/1",
    "/trials/11", "/trials/14", "/compare", "/compare?id=1&id=2&id=11", "/sql", "/sql?q=SELECT+1",
)  # fmt: skip


class Labels(HTMLParser):
    """Collects what assistive technology needs of a page."""

    VOID = ("area", "br", "hr", "img", "input", "link", "meta")

    def __init__(self, text):
        super().__init__()
        self.ids, self.fields, self.labelled, self.headings, self.open = [], [], set(), [], []
        self.tables = self.captions = 0
        self.tags, self.attributes = set(), set()
        self.feed(text)

    def handle_starttag(self, tag, attrs):
        facts = dict(attrs)
        self.tags.add(tag)
        self.attributes |= set(facts)
        if "id" in facts:
            self.ids.append(facts["id"])
        if tag == "label":
            self.labelled.add(facts.get("for"))
        if tag in ("input", "select", "textarea") and facts.get("type") != "hidden":
            self.fields.append((facts, "label" in self.open))
        if re.fullmatch("h[1-6]", tag):
            self.headings.append(int(tag[1]))
        self.tables += tag == "table"
        self.captions += tag == "caption"
        if tag not in self.VOID:
            self.open.append(tag)

    def handle_endtag(self, tag):
        while self.open and self.open.pop() != tag:
            pass


@pytest.mark.parametrize("path", PAGES)
def test_every_page_loads_and_is_labelled(client, path):
    answer = client.get(path)
    assert answer.status_code == 200
    page = Labels(answer.text)
    assert len(set(page.ids)) == len(page.ids), "an id stands twice"
    assert page.tables == page.captions, "a table has no caption"
    assert page.headings[0] == 1
    assert page.headings.count(1) == 1
    assert all(b - a <= 1 for a, b in zip(page.headings, page.headings[1:], strict=False))
    for facts, is_inside in page.fields:
        assert is_inside or "aria-label" in facts or facts.get("id") in page.labelled, facts


@pytest.mark.parametrize("path", PAGES)
def test_pages_load_nothing_from_elsewhere_and_have_nothing_inline(client, path):
    text = client.get(path).text
    assert not re.search(r"<(script|link|img|iframe)[^>]*(src|href)=\"(?!/static/)", text)
    assert not re.search(r"<script(?![^>]*src=)", text)
    page = Labels(text)
    assert "style" not in page.tags | page.attributes
    assert not any(name.startswith("on") for name in page.attributes)


def test_leaderboard_is_that_of_the_database(client, database):
    text = client.get("/studies/1").text
    with results_db.open(database, read_only=True) as store:
        board = leaderboard(store, 1, limit=10)
    places = [text.index(f'id="board-{row.config_key}"') for row in board]
    assert places == sorted(places)
    assert f"{board[0].tokens_per_s:,.0f}" in text
    assert "over the baseline" in text


def test_trial_page_tells_all(client):
    text = client.get("/trials/1").text
    for words in ("dp4", "tokens/s", "IQR", "micro-batches", "box0", "0.9", "all knobs", "export"):
        assert words in text or words == "all knobs"
    failed = client.get("/trials/11").text
    assert "out of memory: 2.00 GiB wanted" in failed
    assert "during" in failed


def test_trial_by_number_leads_to_its_page(client):
    answer = client.get("/studies/2/trials/1", follow_redirects=False)
    assert (answer.status_code, answer.headers["location"]) == (303, "/trials/14")
    assert client.get("/studies/1/trials/99").status_code == 404


@pytest.mark.parametrize(
    "path",
    ["/nowhere", "/studies/99", "/trials/99", "/trials/99999999999999999999", "/studies/x",
     "/static/../app.py", "/static/none.js", "/studies/1/figures/none.json", "/sql?saved=none",
     "/studies/1/trials.xlsx", "/compare?add_study=1&add_number=77"],
)  # fmt: skip
def test_what_does_not_exist_is_said(client, path):
    answer = client.get(path)
    assert answer.status_code == 404
    assert "Traceback" not in answer.text


def test_comparison_marks_what_differs(client):
    text = client.get("/compare?id=1&id=2").text
    assert text.count('<tr class="differs">') > 3
    differing = client.get("/compare?id=1&id=2&only=differences").text
    assert '<th scope="row" title="tensor-parallel ranks">' in differing
    assert "global batch size" not in differing
    assert "global batch size" in text
    assert text.count("(best)") >= 2


def test_comparison_takes_trials_of_other_studies(client):
    answer = client.get("/compare?id=1&add_study=2&add_number=2", follow_redirects=False)
    assert answer.headers["location"] == "/compare?id=1&id=15"
    assert client.get("/compare?" + "&".join(f"id={n}" for n in range(1, 10))).status_code == 400
    assert client.get("/compare?id=x").status_code == 400
    assert "1 trial of the address is not in" in client.get("/compare?id=1&id=999").text


def test_equal_pages_are_not_sent_twice(client, growing):
    first = client.get("/studies/1")
    again = client.get("/studies/1", headers={"if-none-match": first.headers["etag"]})
    assert (again.status_code, again.content) == (304, b"")


def test_a_new_trial_changes_the_live_part(client_of, growing, monkeypatch):
    monkeypatch.setattr("tuner.web.app.dashboard.PULSE_S", 0.0)
    client = client_of(growing.url)
    live = {"hx-request": "true"}
    first = client.get("/studies/1", headers=live)
    assert "<html" not in first.text
    add_finished_trial(growing, 1, {"dp": 2, "tp": 2, "micro_batch_size": 8}, step_time_s=0.01)
    second = client.get("/studies/1", headers=live | {"if-none-match": first.headers["etag"]})
    assert second.status_code == 200
    assert "819,200" in second.text


def test_figures_are_json_with_captions_or_a_reason(client):
    drawn = 0
    for name in FIGURES:
        answer = client.get(f"/studies/1/figures/{name}.json")
        assert answer.status_code == 200
        assert answer.headers["content-type"] == "application/json"
        found = answer.json()
        assert found.get("missing") != UNFORESEEN
        assert "missing" in found or {"data", "layout", "caption"} <= set(found)
        drawn += "data" in found
        etag = {"if-none-match": answer.headers["etag"]}
        assert client.get(f"/studies/1/figures/{name}.json", headers=etag).status_code == 304
    assert drawn > len(FIGURES) / 2


def test_a_figure_that_cannot_be_made_says_so(client, monkeypatch):
    monkeypatch.setattr("tuner.web.figures.FigureSpec.build", lambda *_: 1 / 0)
    answer = client.get("/studies/2/figures/gains.json")
    assert answer.status_code == 200
    assert answer.json() == {"missing": UNFORESEEN}


def test_cookbook_is_complete_and_asks_of_the_chosen_study(client):
    queries = saved_queries()
    assert len(queries) >= 20
    assert len({query.slug for query in queries}) == len(queries)
    assert any(query.names_a_study for query in queries)
    for query in queries:
        assert EXAMPLE_STUDY not in query.for_study("o'clock")
    text = client.get("/sql", params={"saved": queries[1].slug, "study": "example"}).text
    assert "study = &#39;example&#39;" in text
    assert 'role="alert"' not in text


@pytest.mark.parametrize("query", saved_queries(), ids=lambda query: query.slug)
def test_saved_queries_run(client, query):
    answer = client.get("/sql", params={"saved": query.slug, "study": "example"})
    assert answer.status_code == 200
    assert "Answer of the query" in answer.text


def test_every_address_takes_get_alone():
    assert all(route.methods == {"GET", "HEAD"} for route in ROUTES)
