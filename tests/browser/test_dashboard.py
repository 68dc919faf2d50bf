"""The dashboard as a person meets it, in a real browser."""

import subprocess
import sys

import pytest

PHONE = {"width": 390, "height": 844}
pytestmark = [pytest.mark.browser, pytest.mark.slow, pytest.mark.timeout(300)]

PAGES = {
    "studies": "/",
    "study": "/studies/1",
    "trials": "/studies/1/trials?status=completed&sort=-tokens_per_s",
    "trial": "/trials/1",
    "failed trial": "/trials/11",
    "comparison": "/compare?id=1&id=2&id=11",
    "sql": "/sql?q=SELECT+study,+config,+tokens_per_s+FROM+best_configs",
    "refusal": "/sql?q=DROP+TABLE+trials",
}
UNEVENTFUL = [name for name in PAGES if name != "refusal"]
"""Browsers complain of an answer with the status 400, whatever the page does."""


@pytest.mark.parametrize("name", UNEVENTFUL)
def test_pages_load_without_a_complaint(open_page, wait_for_figures, name):
    page = open_page(PAGES[name])
    if name == "study":
        wait_for_figures(page)
        assert page.locator(".plot .main-svg").count() > 5
    assert page.locator("h1").count() == 1


@pytest.mark.parametrize("scheme", ["light", "dark"])
@pytest.mark.parametrize("name", UNEVENTFUL)
def test_no_serious_accessibility_fault(open_page, wait_for_figures, name, scheme):
    page = open_page(PAGES[name], scheme=scheme)
    if name == "study":
        wait_for_figures(page)
    axe = pytest.importorskip("axe_playwright_python.sync_playwright").Axe()
    for choice in page.locator("details:not(.choice)").all():
        choice.evaluate("element => { element.open = true; }")
    found = axe.run(page).response["violations"]
    grave = [fault for fault in found if fault["impact"] in ("serious", "critical")]
    assert not [(fault["id"], [node["html"] for node in fault["nodes"]][:3]) for fault in grave]


@pytest.mark.parametrize("width", [PHONE, {"width": 320, "height": 640}], ids=["390", "320"])
@pytest.mark.parametrize("name", UNEVENTFUL)
def test_no_page_scrolls_sideways_on_a_phone(open_page, wait_for_figures, name, width):
    page = open_page(PAGES[name], width=width)
    if name == "study":
        wait_for_figures(page)
    assert page.evaluate("document.documentElement.scrollWidth") <= width["width"]


def test_hostile_study_is_inert(open_page, wait_for_figures):
    for path in ("/", "/studies/2", "/studies/2/trials", "/trials/14", "/trials/17",
                 "/compare?id=14&id=17", "/sql?q=SELECT+name,resolved_config+FROM+studies",
                 "/sql?study=x"):  # fmt: skip
        page = open_page(path)
        if path == "/studies/2":
            wait_for_figures(page)
            for target in page.locator(".plotly-target").all():
                target.hover(force=True)
        page.wait_for_timeout(200)
        assert page.evaluate("window.hacked") is None
        assert page.locator("img, svg[onload]").count() == 0


def test_filters_live_in_the_address(open_page):
    page = open_page("/studies/1/trials")
    assert page.locator("#results tbody tr").count() == 13
    page.locator("summary", has_text="status").click()
    page.get_by_label("infeasible").check()
    page.wait_for_url("**/trials?status=infeasible")
    assert page.locator("#results tbody tr").count() == 2
    assert "2 trials found" in page.locator("#announcer").text_content()
    page.locator("#sort-config").click()
    page.wait_for_url("**/trials?status=infeasible&sort=config")
    page.reload()
    assert page.locator("#results tbody tr").count() == 2
    assert page.locator("[aria-sort=ascending]").count() == 1
    with page.expect_event("load"):  # going back asks the server anew
        page.go_back()
    assert page.url.endswith("/trials?status=infeasible")
    with page.expect_event("load"):
        page.go_back()
    assert page.url.endswith("/trials")
    assert page.locator("#results tbody tr").count() == 13
    page.locator("#q").fill("out of memory")
    page.wait_for_url("**/trials?q=out%20of%20memory")


def test_trials_can_be_compared_from_the_list(open_page):
    page = open_page("/studies/1/trials")
    page.get_by_label("Compare trial 3", exact=True).check()
    page.get_by_label("Compare trial 5", exact=True).check()
    page.get_by_role("button", name="Compare the ticked trials").click()
    page.wait_for_url("**/compare?id=5&id=3")
    assert page.locator("tr.differs").count() > 3
    page.get_by_label("Trial number").fill("7")
    page.get_by_role("button", name="Add").click()
    page.wait_for_url("**/compare?id=5&id=3&id=7")
    page.get_by_text("Show only what differs").click()
    page.wait_for_url("**only=differences")


def test_sql_runs_from_the_keyboard(open_page):
    page = open_page("/sql")
    page.locator("#sql-text").fill("SELECT 4700 + 11 AS answer")
    page.keyboard.press("Control+Enter")
    page.get_by_role("cell", name="4711").wait_for()
    page.get_by_text("Which is the fastest").click()
    page.get_by_role("link", name="What is the best configuration of every study?").click()
    page.locator("#answer-title").wait_for()
    with page.expect_download() as download:
        page.get_by_role("link", name="CSV").click()
    assert download.value.suggested_filename == "query.csv"


def test_a_refused_query_says_why(browser, address):
    page = browser.new_page()
    page.goto(address + PAGES["refusal"])
    assert "may only read" in page.get_by_role("alert").text_content()
    page.close()


WRITER = """
import sys
import results_db
from tuner.testing.example_studies import add_finished_trial
with results_db.open(sys.argv[1]) as store:
    add_finished_trial(store, 1, {"dp": 2, "tp": 2, "micro_batch_size": 8}, step_time_s=0.01)
"""


def test_a_trial_of_another_process_shows_up_by_itself(open_page, writable):
    page = open_page("/studies/1")
    page.locator("#board-title").wait_for()
    before = page.locator(".tiles dd").first.text_content()
    subprocess.run([sys.executable, "-c", WRITER, writable.url], check=True, timeout=60)
    page.get_by_text("819,200").first.wait_for(timeout=15_000)
    assert page.locator(".tiles dd").first.text_content() != before
    page.wait_for_timeout(100)
    assert "819,200" in page.locator("#announcer").text_content()


def test_skip_link_and_focus(open_page):
    page = open_page("/studies/1")
    page.keyboard.press("Tab")
    assert page.evaluate("document.activeElement.className") == "skip"
    page.keyboard.press("Enter")
    assert page.evaluate("document.activeElement.id") == "content"
    page.keyboard.press("Tab")
    outline = page.evaluate("getComputedStyle(document.activeElement).outlineStyle")
    assert outline != "none"


def test_copy_button(open_page):
    page = open_page("/trials/1")
    page.get_by_role("button", name="Copy export command").click()
    page.get_by_text("Copied").first.wait_for()
