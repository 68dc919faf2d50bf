"""The tuner: proposes parallel configurations, runs trials, remembers and ranks them.

```python
import tuner

study = tuner.run("gpt2-124m", devices=2, max_trials=12, observer=print)
print(study.best.label, study.best.tokens_per_s)
```

Everything here is loaded when it is first used, so that `import tuner` costs nothing.
"""

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from results_db.errors import ResultsDbError
    from search_spaces.constraints.base import Setting
    from search_spaces.errors import SearchSpaceError
    from search_spaces.parallel_config import ParallelConfig
    from tuner.api.options import RunOptions, StudyOptions, describe
    from tuner.api.ranking import Ranked
    from tuner.api.running import candidates, resume, run
    from tuner.api.study import Study
    from tuner.comparison import Comparison, compare
    from tuner.config import StudyConfig
    from tuner.custom import ConstraintFunction, ObjectiveFunction
    from tuner.errors import (
        ConfigError,
        EnvironmentProblem,
        LauncherError,
        NothingFeasibleError,
        StorageProblem,
        TunerError,
    )
    from tuner.ports import (
        Candidate,
        Launcher,
        Observation,
        ObservationState,
        Searcher,
        StudyObserver,
        TrialHandle,
    )
    from tuner.trial import Trial

__version__ = "0.1.0"

# name -> the module that it comes from
_PLACES = {
    "Candidate": "tuner.ports",
    "Comparison": "tuner.comparison",
    "ConfigError": "tuner.errors",
    "ConstraintFunction": "tuner.custom",
    "EnvironmentProblem": "tuner.errors",
    "Launcher": "tuner.ports",
    "LauncherError": "tuner.errors",
    "NothingFeasibleError": "tuner.errors",
    "ObjectiveFunction": "tuner.custom",
    "Observation": "tuner.ports",
    "ObservationState": "tuner.ports",
    "ParallelConfig": "search_spaces.parallel_config",
    "Ranked": "tuner.api.ranking",
    "ResultsDbError": "results_db.errors",
    "RunOptions": "tuner.api.options",
    "SearchSpaceError": "search_spaces.errors",
    "Searcher": "tuner.ports",
    "Setting": "search_spaces.constraints.base",
    "StorageProblem": "tuner.errors",
    "Study": "tuner.api.study",
    "StudyConfig": "tuner.config",
    "StudyObserver": "tuner.ports",
    "StudyOptions": "tuner.api.options",
    "Trial": "tuner.trial",
    "TrialHandle": "tuner.ports",
    "TunerError": "tuner.errors",
    "candidates": "tuner.api.running",
    "compare": "tuner.comparison",
    "describe": "tuner.api.options",
    "resume": "tuner.api.running",
    "run": "tuner.api.running",
}

__all__ = [
    "Candidate",
    "Comparison",
    "ConfigError",
    "ConstraintFunction",
    "EnvironmentProblem",
    "Launcher",
    "LauncherError",
    "NothingFeasibleError",
    "ObjectiveFunction",
    "Observation",
    "ObservationState",
    "ParallelConfig",
    "Ranked",
    "ResultsDbError",
    "RunOptions",
    "SearchSpaceError",
    "Searcher",
    "Setting",
    "StorageProblem",
    "Study",
    "StudyConfig",
    "StudyObserver",
    "StudyOptions",
    "Trial",
    "TrialHandle",
    "TunerError",
    "__version__",
    "candidates",
    "compare",
    "describe",
    "resume",
    "run",
]


def __getattr__(name: str) -> Any:
    """Load a public name from its module."""
    if name not in _PLACES:
        raise AttributeError(f"module 'tuner' has no attribute {name!r}")
    found = getattr(importlib.import_module(_PLACES[name]), name)
    globals()[name] = found
    return found


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
