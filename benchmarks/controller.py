"""Throughput and memory of the controller on simulated trials.

One study over a large described cluster, searched by `random`, 64 trials at once, each answered at
once by the cost model: what is measured is asking, deciding, storing (durably, in SQLite) and
ranking. Memory is the controller process's peak resident set, each size in a process of its own.

    python -m benchmarks.controller [--quick] [--json] [--trials N ...]
"""

import json
import resource
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

from benchmarks.harness import finish, parser
from tuner.config import study_config_from
from tuner.controller import run_study
from tuner.ports import StudyProgress, TrialEvent
from tuner.study import create_study

PARALLEL = 64
DEVICES = 64 * PARALLEL
"""So many that trials of the space's largest world size run at the same time."""
_SPACE = {"use_all_devices": False, "tp": [1, 2, 4], "pp": [1, 2, 4], "dp": [1, 2, 4], "cp": [1]}
# Without them the space has some 21,000 points, with them more than 100,000.
_MORE_KNOBS = {
    "compile": [False, True],
    "optimizer_offload": [False, True],
    "reduce_dtype": ["fp32", "bf16"],
}


class _Silent:
    def on_event(self, event: TrialEvent, progress: StudyProgress) -> None:
        """Not shown."""

    def on_message(self, text: str) -> None:
        """Not shown."""


def run(num_trials: int) -> dict[str, float]:
    """Run one study of `num_trials` trials; its speed in the first and last tenth, and memory."""
    with tempfile.TemporaryDirectory() as name:
        config = study_config_from(
            {
                "model": {"source": "frontier-175b"},
                "training": {"sequence_length": 2048, "global_batch_size": 256, "dtype": "fp16"},
                "cluster": {"preset": "frontier", "devices": DEVICES},
                "space": _SPACE | (_MORE_KNOBS if num_trials > 20_000 else {}),
                "search": {
                    "searcher": "random", "max_trials": num_trials, "parallel_trials": PARALLEL,
                    "confirm_top": 0, "check_drift": False, "early_stop": False, "max_retries": 0,
                },
                "launcher": {"name": "simulated", "options": {"time_scale": 0.0}},
                "store": {"url": f"sqlite:///{Path(name, 'results.db').as_posix()}"},
            }
        )  # fmt: skip
        started_s = time.perf_counter()
        study = create_study(config)
        created_s = time.perf_counter()
        outcome = run_study(study, _Silent())
        ended_s = time.perf_counter()
        times = [row.trial.finished_at for row in study.store.trials(study.id)]
        study.store.close()
    ends = sorted(when.timestamp() for when in times if when is not None)
    tenth = max(2, len(ends) // 10)
    return {
        "trials": outcome.num_trials,
        "points": len(study.candidates),
        "create_s": created_s - started_s,
        "trials_per_s": outcome.num_trials / (ended_s - created_s),
        "first_tenth_per_s": tenth / max(1e-9, ends[tenth - 1] - ends[0]),
        "last_tenth_per_s": tenth / max(1e-9, ends[-1] - ends[-tenth]),
        "peak_memory_mb": resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024,
    }


def main() -> None:
    """Run every size in a process of its own."""
    options_parser = parser(__doc__)
    options_parser.add_argument("--trials", type=int, nargs="+")
    options_parser.add_argument("--one", type=int, help="run this size in this process")
    options = options_parser.parse_args()
    if options.one:
        print(json.dumps(run(options.one)))
        return
    sizes = options.trials or ([1000] if options.quick else [10_000, 100_000])
    figures: dict[str, Any] = {"parallel_trials": PARALLEL, "searcher": "random"}
    for size in sizes:
        command = [sys.executable, "-m", "benchmarks.controller", "--one", str(size)]
        done = subprocess.run(command, capture_output=True, text=True, check=False)
        if done.returncode:
            raise SystemExit(done.stderr)
        result = json.loads(done.stdout.splitlines()[-1])
        print(f"{size} trials: {result}", flush=True)
        figures["trials_per_s"] = result["trials_per_s"]
        figures |= {f"{key}_{size}": value for key, value in result.items()}
    finish(options, figures)


if __name__ == "__main__":
    main()
