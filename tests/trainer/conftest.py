"""Fixtures: whole trials on real ranks, forked from a server that has torch imported already."""

import multiprocessing
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from search_spaces.model_io import load_model_spec
from search_spaces.parallel_config import ParallelConfig
from search_spaces.training_spec import TrainingSpec
from trainer.contract import JOB_FILE, MeasureSpec, TrialJob, TrialOutput, read_output
from trainer.worker import run_rank

TRAINING = TrainingSpec(sequence_length=16, global_batch_size=4)


@pytest.fixture
def run_trial(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[..., TrialOutput]:
    """A function that runs a job on its ranks and returns what they reported.

    Keyword arguments that are knobs go to the configuration, others to the job.
    """
    monkeypatch.setenv("OMP_NUM_THREADS", "1")
    context = multiprocessing.get_context("forkserver")
    context.set_forkserver_preload(["trainer.worker"])

    def run(**options: Any) -> TrialOutput:
        knobs = {k: options.pop(k) for k in list(options) if k in ParallelConfig.model_fields}
        model = options.pop("model", "gpt2-tiny")
        job = TrialJob(
            trial_id="test",
            model=load_model_spec(model) if isinstance(model, str) else model,
            config=ParallelConfig(**knobs),
            **{
                "training": TRAINING,
                "measure": MeasureSpec(warmup_steps=1, measured_steps=2, deadline_s=60),
                **options,
            },
        )
        folder = tmp_path / f"trial-{len(list(tmp_path.iterdir()))}"
        folder.mkdir()
        (folder / JOB_FILE).write_text(job.model_dump_json())
        size = job.config.world_size
        ranks = [
            context.Process(
                target=run_rank, args=(str(folder), rank, size, rank, f"file://{folder}/rendezvous")
            )
            for rank in range(size)
        ]
        for rank in ranks:
            rank.start()
        for rank in ranks:
            rank.join(90)
        for rank in ranks:
            rank.kill()
            rank.join()
            rank.close()
        return read_output(folder)

    return run
