from importlib.util import find_spec
from typing import Any, ClassVar

import pytest

from tuner.searchers.cbo import CboSearcher
from tuner.searchers.cbo_plain import CboPlainSearcher
from tuner.searchers.grid import GridSearcher
from tuner.searchers.optuna import OptunaSearcher
from tuner.searchers.prior import PriorSearcher
from tuner.searchers.random import RandomSearcher
from tuner.testing.searcher_contract import SearcherContract


class TestRandom(SearcherContract):
    searcher_class = RandomSearcher


class TestGridShuffled(SearcherContract):
    searcher_class = GridSearcher


class TestGridPredicted(SearcherContract):
    searcher_class = GridSearcher
    options: ClassVar[dict[str, Any]] = {"order": "predicted"}


class TestPrior(SearcherContract):
    searcher_class = PriorSearcher


class TestCbo(SearcherContract):
    searcher_class = CboSearcher


class TestCboPlain(SearcherContract):
    searcher_class = CboPlainSearcher


class TestCboSeveralObjectives(SearcherContract):
    searcher_class = CboSearcher
    options: ClassVar[dict[str, Any]] = {"objectives": ("throughput", "memory", "cost")}


@pytest.mark.slow
@pytest.mark.skipif(not find_spec("optuna"), reason="needs the package optuna")
class TestOptuna(SearcherContract):
    searcher_class = OptunaSearcher


@pytest.fixture(autouse=True)
def _clean_folder(tmp_path, monkeypatch):
    """Searchers write nothing where the user stands."""
    monkeypatch.chdir(tmp_path)
    yield
    assert list(tmp_path.iterdir()) == []
