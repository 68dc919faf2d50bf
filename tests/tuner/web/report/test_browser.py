"""The report in a real browser: nothing overlaps, no errors, hostile texts inert; PDF, images."""

import re
import struct
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tuner.errors import EnvironmentProblem
from tuner.web.figures import FIGURES, Picture
from tuner.web.report import make_report
from tuner.web.report.browser import BROWSER_VARIABLE, find_browser, write_images, write_pdf
from tuner.web.report.html import render_html
from tuner.web.study_data import StudyData


def needs_browser() -> str:
    try:
        return find_browser()
    except EnvironmentProblem as error:
        pytest.skip(str(error))


@pytest.fixture(scope="module")
def chromium() -> Iterator[Any]:
    api = pytest.importorskip("playwright.sync_api", reason="needs the package playwright")
    path = needs_browser()
    with api.sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=path, args=["--no-sandbox"])
        yield browser
        browser.close()


@pytest.fixture(scope="module")
def page_file(full: StudyData, tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("report") / "report.html"
    path.write_text(render_html(make_report(full)), encoding="utf-8")
    return path


# bounding boxes of the words on each axis of each figure that overlap the next one's
OVERLAPS = """() => {
  const found = [];
  for (const plot of document.querySelectorAll(".plot")) {
    for (const kind of ["x", "y"]) {
      const boxes = {};
      for (const tick of plot.querySelectorAll(`.${kind}tick text`)) {
        const box = tick.getBoundingClientRect();
        const axis = tick.closest("g[class$='layer-above'], g.infolayer, g.cartesianlayer > g");
        const key = axis ? [...axis.parentNode.children].indexOf(axis) : 0;
        (boxes[key] ||= []).push([box, tick.textContent]);
      }
      for (const group of Object.values(boxes))
        for (let i = 0; i < group.length; i++)
          for (let j = i + 1; j < group.length; j++) {
            const [a, b] = [group[i][0], group[j][0]];
            const width = Math.min(a.right, b.right) - Math.max(a.left, b.left);
            const height = Math.min(a.bottom, b.bottom) - Math.max(a.top, b.top);
            if (width > 2 && height > 3)
              found.push([plot.dataset.figure, kind, group[i][1], group[j][1]]);
          }
    }
  }
  return found;
}"""


@pytest.mark.browser
@pytest.mark.parametrize(("width", "scheme"), [(1280, "light"), (390, "dark")])
def test_the_page_opens_clean(chromium: Any, page_file: Path, width: int, scheme: str) -> None:
    page = chromium.new_page(viewport={"width": width, "height": 900}, color_scheme=scheme)
    said: list[str] = []
    page.on("console", lambda message: said.append(message.text))
    page.on("pageerror", lambda error: said.append(str(error)))
    page.on("request", lambda request: said.append(request.url) if "http" in request.url else None)
    page.goto(page_file.as_uri())
    page.wait_for_selector("html[data-drawn=true]", timeout=60_000)
    assert said == []
    assert page.title() == "full – tuner report"  # noqa: RUF001 -- a dash between two names
    assert page.evaluate("document.documentElement.scrollWidth") <= width
    assert page.evaluate("document.querySelectorAll('.plot .main-svg').length") >= len(FIGURES)
    assert page.evaluate(OVERLAPS) == []
    change_theme(page, "Dark" if scheme == "light" else "Light")
    page.close()


def change_theme(page: Any, to: str) -> None:
    background = "getComputedStyle(document.querySelector('.plot .main-svg')).backgroundColor"
    before = page.evaluate(background)
    page.get_by_role("button", name=to).click()
    page.wait_for_function(f"{background} !== '{before}'")
    assert page.get_by_role("button", name="Light" if to == "Dark" else "Dark").is_visible()


@pytest.mark.browser
def test_figures_become_image_files(full: StudyData, tmp_path: Path) -> None:
    needs_browser()
    pictures = {
        name: found
        for name in ("gains", "timeline")
        if isinstance(found := FIGURES[name].build(full), Picture)
    }
    files = write_images(pictures, tmp_path / "png", "png")
    data = files["gains"].read_bytes()
    width, height = struct.unpack(">II", data[16:24])
    assert (width, height) == (1800, 2 * pictures["gains"].figure.layout.height)
    drawn = write_images(pictures, tmp_path / "svg", "svg", "dark")
    assert drawn["timeline"].read_text().startswith("<svg")


@pytest.mark.browser
def test_the_report_becomes_a_pdf(full: StudyData, tmp_path: Path) -> None:
    needs_browser()
    write_pdf(render_html(make_report(full), for_print=True), tmp_path / "report.pdf")
    data = (tmp_path / "report.pdf").read_bytes()
    assert data.startswith(b"%PDF")
    assert len(re.findall(rb"/Type\s*/Page\b", data)) > 5


def test_without_a_browser_the_error_says_what_to_install(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    monkeypatch.delenv(BROWSER_VARIABLE, raising=False)
    monkeypatch.setattr("sys.platform", "linux")
    with pytest.raises(EnvironmentProblem, match="apt-get install chromium"):
        find_browser()
    monkeypatch.setenv(BROWSER_VARIABLE, "no-such-browser")
    with pytest.raises(EnvironmentProblem, match="no-such-browser"):
        find_browser()
