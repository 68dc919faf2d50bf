"""Search, look at the results, go on: the whole Python interface on one page.

The launcher is simulated, so this runs anywhere in seconds: the cost model takes the place of the
machines. Leave `launcher` and `cluster` out to measure on the devices of this machine.
"""

import tuner

study = tuner.run(
    "gpt2-124m",
    name="quick-start",
    cluster="dgx-a100-80",
    devices=8,
    training={"sequence_length": 1024, "global_batch_size": 64, "dtype": "bf16"},
    space={"zero_stage": [0, 1, 2, 3], "compile": False},
    baseline={"dp": 8, "micro_batch_size": 1},
    max_trials=10,
    launcher="simulated",
    store="quick_start.db",
    observer=print,
)

best = study.best
assert best is not None, "no trial gave a number: its trials say why"
print(f"\nbest: {best.label}, {best.tokens_per_s:,.0f} tokens/s, {study.speedup:.2f}x the baseline")

for trial in study:
    print(trial.number, trial.status, trial.purpose, trial.label, trial.tokens_per_s)

frame = study.to_frame()  # a row a trial: its knobs, numbers and failure
print(frame.groupby("zero_stage")["tokens_per_s"].max())

print(study.to_frame("knob_effects").head())  # any view of the database
print([(step.step, round(step.step_time_s, 3)) for step in study.steps(best.trial_number)][:3])
study.close()

# later, or elsewhere: six more configurations
with tuner.resume("quick-start", store="quick_start.db", max_trials=16) as study:
    print(f"{len(study)} trials; best {study.leaderboard(top=1)[0].label}")

# only looking
with tuner.Study.open("quick-start", store="quick_start.db") as study:
    print(study, study.status)
