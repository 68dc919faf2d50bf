"""An objective and a constraint of your own, one plain function each.

The objective ranks the trials and is what the search is after; the constraint takes legal
configurations out of the space, and the database keeps its reason for each of them.
"""

import tuner

PRICE_PER_DEVICE_HOUR = 2.5


def tokens_per_dollar(trial: tuner.Trial) -> float:
    """A measured trial in, a positive number out; more is better."""
    assert trial.tokens_per_s is not None  # an objective is asked about measured trials alone
    return trial.tokens_per_s * 3600 / (PRICE_PER_DEVICE_HOUR * trial.num_devices)


def our_racks(config: tuner.ParallelConfig, setting: tuner.Setting) -> str | None:
    """A legal configuration and its model, recipe and cluster in; why not, or None, out."""
    if config.tp > setting.cluster.devices_per_node // 2:
        return f"tp {config.tp} crosses the two halves of a node, which share a slow link"
    if config.recompute == "full":
        return "full recomputation is switched off in our trainer"
    return None


if __name__ == "__main__":
    study = tuner.run(
        "gpt2-1.5b",
        name="dollars",
        cluster="dgx-a100-80",
        devices=8,
        training={"global_batch_size": 32, "dtype": "bf16"},
        space={"compile": False, "cp": 1},
        max_trials=8,
        objective=tokens_per_dollar,
        constraint=our_racks,
        launcher="simulated",
        more={"space.use_all_devices": False},  # fewer devices may be the better buy
        store="dollars.db",
    )
    with study:
        for row in study.leaderboard(top=3):
            print(f"{row.score:14,.0f} tokens/$  {row.tokens_per_s:10,.0f} tokens/s  {row.label}")
        refused = [row for row in study.untried() if row.rule == "user:our_racks"]
        print(f"{len(refused)} legal points are left out by our_racks, for example because")
        print(refused[0].reason)
