"""A dashboard over example studies, asked without a server."""

from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from starlette.testclient import TestClient

import results_db
from results_db.store import Store
from tuner.testing.example_studies import add_example_study, add_hostile_study
from tuner.web.app.application import build
from tuner.web.app.security import access_for

BASE = "http://127.0.0.1:8765"


@pytest.fixture(scope="session")
def database(tmp_path_factory: pytest.TempPathFactory) -> str:
    """An SQLite file with an ordinary study (id 1) and a hostile one (id 2)."""
    path = tmp_path_factory.mktemp("dashboard") / "results.db"
    with results_db.open(path) as store:
        add_example_study(store)
        add_hostile_study(store)
    return str(path)


@pytest.fixture
def client_of() -> Iterator[Callable[..., TestClient]]:
    """Gives a client of a dashboard over a database; keywords as `access_for` has them."""
    stores: list[Store] = []

    def make(url: str, host: str = "127.0.0.1", **options: object) -> TestClient:
        stores.append(results_db.open(url, read_only=True))
        app = build(stores[-1], url, access_for(host, **options))  # type: ignore[arg-type]
        return TestClient(app, base_url=BASE, raise_server_exceptions=False)

    yield make
    for store in stores:
        store.close()


@pytest.fixture
def client(database: str, client_of: Callable[..., TestClient]) -> TestClient:
    return client_of(database)


@pytest.fixture
def growing(tmp_path: Path) -> Iterator[Store]:
    """A database that a test may write to while the dashboard shows it."""
    with results_db.open(tmp_path / "growing.db") as store:
        add_example_study(store)
        yield store
