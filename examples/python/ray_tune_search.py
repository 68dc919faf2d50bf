"""Ray Tune with our search: Tune runs the trials, we propose legal configurations.

Put your own training in place of `train`. Tune's trial is one process; where a trial is many ranks,
`tuner.run` with the launcher `ray` does the placing.
"""

from ray import tune

import tuner
from tuner.bridges.ray_tune import TunerSearch

points = tuner.candidates(
    "gpt2-124m",
    cluster="dgx-a100-80",
    devices=8,
    training={"dtype": "bf16"},
    space={"zero_stage": [0, 1]},
)
predicted_s = {point.config: point.step_time_s for point in points}


def train(knobs: dict) -> None:
    """A stand-in for a training run: reports what the cost model predicts."""
    config = tuner.ParallelConfig(**knobs)
    tune.report({"tokens_per_s": 8 * 1024 / predicted_s[config]})


search = TunerSearch(points, metric="tokens_per_s", mode="max", seed=1)
results = tune.Tuner(
    train,
    tune_config=tune.TuneConfig(search_alg=search, num_samples=6, max_concurrent_trials=1),
    run_config=tune.RunConfig(verbose=0),
).fit()
best = results.get_best_result(metric="tokens_per_s", mode="max")
print(tuner.ParallelConfig(**best.config).short(), best.metrics["tokens_per_s"])
