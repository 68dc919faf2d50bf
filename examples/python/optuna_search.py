"""Optuna with our search as its sampler, and a stored study as a study of Optuna's.

`optuna-dashboard sqlite:///optuna.db` shows both.
"""

import optuna

import tuner
from tuner.bridges.optuna import TunerSampler, to_optuna

points = tuner.candidates(
    "gpt2-124m",
    cluster="dgx-a100-80",
    devices=8,
    training={"dtype": "bf16"},
    space={"zero_stage": [0, 1]},
)
predicted_s = {point.config: point.step_time_s for point in points}
sampler = TunerSampler(points, seed=1)


def objective(trial: optuna.Trial) -> float:
    """A stand-in for a training run: tokens a second as the cost model predicts them."""
    config = sampler.suggest(trial)
    return 8 * 1024 / predicted_s[config]


search = optuna.create_study(
    study_name="sampled",
    storage="sqlite:///optuna.db",
    sampler=sampler,
    direction="maximize",
)
search.optimize(objective, n_trials=6)
print("best of the sampler:", search.best_params, round(search.best_value))

stored = tuner.run(
    "gpt2-124m",
    name="stored",
    cluster="dgx-a100-80",
    devices=8,
    max_trials=5,
    launcher="simulated",
    store="optuna_example.db",
)
with stored:
    shown = to_optuna(stored, "sqlite:///optuna.db")
    print("best of the stored study:", shown.best_params, round(shown.best_value))
