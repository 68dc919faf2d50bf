"""Who is answered, with which headers, and that nothing that is stored can run."""

import csv
import io
import json
import re
from html.parser import HTMLParser

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tuner.testing.example_studies import FORMULA, HOSTILE
from tuner.web.app.downloads import csv_cell
from tuner.web.app.security import access_for, host_name
from tuner.web.figures import FIGURES

HOSTILE_PAGES = (
    "/", "/studies/2", "/studies/2/trials", "/trials/14", "/trials/17", "/compare?id=14&id=17",
    "/sql?q=SELECT+name,name+AS+again+FROM+studies", "/compare?id=1",
)  # fmt: skip
HEADERS = {
    "x-content-type-options": "nosniff",
    "x-frame-options": "DENY",
    "referrer-policy": "no-referrer",
    "cross-origin-resource-policy": "same-origin",
    "cross-origin-opener-policy": "same-origin",
}


def check_headers(answer):
    for name, value in HEADERS.items():
        assert answer.headers[name] == value
    policy = answer.headers["content-security-policy"]
    assert "default-src 'none'" in policy
    assert "frame-ancestors 'none'" in policy
    assert "unsafe" not in policy


@pytest.mark.parametrize(
    "path", ["/", "/studies/1/figures/progress.json", "/static/page.js", "/nowhere",
             "/sql.csv?q=SELECT+1", "/sql?q=DROP+TABLE+trials"]
)  # fmt: skip
def test_every_answer_has_the_headers(client, path):
    check_headers(client.get(path))


def test_headers_stand_on_errors_and_refusals(client, monkeypatch):
    check_headers(client.post("/"))
    check_headers(client.get("/", headers={"host": "evil.example"}))
    monkeypatch.setattr("tuner.web.app.studies.best", lambda *_: 1 / 0)
    answer = client.get("/")
    assert answer.status_code == 500
    assert "division" not in answer.text
    check_headers(answer)


@pytest.mark.parametrize("method", ["POST", "PUT", "PATCH", "DELETE", "OPTIONS", "TRACE", "FOO"])
def test_only_reading_methods(client, method):
    answer = client.request(method, "/sql?q=SELECT+1")
    assert answer.status_code == 405
    assert answer.headers["allow"] == "GET, HEAD"


def test_head_is_get_without_a_body(client):
    answer = client.head("/studies/1")
    assert (answer.status_code, answer.content) == (200, b"")


@pytest.mark.parametrize(
    "host",
    ["evil.example", "evil.example:8765", "localhost.evil.example", "127.0.0.1.evil.example", "",
     "192.168.0.7:8765", "127.0.0.1:80:80", "[::1", "127.0.0.1@evil.example", "localhost:x"],
)  # fmt: skip
def test_other_host_names_are_refused(client, host):
    assert client.get("/", headers={"host": host}).status_code == 403


@pytest.mark.parametrize("host", ["localhost", "LOCALHOST:1", "127.0.0.1:9999", "[::1]:8765"])
def test_names_of_loopback_are_served_on_any_port(client, host):
    assert client.get("/", headers={"host": host}).status_code == 200


def test_other_pages_get_nothing(client):
    for site in ("cross-site", "same-site"):
        headers = {"sec-fetch-site": site, "sec-fetch-mode": "no-cors"}
        assert client.get("/static/page.js", headers=headers).status_code == 403
        link = {"sec-fetch-site": site, "sec-fetch-mode": "navigate"}
        assert client.get("/studies/1", headers=link).status_code == 200
        assert client.get("/sql.csv?q=SELECT+1", headers=link).status_code == 403
        held = client.get("/sql?q=SELECT+4711+AS+answer", headers=link).text
        assert "Another page filled this box" in held
        assert "Answer of the query" not in held


def test_loopback_needs_no_token_and_other_addresses_do():
    for host in ("127.0.0.1", "::1", "localhost", "127.8.8.8"):
        assert access_for(host).token is None
    tokens = {access_for(host).token for host in ("0.0.0.0", "::", "10.0.0.1", "node7")}
    assert len(tokens) == 4
    assert all(token is not None and len(token) >= 43 for token in tokens)
    assert access_for("127.0.0.1", needs_token=True).token
    assert access_for("127.0.0.1", ["proxy.example"]).token


@pytest.fixture
def guarded(database, client_of, monkeypatch):
    monkeypatch.setattr("tuner.web.app.security.secrets.token_urlsafe", lambda _: "s3cret")
    client = client_of(database, "0.0.0.0", more_hosts=["proxy.example"])
    client.follow_redirects = False
    return client


def test_without_the_token_there_is_a_sign_in_page_alone(guarded):
    for path in ("/", "/studies/1", "/sql?q=SELECT+1", "/studies/1/trials.csv", "/nowhere",
                 "/static/page.js"):  # fmt: skip
        answer = guarded.get(path)
        assert answer.status_code == 401
        assert "example" not in answer.text
        assert answer.headers["cache-control"] == "no-store"
        check_headers(answer)
    assert guarded.get("/static/style.css").status_code == 200
    wrong = guarded.get("/?token=wrong")
    assert wrong.status_code == 401
    assert "not the token" in wrong.text
    assert "set-cookie" not in wrong.headers
    assert guarded.get("/", headers={"cookie": "tuner_token_8765=wrong"}).status_code == 401
    assert guarded.get("/", headers={"cookie": b"tuner_token_8765=\xff"}).status_code == 401


def test_the_token_becomes_a_cookie_and_leaves_the_address(guarded):
    answer = guarded.get("/studies/1/trials?tp=2&token=s3cret&q=a%26b")
    assert answer.status_code == 303
    assert answer.headers["location"] == "/studies/1/trials?tp=2&q=a%26b"
    cookie = answer.headers["set-cookie"].lower()
    for part in ("tuner_token_8765=", "httponly", "samesite=strict", "path=/"):
        assert part in cookie
    assert guarded.get("/studies/1").status_code == 200
    assert "s3cret" not in guarded.get("/studies/1").text


def test_the_token_works_as_bearer(guarded):
    assert guarded.get("/", headers={"authorization": "Bearer s3cret"}).status_code == 200
    assert guarded.get("/", headers={"authorization": "Bearer nope"}).status_code == 401


def test_signing_in_leads_nowhere_else(guarded):
    answer = guarded.get("//evil.example/x?token=s3cret")
    assert not answer.headers.get("location", "/").startswith("//")


def test_hosts_of_an_open_server(guarded):
    for host in ("192.168.0.7:8765", "proxy.example", "[fe80::1]:8765"):
        assert guarded.get("/", headers={"host": host}).status_code == 401
    assert guarded.get("/", headers={"host": "evil.example"}).status_code == 403


@given(st.text(max_size=40))
def test_host_reader_takes_any_text(text):
    name = host_name(text)
    assert name is None or name == name.strip().lower()


class Seen(HTMLParser):
    """Tags and attributes of a page."""

    def __init__(self, text):
        super().__init__()
        self.tags, self.attributes, self.links = set(), set(), []
        self.feed(text)

    def handle_starttag(self, tag, attrs):
        self.tags.add(tag)
        self.attributes |= {name for name, _ in attrs}
        self.links += [value for name, value in attrs if name in ("href", "src", "action")]


@pytest.mark.parametrize("path", HOSTILE_PAGES)
def test_stored_text_is_inert(client, path):
    text = client.get(path).text
    seen = Seen(text)
    assert not seen.tags & {"img", "iframe", "object", "embed", "base"}
    assert not any(name.startswith("on") for name in seen.attributes)
    assert not any(link.strip().lower().startswith("javascript") for link in seen.links)
    assert len(re.findall("<script", text)) <= 3
    assert "window.hacked='script'" not in text
    if "2" in path or "14" in path:
        assert "window.hacked" in text, "the hostile text is not shown at all"
    assert "{{ 7 * 7 }}" in text or "49" not in text


def test_stored_text_is_inert_in_figures(client):
    for name in FIGURES:
        answer = client.get(f"/studies/2/figures/{name}.json")
        found = answer.json()
        # Plotly reads a few HTML tags in its texts, so they must be escaped in the values, too
        assert "<img" not in json.dumps(found.get("data", ""))
        assert "<script" not in json.dumps(found.get("layout", ""))


def test_downloads_of_hostile_trials(client):
    answer = client.get("/studies/2/trials.csv")
    assert answer.headers["content-type"].startswith("text/csv")
    disposition = answer.headers["content-disposition"]
    assert re.fullmatch(r'attachment; filename="[A-Za-z0-9._-]+\.csv"', disposition)
    rows = list(csv.DictReader(io.StringIO(answer.text)))
    messages = {row["failure_message"] for row in rows}
    assert HOSTILE in messages
    assert f"'{FORMULA}" in messages
    assert not any(cell.startswith(("=", "@", "+")) for row in rows for cell in row.values())


@given(st.text(max_size=20))
def test_no_text_is_a_formula_in_csv(text):
    cell = csv_cell(text)
    assert cell == text or cell == f"'{text}"
    if cell[:1] in ("=", "+", "-", "@", "\t", "\r"):
        float(cell)


def test_numbers_stay_numbers_in_csv():
    assert [csv_cell(value) for value in (-1.5, None, "-3", "-inf", True)] == [
        -1.5, "", "-3", "-inf", True,
    ]  # fmt: skip
