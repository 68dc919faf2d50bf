"""A whole study under random faults: nothing is lost, repeated or left behind."""

import threading
from collections import Counter
from pathlib import Path

import psutil
import pytest

from results_db.records import StudyStatus, TrialStatus
from tuner.config import study_config_from
from tuner.controller import run_study
from tuner.ports import StudyProgress, TrialEvent
from tuner.study import create_study
from tuner.testing.fake_trainer import UNRELIABLE_ENTRY
from tuner.testing.processes import descendants, left_after, processes_in

pytestmark = pytest.mark.slow

NUM_TRIALS = 200
MEMORY_GROWTH_BYTES = 60 << 20


class Memory:
    """Notes this process's memory while the study runs."""

    def __init__(self) -> None:
        self.rss_bytes: list[int] = []

    def on_event(self, event: TrialEvent, progress: StudyProgress) -> None:
        if event.event != "step":
            self.rss_bytes.append(psutil.Process().memory_info().rss)

    def on_message(self, text: str) -> None:
        pass


@pytest.mark.timeout(600)
def test_a_study_of_two_hundred_trials_half_of_them_hit(tmp_path: Path) -> None:
    before = set(descendants())
    config = study_config_from(
        {
            "name": "faults",
            "model": {"source": "gpt2-tiny"},
            "training": {"sequence_length": 32, "global_batch_size": 16},
            "cluster": {"devices": 4},
            "space": {
                "zero_stage": [0, 1], "recompute": ["none", "full"], "dtype": ["fp32", "bf16"],
                "micro_batch_size": [1, 2, 4], "use_all_devices": False,
                "pipeline_schedule": ["1f1b", "gpipe"],
            },
            "search": {
                "searcher": "random", "max_trials": NUM_TRIALS, "confirm_top": 0,
                "parallel_trials": 3, "early_stop": False, "check_drift": False, "max_retries": 1,
            },
            "measure": {"warmup_steps": 1, "measured_steps": 3, "deadline_s": 60.0, "hang_s": 3.0},
            "launcher": {"name": "local", "options": {"entry": UNRELIABLE_ENTRY}},
            "store": {"url": f"sqlite:///{(tmp_path / 'faults.db').as_posix()}"},
        }
    )  # fmt: skip
    study = create_study(config)
    assert len(study.candidates) >= NUM_TRIALS
    memory = Memory()
    outcome = run_study(study, memory, threading.Event())
    rows = study.store.trials(study.id)
    study.store.close()

    assert outcome.status is StudyStatus.COMPLETED
    searched = {row.trial.config_key for row in rows}
    assert len(searched) == NUM_TRIALS
    assert all(row.trial.status.is_terminal for row in rows)
    statuses = Counter(row.trial.status for row in rows)
    assert statuses[TrialStatus.COMPLETED] > NUM_TRIALS // 2
    assert statuses[TrialStatus.FAILED] + statuses[TrialStatus.INFEASIBLE] > NUM_TRIALS // 5
    assert all(
        row.failure is not None and row.failure.message for row in rows if not row.measurement
    )

    measured = [row for row in rows if row.measurement is not None]
    best = max(measured, key=lambda row: row.measurement.tokens_per_s)  # type: ignore[union-attr]
    truth = {key: 2_000 + int(key, 16) % 2_000 for key in searched}
    completed = {row.trial.config_key for row in measured}
    assert best.trial.config_key == min(completed, key=lambda key: truth[key])

    assert not left_after(set(descendants()) - before, 10.0)
    assert not processes_in(tmp_path)
    third = len(memory.rss_bytes) // 3
    assert memory.rss_bytes[-1] - memory.rss_bytes[third] < MEMORY_GROWTH_BYTES
