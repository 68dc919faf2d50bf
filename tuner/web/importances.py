"""How much each knob moved the step time: Shapley values of a surrogate of the measured trials."""

from typing import TYPE_CHECKING
from weakref import WeakKeyDictionary

from tuner.web.cost_estimates import known_configs
from tuner.web.figures.style import thinned
from tuner.web.study_data import StudyData

if TYPE_CHECKING:
    from tuner.searchers.sensitivity import KnobImportance

_MOST_ROWS = 800
"""Configurations that the surrogate is fitted to; more would not change the order of the knobs."""


_KNOWN: "WeakKeyDictionary[StudyData, list[KnobImportance]]" = WeakKeyDictionary()


def importances(data: StudyData) -> list["KnobImportance"]:
    """Knobs, the most important first; empty when too little was measured."""
    if data not in _KNOWN:
        _KNOWN[data] = _compute(data)
    return _KNOWN[data]


def _compute(data: StudyData) -> list["KnobImportance"]:
    from tuner.searchers.sensitivity import importances_of

    rows = [data.leaderboard[i] for i in thinned(range(len(data.leaderboard)), _MOST_ROWS)]
    configs = known_configs(data, [row.config_key for row in rows])
    times = {row.config_key: row.step_time_s for row in rows}
    return importances_of(list(configs.values()), [times[key] for key in configs], method="shapley")
