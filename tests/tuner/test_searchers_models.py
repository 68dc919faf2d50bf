"""Laws of the searchers' parts: beliefs, feasibility, Pareto front, warm start, sensitivity."""

import math

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from search_spaces.parallel_config import ParallelConfig
from trainer.contract import FailureKind
from tuner.errors import ConfigError
from tuner.ports import Candidate, Observation, ObservationState
from tuner.searchers.calibrated_model import CalibratedModel, Mixture
from tuner.searchers.cbo import CboSearcher
from tuner.searchers.feasibility import FeasibilityModel
from tuner.searchers.history import History
from tuner.searchers.improvement import Shortlist
from tuner.searchers.kernels import NUM_COMPONENTS, KnobKernel
from tuner.searchers.knobs import varying_knobs
from tuner.searchers.memory_belief import memory_scale
from tuner.searchers.objectives import Scalarisation, log_objectives
from tuner.searchers.pareto import hypervolume, pareto_front
from tuner.searchers.parts import PartsPrior, parts_prior
from tuner.searchers.sensitivity import importances_of, knob_importances
from tuner.searchers.warm_start import EarlierStudy, warm_start

CONFIGS = [
    ParallelConfig(tp=tp, pp=pp, dp=16 // (tp * pp), micro_batch_size=micro, recompute=recompute)
    for tp in (1, 2, 4, 8)
    for pp in (1, 2)
    for micro in (1, 2, 4, 8)
    for recompute in ("none", "full")
]
ROWS = {config: row for row, config in enumerate(CONFIGS)}


def _kernel():
    return KnobKernel(varying_knobs(CONFIGS), len(CONFIGS))


def _prior():
    tp = np.array([config.tp for config in CONFIGS], dtype=float)
    micro = np.array([config.micro_batch_size for config in CONFIGS], dtype=float)
    return PartsPrior(np.stack([1 + 1 / micro, 0.2 * tp, np.full(len(tp), 0.1)], axis=1))


def test_kernel_is_a_covariance():
    rows = np.arange(len(CONFIGS))
    for component in _kernel().block(rows, rows):
        assert np.allclose(component, component.T, atol=1e-6)
        assert np.allclose(np.diag(component), 1.0, atol=1e-6)
        assert np.linalg.eigvalsh(component).min() > -1e-4


def test_kernel_combine_equals_block():
    kernel, rng = _kernel(), np.random.default_rng(0)
    rows = np.array([5, 1, 40])
    weights = rng.standard_normal((NUM_COMPONENTS, 3))
    whole = kernel.block(rows, np.arange(len(CONFIGS)))
    expected = np.einsum("cr,crn->n", weights, whole)
    assert np.allclose(kernel.combine(rows, weights), expected, atol=1e-4)


def test_model_without_data_is_the_prior():
    model = CalibratedModel(_kernel(), _prior())
    assert np.allclose(model.mean(), np.log(_prior().parts.sum(axis=1)))


def test_model_recovers_factors_on_parts():
    prior, truth = _prior(), np.array([2.0, 0.5, 1.0])
    times = prior.parts @ truth
    told = dict.fromkeys(range(0, len(CONFIGS), 3), 0.0)
    model = CalibratedModel(_kernel(), prior)
    model.fit({row: float(times[row]) for row in told})
    error = model.mean() - np.log(times)
    assert np.abs(error).max() < 0.05
    weights = model.part_weights()
    assert weights[0] > 1.4
    assert weights[1] < 0.75


def test_a_prior_that_fails_loses_its_authority():
    rng = np.random.default_rng(1)
    prior = _prior()
    good = prior.parts.sum(axis=1) * np.exp(0.01 * rng.standard_normal(len(CONFIGS)))
    bad = prior.parts.sum(axis=1) * np.exp(0.3 * rng.standard_normal(len(CONFIGS)))
    spreads = []
    for times in (good, bad):
        model = CalibratedModel(_kernel(), prior)
        model.fit({row: float(times[row]) for row in range(0, len(CONFIGS), 4)})
        spreads.append(float(model.predict(np.array([2, 7, 33]))[1].mean()))
    assert spreads[1] > 3 * spreads[0]


def test_predict_agrees_with_mean_and_is_sharper_where_measured():
    model = CalibratedModel(_kernel(), _prior())
    rng = np.random.default_rng(2)
    told = {row: float(math.exp(0.2 * rng.standard_normal())) for row in range(0, 64, 2)}
    model.fit(told)
    rows = np.arange(len(CONFIGS))
    mean, spread = model.predict(rows)
    assert np.allclose(mean, model.mean(), atol=2e-3)
    assert (spread > 0).all()


def test_parts_prior_falls_back():
    assert not parts_prior([None, 1.0], [{}, {}]).is_informative
    assert parts_prior([2.0, 1.0], [{}, {}]).num_parts == 1
    assert parts_prior([2.0, 1.0], [{"a": 1, "b": 1}, {"a": 0.5, "b": 0.5}]).num_parts == 2


def test_memory_scale_is_recovered():
    peaks = np.linspace(20e9, 60e9, 50)
    from scipy.special import ndtr

    scale = memory_scale(peaks, ndtr((math.log(40e9) - np.log(peaks)) / 0.12))
    assert scale is not None
    assert math.isclose(math.exp(scale.log_limit), 40e9, rel_tol=1e-3)
    assert math.isclose(scale.spread, 0.12, rel_tol=1e-3)
    assert memory_scale(peaks, np.ones(50)) is None


def _feasibility():
    from scipy.special import ndtr

    micro = np.array([config.micro_batch_size for config in CONFIGS], dtype=float)
    tp = np.array([config.tp for config in CONFIGS], dtype=float)
    parts = np.stack([20e9 / tp, 4e9 * micro], axis=1)
    probability = ndtr((math.log(30e9) - np.log(parts.sum(axis=1))) / 0.15)
    return FeasibilityModel(_kernel(), PartsPrior(parts), probability), parts.sum(axis=1)


def _told(row, failure=None, peak=None, state=None):
    if state is None:
        state = ObservationState.INFEASIBLE if failure else ObservationState.COMPLETED
    time = 1.0 if state is ObservationState.COMPLETED else None
    return Observation(
        config=CONFIGS[row], state=state, step_time_s=time, failure=failure, peak_memory_bytes=peak
    )


@settings(max_examples=25, deadline=None)
@given(st.integers(0, len(CONFIGS) - 1))
def test_out_of_memory_lowers_the_odds_there_and_nearby(row):
    model, _ = _feasibility()
    rows = np.arange(len(CONFIGS))
    before = model.predict(rows)
    model.fit(History.of([_told(row, FailureKind.OOM)], ROWS))
    after = model.predict(rows)
    assert after[row] <= before[row] + 1e-9
    assert after.sum() <= before.sum() + 1e-6
    assert ((after >= 0) & (after <= 1)).all()


def test_measured_peaks_move_the_odds_both_ways():
    rows = np.arange(len(CONFIGS))
    model, peaks = _feasibility()
    before = model.predict(rows)
    for factor, sign in ((0.8, 1), (1.2, -1)):
        told = [_told(row, peak=int(factor * peaks[row])) for row in range(0, 24, 3)]
        model.fit(History.of(told, ROWS))
        uncertain = (before > 0.05) & (before < 0.95)
        assert sign * (model.predict(rows) - before)[uncertain].mean() > 0.02


def test_a_crash_says_less_than_a_broken_rule():
    odds = []
    for failure, state in (
        (FailureKind.CRASH, ObservationState.FAILED),
        (FailureKind.ILLEGAL, ObservationState.INFEASIBLE),
    ):
        model, _ = _feasibility()
        model.fit(History.of([_told(6, failure, state=state)], ROWS))
        odds.append(float(model.predict(np.array([6]))[0]))
    assert odds[1] < odds[0]


def test_transient_failures_do_not_touch_the_step_times():
    candidates = [Candidate(config=config) for config in CONFIGS]
    rows = {config: row for row, config in enumerate(CONFIGS)}
    told = [_told(row) for row in range(10)]
    crash = [_told(row, FailureKind.CRASH, state=ObservationState.FAILED) for row in range(10, 20)]
    assert History.of(told + crash, rows).measured == History.of(told, rows).measured
    searcher = CboSearcher(candidates, seed=0)
    searcher.tell(told + crash)
    assert searcher.ask(1)


def test_repeats_are_merged_by_their_median():
    def trial(time):
        return Observation(
            config=CONFIGS[0], state=ObservationState.COMPLETED, step_time_s=time, tokens_per_s=1.0
        )

    known = History.of([trial(1.0), trial(5.0), trial(2.0)], ROWS).known[0]
    assert known.cost == 2.0
    assert known.num_repeats == 3


def _mixture(rng, count, hypotheses):
    weights = rng.dirichlet(np.ones(hypotheses))
    means = rng.normal(0, 0.3, (hypotheses, count))
    return Mixture(weights, means, rng.uniform(0.01, 0.3, (hypotheses, count)))


def test_improvement_discounts_risk_exactly():
    rng = np.random.default_rng(3)
    rows, odds = np.arange(200), rng.uniform(0.05, 1, 200)
    for hypotheses in (1, 5):
        belief = _mixture(rng, 200, hypotheses)
        shortlist = Shortlist(rows, belief, odds, failure_cost=0.01)
        wanted = shortlist.log_improvement(-0.1)
        alone = Mixture.single(shortlist.discounted_mean(-0.1), shortlist.spread)
        reached = Shortlist(rows, alone, np.ones(200)).log_improvement(-0.1)
        near = wanted > -30
        assert near.any()
        assert np.allclose(reached[near], wanted[near], atol=1e-3)


def test_improvement_is_the_average_over_hypotheses():
    rng = np.random.default_rng(4)
    belief = _mixture(rng, 50, 3)
    sure = np.ones(50)
    whole = np.exp(Shortlist(np.arange(50), belief, sure).log_improvement(0.0))
    parts = [
        weight * np.exp(Shortlist(np.arange(50), Mixture.single(m, s), sure).log_improvement(0.0))
        for weight, m, s in zip(belief.weights, belief.means, belief.spreads, strict=True)
    ]
    assert np.allclose(whole, sum(parts), rtol=1e-9)
    draws = belief.means[0] + belief.spreads[0] * rng.standard_normal((200_000, 1))
    expected = np.maximum(-draws, 0).mean(axis=0)
    single = Mixture.single(belief.means[0], belief.spreads[0])
    reached = np.exp(Shortlist(np.arange(50), single, sure).log_improvement(0.0))
    assert np.allclose(reached, expected, atol=2e-3)


def test_parallel_proposals_spread_out():
    candidates = [
        Candidate(config=config, step_time_s=float(time))
        for config, time in zip(CONFIGS, _prior().parts.sum(axis=1), strict=True)
    ]
    searcher = CboSearcher(candidates, seed=0)
    searcher.tell([_told(row) for row in range(5)])
    assert len(set(searcher.ask(6))) == 6


def test_unknown_objective_is_refused():
    with pytest.raises(ConfigError, match="objectives"):
        CboSearcher([], seed=0, objectives=("speed",))


points = st.lists(st.tuples(*[st.floats(0, 1, allow_nan=False)] * 3), min_size=1, max_size=12).map(
    np.array
)


@settings(max_examples=60, deadline=None)
@given(points)
def test_front_is_not_dominated_and_dominates_the_rest(table):
    front = pareto_front(table)
    assert front.any()
    for point in table[~front]:
        assert any((best <= point).all() and (best < point).any() for best in table[front])


@settings(max_examples=40, deadline=None)
@given(points, st.tuples(*[st.floats(0, 1, allow_nan=False)] * 3))
def test_hypervolume_grows_and_only_the_front_counts(table, extra):
    reference = [1.0, 1.0, 1.0]
    volume = hypervolume(table, reference)
    assert 0 <= volume <= 1 + 1e-9
    assert math.isclose(volume, hypervolume(table[pareto_front(table)], reference), abs_tol=1e-9)
    assert hypervolume(np.vstack([table, extra]), reference) >= volume - 1e-9


def test_hypervolume_of_known_shapes():
    assert math.isclose(hypervolume([[1.0, 2.0], [2.0, 1.0]], [3.0, 3.0]), 3.0)
    assert hypervolume([[4.0, 4.0]], [3.0, 3.0]) == 0.0
    assert math.isclose(hypervolume([[0, 0, 0]], [2.0, 3.0, 4.0]), 24.0)


def test_scalarisation_prefers_dominating_points():
    table = np.array([[0.0, 0.0], [1.0, 1.0], [0.5, 2.0]])
    values = Scalarisation.of(table, np.array([0.4, 0.6])).values(table)
    assert values[0] == values.min()


def test_log_objectives_need_what_they_name():
    known = History.of([_told(0)], ROWS).known[0]
    assert log_objectives(("throughput", "cost"), CONFIGS[0], known) == (0.0, math.log(16))
    assert log_objectives(("memory",), CONFIGS[0], known) is None


def test_several_objectives_find_the_front():
    """With memory as a second objective, proposals cover slow but small configurations too."""
    candidates = [
        Candidate(config=config, step_time_s=time, peak_memory_bytes=1e9 * config.micro_batch_size)
        for config, time in zip(CONFIGS, _prior().parts.sum(axis=1).tolist(), strict=True)
    ]
    searcher = CboSearcher(candidates, seed=1, objectives=("throughput", "memory"))
    by_config = {candidate.config: candidate for candidate in candidates}
    told = []
    for _ in range(16):
        searcher.tell(told)
        candidate = by_config[searcher.ask(1)[0]]
        told.append(
            Observation(
                config=candidate.config,
                state=ObservationState.COMPLETED,
                step_time_s=candidate.step_time_s,
                peak_memory_bytes=int(candidate.peak_memory_bytes or 0),
            )
        )
    every = np.array([[c.step_time_s, c.peak_memory_bytes / 1e9] for c in candidates])
    seen = np.array([[o.step_time_s, o.peak_memory_bytes / 1e9] for o in told])
    reference = every.max(axis=0) + 0.1
    assert hypervolume(seen, reference) > 0.9 * hypervolume(every, reference)


def test_warm_start_carries_the_cost_models_error_over():
    prior = _prior().parts
    names = ("compute", "tp", "rest")

    def candidates(scale):
        return [
            Candidate(
                config=config,
                step_time_s=float(scale * parts.sum()),
                step_time_parts_s=dict(zip(names, (scale * parts).tolist(), strict=True)),
            )
            for config, parts in zip(CONFIGS, prior, strict=True)
        ]

    truth = prior @ np.array([1.0, 3.0, 1.0])
    earlier = EarlierStudy(
        candidates(1.0),
        [
            Observation(
                config=CONFIGS[row],
                state=ObservationState.COMPLETED,
                step_time_s=float(truth[row]),
            )
            for row in range(0, 64, 4)
        ],
    )
    cold = candidates(4.0)
    warm = warm_start(cold, [earlier])
    errors = [
        np.std(np.log([c.step_time_s for c in each]) - np.log(4 * truth)) for each in (cold, warm)
    ]
    assert errors[1] < 0.3 * errors[0]
    assert [c.config for c in warm] == CONFIGS


def test_warm_start_without_results_changes_nothing():
    candidates = [Candidate(config=config, step_time_s=1.0) for config in CONFIGS]
    assert warm_start(candidates, [EarlierStudy(candidates, [])]) == candidates


def test_sensitivity_finds_the_knob_that_mattered():
    times = [
        1.0 + 0.5 * math.log2(config.tp) + 0.01 * config.micro_batch_size for config in CONFIGS
    ]
    ranked = importances_of(CONFIGS, times)
    assert ranked[0].knob == "tp"
    assert math.isclose(sum(item.share for item in ranked), 1.0, rel_tol=1e-6)
    assert ranked[0].effect > 3 * next(i.effect for i in ranked if i.knob == "recompute")


def test_sensitivity_needs_results_and_a_known_method():
    assert knob_importances([_told(row) for row in range(3)]) == []
    with pytest.raises(ConfigError, match="permutation"):
        importances_of(CONFIGS, [1.0] * len(CONFIGS), method="guess")
