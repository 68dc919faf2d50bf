"""Problems of the emulated machines: one per world and quality of the prior."""

import numpy as np

from benchmarks.search.priors import Quality, candidates
from benchmarks.search.problem import Problem
from benchmarks.search.worlds import RUN_NOISE, draw_world
from trainer.contract import FailureKind

QUALITIES: tuple[Quality, ...] = ("good", "biased", "bad")


def emulated_problem(quality: Quality, seed: int) -> Problem:
    """World `seed` with a prior of this quality; points that do not fit run out of memory."""
    world = draw_world(seed)
    return Problem(
        name=f"world {seed}, {quality} prior",
        candidates=candidates(quality, seed),
        step_time_s=np.where(world.fits, world.step_time_s, np.inf),
        peak_memory_bytes=world.memory_bytes,
        failure=FailureKind.OOM,
        run_noise=RUN_NOISE,
    )
