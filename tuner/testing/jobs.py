"""Small jobs for tests."""

import json
from pathlib import Path

from search_spaces.model_spec import ModelSpec
from search_spaces.parallel_config import ParallelConfig
from search_spaces.training_spec import TrainingSpec
from trainer.contract import FaultSpec, MeasureSpec, TrialJob
from tuner.testing.fake_trainer import FAKE_FILE, FakeBehaviour


def tiny_model() -> ModelSpec:
    """A Llama-style model that a CPU steps through in milliseconds."""
    return ModelSpec(
        name="tiny", family="llama", num_layers=4, hidden_size=32, num_heads=4, num_kv_heads=4,
        head_dim=8, ffn_size=64, vocab_size=128, max_positions=64,
    )  # fmt: skip


def tiny_job(
    trial_id: str = "t1",
    *,
    config: ParallelConfig | None = None,
    deadline_s: float = 30.0,
    hang_s: float = 15.0,
    warmup_steps: int = 1,
    measured_steps: int = 2,
    fault: FaultSpec | None = None,
    memory_limit_bytes: int | None = None,
) -> TrialJob:
    """A job of two ranks (`dp=2`) unless `config` says otherwise."""
    return TrialJob(
        trial_id=trial_id,
        model=tiny_model(),
        training=TrainingSpec(sequence_length=16, global_batch_size=8),
        config=config or ParallelConfig(dp=2),
        measure=MeasureSpec(
            warmup_steps=warmup_steps, measured_steps=measured_steps, deadline_s=deadline_s,
            hang_s=hang_s,
        ),
        fault=fault,
        memory_limit_bytes=memory_limit_bytes,
    )  # fmt: skip


def misbehave(folder: Path, behaviour: FakeBehaviour) -> Path:
    """Order the fake trainer's ranks of the trial in `folder` to misbehave; returns the folder."""
    folder.mkdir(parents=True, exist_ok=True)
    (folder / FAKE_FILE).write_text(json.dumps(behaviour.model_dump(mode="json")))
    return folder
