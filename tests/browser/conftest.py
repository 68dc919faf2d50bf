"""A running dashboard, and a headless Chromium of the system that looks at it."""

import shutil
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

import results_db
from results_db.store import Store
from tuner.cli.serve import listen
from tuner.testing.example_studies import add_example_study, add_hostile_study

if TYPE_CHECKING:
    from playwright.sync_api import Browser, BrowserContext, Page

_NAMES = ("chromium", "chromium-browser", "google-chrome", "google-chrome-stable", "chrome")
DESKTOP = {"width": 1280, "height": 900}


@pytest.fixture(scope="session")
def browser() -> "Iterator[Browser]":
    api = pytest.importorskip("playwright.sync_api", reason="playwright is not installed")
    found = next(filter(None, map(shutil.which, _NAMES)), None)
    if found is None:
        pytest.skip(f"no browser on the PATH: none of {', '.join(_NAMES)}")
    with api.sync_playwright() as playwright:
        try:
            # the sandbox needs rights that containers seldom give; the pages are our own
            opened = playwright.chromium.launch(
                executable_path=found, args=["--no-sandbox", "--disable-gpu"]
            )
        except api.Error as error:
            pytest.skip(f"{found} does not start: {error.message.splitlines()[0]}")
        yield opened
        opened.close()


@pytest.fixture(scope="session")
def writable(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Store]:
    """The database that the dashboard shows: an ordinary study (id 1) and a hostile one (id 2)."""
    path: Path = tmp_path_factory.mktemp("browser") / "results.db"
    with results_db.open(path) as store:
        add_example_study(store)
        add_hostile_study(store)
        yield store


@pytest.fixture(scope="session")
def address(writable: Store) -> Iterator[str]:
    """Where the dashboard answers."""
    uvicorn = pytest.importorskip("uvicorn")
    from tuner.web.app.application import build
    from tuner.web.app.security import access_for

    listener = listen("127.0.0.1", 0)
    reader = results_db.open(writable.url, read_only=True)
    app = build(reader, writable.url, access_for("127.0.0.1"))
    server = uvicorn.Server(uvicorn.Config(app, log_level="warning", ws="none"))
    thread = threading.Thread(target=server.run, kwargs={"sockets": [listener]})
    thread.start()
    yield f"http://127.0.0.1:{listener.getsockname()[1]}"
    server.should_exit = True
    thread.join(30)
    listener.close()
    reader.close()


@pytest.fixture
def open_page(browser: "Browser", address: str) -> "Iterator[Callable[..., Page]]":
    """Opens a path; at the end of the test no page may have complained."""
    contexts: list[BrowserContext] = []
    complaints: list[str] = []

    def make(path: str, *, width: dict[str, int] | None = None, scheme: str = "light") -> "Page":
        context = browser.new_context(
            viewport=width or DESKTOP,  # type: ignore[arg-type]
            color_scheme=scheme,  # type: ignore[arg-type]
        )
        contexts.append(context)
        page = context.new_page()
        page.on("pageerror", lambda error: complaints.append(f"{path}: {error}"))
        page.on(
            "console",
            lambda message: (
                complaints.append(f"{path}: {message.text}")
                if message.type in ("error", "warning") else None
            ),
        )  # fmt: skip
        page.on(
            "request",
            lambda asked: (
                complaints.append(f"{path} asks {asked.url}")
                if not asked.url.startswith((address, "data:", "blob:")) else None
            ),
        )  # fmt: skip
        page.goto(address + path)
        return page

    yield make
    for context in contexts:
        context.close()
    assert not complaints


@pytest.fixture
def wait_for_figures() -> "Callable[[Page], None]":
    """Scrolls through a page until every figure is drawn or says why it is not."""

    def wait(page: "Page") -> None:
        for figure in page.locator(".plot").all():
            figure.scroll_into_view_if_needed()
            figure.locator(".main-svg, .empty").first.wait_for(timeout=60_000)
        page.wait_for_timeout(300)

    return wait
