"""`TunerSearch`: our search over legal configurations, as a search algorithm of Ray Tune.

```python
from ray import tune
import tuner
from tuner.bridges.ray_tune import TunerSearch

points = tuner.candidates("gpt2-124m", devices=8)
search = TunerSearch(points, metric="tokens_per_s", mode="max")
tune.Tuner(train, tune_config=tune.TuneConfig(search_alg=search, num_samples=20)).fit()
```

`train` is given the knobs of one legal configuration: `tuner.ParallelConfig(**config)`.
"""

import json
from collections.abc import Callable, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any, Literal

from ray.tune.search import Searcher as TuneSearcher  # noqa: TID253 -- a subclass needs its base

from search_spaces.parallel_config import ParallelConfig
from tuner import registry
from tuner.bridges import observing
from tuner.outcomes import config_from
from tuner.ports import Candidate, Observation, ObservationState, Searcher


class TunerSearch(TuneSearcher):
    """Proposes points of a list, each once, and tells Tune when none is left.

    Args:
        candidates: the points (`tuner.candidates`).
        metric: what a trial reports; a positive number.
        mode: `max` or `min`.
        searcher: the name of a searcher (`tuner spaces` lists them), or a class like them.
        seed: of the search.
        **options: of the searcher.

    A trial that fails, or that ends without the metric, is told as failed; one that reports
    `failure="oom"` as infeasible, which its neighbours in the space may then be as well.
    """

    def __init__(
        self,
        candidates: Sequence[Candidate],
        *,
        metric: str = "tokens_per_s",
        mode: Literal["max", "min"] = "max",
        searcher: str | Callable[..., Searcher] = "cbo",
        seed: int = 0,
        **options: Any,
    ) -> None:
        super().__init__(metric=metric, mode=mode)
        factory = registry.load("searchers", searcher) if isinstance(searcher, str) else searcher
        self._searcher: Searcher = factory(candidates, seed=seed, **options)
        self._known: dict[str, Observation] = {}

    def set_search_properties(
        self, metric: str | None, mode: str | None, config: dict[str, Any], **spec: Any
    ) -> bool:
        """Take over the metric; a search space of Tune's own is refused, as ours are the points."""
        if config:
            return False
        self._metric = metric or self._metric
        self._mode = mode or self._mode
        return True

    def suggest(self, trial_id: str) -> Any:  # Tune's own type leaves out what it asks for
        """The knobs of the next point as a mapping, or the text `FINISHED`."""
        self._searcher.tell(list(self._known.values()))
        found = self._searcher.ask(1)
        if not found:
            return str(TuneSearcher.FINISHED)
        self._known[trial_id] = observing.running(found[0])
        return found[0].model_dump()

    def on_trial_complete(
        self, trial_id: str, result: dict[str, Any] | None = None, error: bool = False
    ) -> None:
        """Note what came of a point."""
        if trial_id not in self._known:
            return
        config = self._known[trial_id].config
        value = (result or {}).get(self._metric or "")
        if error or not isinstance(value, int | float):
            self._known[trial_id] = observing.failed(config, result)
        else:
            is_max = self._mode == "max"
            self._known[trial_id] = observing.completed(config, float(value), maximize=is_max)

    def save(self, checkpoint_path: str) -> None:
        """Write what is known, so that `Tuner.restore` goes on."""
        known = {
            key: asdict(item) | {"config": item.config.model_dump(mode="json")}
            for key, item in self._known.items()
        }
        Path(checkpoint_path).write_text(json.dumps(known), encoding="utf-8")

    def restore(self, checkpoint_path: str) -> None:
        """Read what `save` wrote; points that were under way are told as such."""
        known = json.loads(Path(checkpoint_path).read_text(encoding="utf-8"))
        self._known = {key: _observation(values) for key, values in known.items()}


def _observation(values: dict[str, Any]) -> Observation:
    config: ParallelConfig = config_from(values["config"])
    state = ObservationState(values["state"])
    if state is ObservationState.COMPLETED:
        return observing.completed(config, values["tokens_per_s"], maximize=True)
    if state is ObservationState.RUNNING:
        return observing.running(config)
    return observing.failed(config, values)
