"""The report's documents: whole, safe to open, the same facts in every format."""

import base64
import hashlib
import json
import re

import pytest

from tuner.cli.output import plain
from tuner.web.figures import FIGURES
from tuner.web.report import Report, make_report
from tuner.web.report.html import as_script_data, render_html
from tuner.web.report.machine import as_document
from tuner.web.report.markdown import render_markdown
from tuner.web.study_data import StudyData


@pytest.fixture(scope="module")
def report(full: StudyData) -> Report:
    return make_report(full)


@pytest.fixture(scope="module")
def html(report: Report) -> str:
    return render_html(report)


def own_parts(html: str) -> str:
    """The document without plotly.js, which is not ours."""
    return re.sub(r"<script>.*?</script>", "", html, flags=re.DOTALL)


def test_the_file_needs_nothing_from_elsewhere(html: str) -> None:
    assert not re.search(r"<(link|iframe|object|embed|base)\b", own_parts(html))
    assert not re.search(r"(src|href)=\"(?!#|data:)", own_parts(html))
    assert "url(" not in own_parts(html)
    assert len(html) < 10e6


def test_only_our_two_scripts_may_run(html: str) -> None:
    policy = re.search(r'Content-Security-Policy" content="([^"]*)"', html)
    assert policy is not None
    scripts = re.findall(r"<script>(.*?)</script>", html, flags=re.DOTALL)
    hashes = {
        f"'sha256-{base64.b64encode(hashlib.sha256(text.encode()).digest()).decode()}'"
        for text in scripts
    }
    assert len(scripts) == 2
    assert hashes == set(re.findall(r"'sha256-[^']+'", policy[1]))
    assert "default-src 'none'" in policy[1]
    assert "unsafe-inline" not in policy[1].partition("style-src")[0]


def test_texts_of_the_study_cannot_run(html: str) -> None:
    assert "document.title" in own_parts(html)  # the texts are there,
    assert "<img" not in own_parts(html)  # but as words
    assert "<script>document" not in html


def test_data_cannot_end_its_block() -> None:
    text = as_script_data({"a": "</script><!-- & "})
    assert not set("<>&") & set(text)
    assert json.loads(text) == {"a": "</script><!-- & "}


def test_every_figure_is_in_the_page_with_its_words(html: str) -> None:
    for name in FIGURES:
        assert f'data-figure="{name}"' in html
        assert f'id="data-{name}"' in html


def test_formats_tell_the_same(report: Report, html: str) -> None:
    best = report.facts.winner
    assert best is not None
    document = json.loads(json.dumps(plain(as_document(report)), allow_nan=False))
    markdown = render_markdown(report)
    assert document["winner"]["config_key"] == best.config_key
    assert [row["label"] for row in document["board"]] == [r.label for r in report.facts.board]
    for text in (html, markdown):
        assert best.label in text.replace("\\", "")
        assert f"{report.facts.gains[0].ratio:.2f} times the baseline" in text
    assert set(document["figures"]) == set(FIGURES)


def test_markdown_has_no_markup_of_the_study(report: Report) -> None:
    text = render_markdown(report, {"gains": "figures/gains.png"})
    outside = re.sub(r"```toml.*?```", "", text, flags=re.DOTALL)
    assert not re.search(r"(?<!\\)<(script|img)", outside)
    assert "![What the best gains](figures/gains.png)" in text


def test_ties_are_marked(report: Report, html: str) -> None:
    assert report.facts.num_tied == 2
    assert "cannot tell the first 2 configurations apart" in html
    assert html.count('<td class="n">1=</td>') == 2


def test_an_empty_study_is_a_report_that_says_so(empty: StudyData) -> None:
    report = make_report(empty)
    assert report.headline == "No trial has given a number yet."
    text = render_html(report)
    assert "data-figure" not in text.replace('data-figure="untried"', "")
    assert "No trial has given a number yet" in render_markdown(report)
