"""Shapley values name the knob that was made to matter, and share out what the model predicts."""

import numpy as np
import pytest

from search_spaces.parallel_config import ParallelConfig
from tuner.searchers.sensitivity import importances_of
from tuner.web.importances import importances
from tuner.web.study_data import StudyData

CONFIGS = [
    ParallelConfig(tp=tp, pp=pp, micro_batch_size=size)
    for tp in (1, 2, 4, 8)
    for pp in (1, 2, 4)
    for size in (1, 2, 4)
]


def test_the_knob_that_mattered_comes_first() -> None:
    times = [2.0 * config.tp * config.micro_batch_size**0.1 for config in CONFIGS]
    found = importances_of(CONFIGS, times, method="shapley")
    assert [item.knob for item in found][:2] == ["tp", "micro_batch_size"]
    assert found[0].share > 0.7
    assert sum(item.share for item in found) == pytest.approx(1.0)
    # log2 steps of tp are 0, 1, 2, 3 times log 2 around their mean: a mean distance of log 2
    assert found[0].effect == pytest.approx(np.log(2), rel=0.3)
    assert all(item.spread >= 0 for item in found)


def test_a_knob_without_effect_has_none() -> None:
    found = importances_of(CONFIGS, [float(config.pp) for config in CONFIGS], method="shapley")
    effects = {item.knob: item.effect for item in found}
    assert effects["tp"] < 0.05 * effects["pp"]


def test_a_study_keeps_what_it_computed(full: StudyData, empty: StudyData) -> None:
    assert importances(full) is importances(full)
    assert {item.knob for item in importances(full)} == set(full.varying_knobs)
    assert importances(empty) == []
