"""A small study in a database of its own, for tests of what runs it."""

from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

import pytest

from tuner.config import study_config_from
from tuner.study import Study, create_study


@pytest.fixture
def make_study(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Callable[..., Study]]:
    """Makes studies `s0`, `s1` ...: `make(**search)`, with other sections in `make({...})`."""
    monkeypatch.setattr("tuner.study.measured_peaks", lambda cluster, dtypes: {"fp32": 1e12})
    opened: list[Study] = []

    def make(sections: Mapping[str, Any] | None = None, **search: object) -> Study:
        document = {
            "name": f"s{len(opened)}",
            "model": {"source": "gpt2-tiny"},
            "training": {"sequence_length": 32, "global_batch_size": 8},
            "cluster": {"devices": 2},
            "search": {"max_trials": 5, "confirm_top": 0, "check_drift": False, **search},
            "store": {"url": f"sqlite:///{tmp_path / 'results.db'}"},
        }
        opened.append(create_study(study_config_from(document | dict(sections or {}))))
        return opened[-1]

    yield make
    for study in opened:
        study.store.close()
