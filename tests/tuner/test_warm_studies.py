"""A study that starts from what earlier ones in its database measured."""

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from tuner.api.observers import as_observer
from tuner.config import study_config_from
from tuner.controller import run_study
from tuner.errors import ConfigError
from tuner.study import Study, create_study, open_study, warmed_candidates


@pytest.fixture
def make_study(tmp_path: Path) -> Iterator[Callable[..., Study]]:
    opened: list[Study] = []

    def make(name: str, *, batch: int = 64, **search: Any) -> Study:
        config = study_config_from(
            {
                "name": name,
                "model": {"source": "gpt2-124m"},
                "training": {"sequence_length": 512, "global_batch_size": batch, "dtype": "bf16"},
                "cluster": {"preset": "dgx-a100-80", "devices": 8},
                "space": {"recompute": "none", "compile": False, "cp": 1, "dtype": "bf16"},
                "search": {"max_trials": 6, "confirm_top": 0, "check_drift": False, **search},
                "launcher": {"name": "simulated", "options": {"idiosyncrasy": 0.2, "seed": 3}},
                "store": {"url": f"sqlite:///{tmp_path / 'results.db'}"},
            }
        )
        opened.append(create_study(config))
        return opened[-1]

    yield make
    for study in opened:
        study.store.close()


def test_predictions_follow_what_earlier_studies_measured(make_study: Callable[..., Study]) -> None:
    earlier = make_study("earlier", searcher="random")
    run_study(earlier, as_observer(None))
    cold, warm = make_study("cold", batch=128), make_study("warm", batch=128, warm_start="earlier")
    assert warmed_candidates(cold) == cold.candidates
    corrected = warmed_candidates(warm)
    assert [c.config for c in corrected] == [c.config for c in warm.candidates]
    moved = [
        abs(new.step_time_s / old.step_time_s - 1)
        for new, old in zip(corrected, warm.candidates, strict=True)
        if new.step_time_s and old.step_time_s
    ]
    assert max(moved) > 0.05
    again = open_study(warm.config.store.url, "warm")
    assert warmed_candidates(again) == corrected
    again.store.close()


def test_an_unknown_study_is_refused_before_anything_runs(
    make_study: Callable[..., Study],
) -> None:
    make_study("earlier")
    with pytest.raises(ConfigError, match="no study is called 'nothing'"):
        make_study("warm", warm_start=["earlier", "nothing"])
