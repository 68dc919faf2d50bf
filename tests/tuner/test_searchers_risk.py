"""How the default searcher weighs risk: failures, the first trial, what earlier studies tell."""

import math
from dataclasses import replace

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.special import ndtr

from search_spaces.parallel_config import ParallelConfig
from trainer.contract import FailureKind
from tuner.ports import Candidate, Observation, ObservationState
from tuner.searchers.calibrated_model import Mixture
from tuner.searchers.cbo import CboSearcher
from tuner.searchers.improvement import Shortlist
from tuner.searchers.kernels import KnobKernel
from tuner.searchers.knobs import varying_knobs
from tuner.searchers.warm_start import EarlierStudy, warm_start

GB = 1e9
CONFIGS = [
    ParallelConfig(tp=tp, pp=pp, dp=16 // (tp * pp), micro_batch_size=micro)
    for tp in (1, 2, 4, 8)
    for pp in (1, 2)
    for micro in (1, 2, 4, 8)
]


def shortlist(probability: list[float], **options: float) -> Shortlist:
    count = len(probability)
    mean, spread = np.linspace(0.0, 0.1, count), np.full(count, 0.05)
    belief = Mixture.single(mean, spread)
    return Shortlist(np.arange(count), belief, np.array(probability), **options)


@settings(max_examples=50, deadline=None)
@given(st.lists(st.floats(0.2, 1.0), min_size=2, max_size=8), st.floats(0.1, 0.9))
def test_a_risk_that_all_share_changes_nothing(odds: list[float], factor: float) -> None:
    goal = 0.05
    plain = shortlist(odds, aversion=3.0, failure_cost=0.001).log_improvement(goal)
    shared = [factor * each for each in odds]
    scaled = shortlist(shared, aversion=3.0, failure_cost=0.001).log_improvement(goal)
    assert np.allclose(plain, scaled)


def test_aversion_turns_a_small_gain_down() -> None:
    odds = [0.6, 1.0]  # the first promises more
    assert np.argmax(shortlist(odds, aversion=1.0).log_improvement(0.1)) == 0
    assert np.argmax(shortlist(odds, aversion=6.0).log_improvement(0.1)) == 1


def test_where_nothing_is_worth_its_risk_the_safe_point_is_taken() -> None:
    points = shortlist([0.5, 0.9, 1.0, 0.2], aversion=2.0, failure_cost=0.01)
    assert np.argmax(points.log_improvement(-0.4)) == 2


def _candidates(time: float = 1.0, limit: float = 36 * GB) -> list[Candidate]:
    """Larger micro-batches are faster and need more memory."""
    found = []
    for config in CONFIGS:
        seconds = time * (1 + 0.02 * config.tp + 0.3 / config.micro_batch_size)
        parts = {"states": 40 * GB / (config.tp * config.pp), "activations": 0.0}
        parts["activations"] = 6 * GB * config.micro_batch_size / config.tp
        peak = sum(parts.values())
        found.append(
            Candidate(
                config=config,
                step_time_s=seconds,
                step_time_parts_s={"compute": seconds},
                peak_memory_bytes=peak,
                peak_memory_parts_bytes=parts,
                probability_fits=float(ndtr(math.log(limit / peak) / 0.15)),
            )
        )
    return found


def test_the_first_trial_is_likely_to_run() -> None:
    candidates = _candidates()
    searcher = CboSearcher(candidates, seed=0)
    searcher.tell([])
    by_config = {candidate.config: candidate for candidate in candidates}
    first = by_config[searcher.ask(1)[0]]
    fastest = min(candidates, key=lambda candidate: candidate.step_time_s or 0.0)
    assert fastest.probability_fits < 0.5
    assert first.probability_fits > 0.9


def test_each_layout_has_an_error_of_its_own() -> None:
    kernel = KnobKernel(varying_knobs(CONFIGS), len(CONFIGS))
    rows = np.arange(len(CONFIGS))
    layout, placement = kernel.block(rows, rows)[-2:]
    assert (placement > layout - 1e-6).all()
    for one, first in enumerate(CONFIGS):
        for two, second in enumerate(CONFIGS):
            if first.with_knobs(micro_batch_size=second.micro_batch_size) == second:
                assert layout[one, two] > 0.8
            else:
                assert layout[one, two] < 0.3


def test_warm_start_hears_of_memory_that_ran_out() -> None:
    """Points ran out of memory below the limit: the new study's odds near it are lower."""
    candidates = _candidates()
    ran, short = [], []
    for candidate in candidates:
        peak = candidate.peak_memory_bytes or 0.0
        told = Observation(
            config=candidate.config,
            state=ObservationState.COMPLETED,
            step_time_s=candidate.step_time_s,
            peak_memory_bytes=int(peak),
        )
        if peak > 28 * GB:  # not the 36 that the cost model reckons with
            told = Observation(
                config=candidate.config,
                state=ObservationState.INFEASIBLE,
                failure=FailureKind.OOM,
            )
        ran.append(told)
        short.append(
            told
            if told.step_time_s
            else replace(told, state=ObservationState.RUNNING, failure=None)
        )
    new = _candidates(time=2.0)
    odds = []
    for observations in (ran, short):
        warm = warm_start(new, [EarlierStudy(candidates, observations)])
        near = [c.probability_fits for c in warm if 28 * GB < (c.peak_memory_bytes or 0) < 36 * GB]
        odds.append(float(np.mean(near)))
    assert odds[0] < odds[1] - 0.05
