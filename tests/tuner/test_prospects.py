"""A study whose points left are all expected to fail ends, and says so; a streak alone does not."""

import threading
from collections.abc import Callable, Sequence

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from results_db.records import TrialStatus
from search_spaces.parallel_config import ParallelConfig
from search_spaces.untried import UNLIKELY_RULE
from trainer.contract import FailureKind, TrialJob, TrialOutput
from tuner.api.observers import as_observer
from tuner.controller import Controller, StudyOutcome
from tuner.ports import Candidate, Observation, ObservationState
from tuner.searchers.cbo import CboSearcher
from tuner.searchers.grid import GridSearcher
from tuner.searchers.prospects import MIN_FAILURES, MIN_MEASURED, Forecaster, hopeless
from tuner.study import Study
from tuner.testing.fake_launcher import FakeLauncher, completed, failed

CANDIDATES = [
    Candidate(config=ParallelConfig(dp=2, micro_batch_size=micro)) for micro in range(1, 21)
]
DONE, OOM = ObservationState.COMPLETED, ObservationState.INFEASIBLE
CRASHED, RUNNING = ObservationState.FAILED, ObservationState.RUNNING
BORNE_OUT = [DONE] * MIN_MEASURED + [OOM] * MIN_FAILURES


class Pessimist(GridSearcher):
    """Expects every point after the first few to fail."""

    def chances(self, configs: Sequence[ParallelConfig]) -> Sequence[float]:
        return [0.01] * len(configs)


def told(states: Sequence[ObservationState]) -> list[Observation]:
    return [
        Observation(config=candidate.config, state=state)
        for candidate, state in zip(CANDIDATES, states, strict=False)
    ]


def verdict(states: Sequence[ObservationState], below: float = 0.02) -> bool:
    searcher = Pessimist(CANDIDATES, seed=0)
    return hopeless(searcher, told(states), CANDIDATES, below) is not None


def test_cbo_says_how_likely_points_are_to_run() -> None:
    searcher = CboSearcher(CANDIDATES, seed=0)
    assert isinstance(searcher, Forecaster)
    assert searcher.chances([]) == []
    before = searcher.chances([CANDIDATES[7].config])[0]
    searcher.tell(told([DONE] * 5 + [OOM] * 2))
    chances = searcher.chances([each.config for each in CANDIDATES[7:]])
    assert before > 0.9
    assert all(0 <= chance < before for chance in chances)


def test_ends_only_what_was_borne_out() -> None:
    assert verdict(BORNE_OUT)
    assert verdict([*BORNE_OUT, RUNNING])
    assert not verdict([DONE] * (MIN_MEASURED - 1) + [OOM] * MIN_FAILURES)
    assert not verdict([DONE] * MIN_MEASURED + [OOM] * (MIN_FAILURES - 1))
    assert not verdict([*BORNE_OUT, CRASHED])
    assert not verdict([*BORNE_OUT, DONE])
    assert not verdict(BORNE_OUT, below=0.0)
    assert not verdict(BORNE_OUT, below=0.01)
    searcher = GridSearcher(CANDIDATES, seed=0)
    assert hopeless(searcher, told(BORNE_OUT), CANDIDATES, 0.02) is None


def test_repeats_of_the_leaders_change_nothing() -> None:
    again = Observation(config=CANDIDATES[0].config, state=DONE)
    searcher = Pessimist(CANDIDATES, seed=0)
    assert hopeless(searcher, [*told(BORNE_OUT), again, again], CANDIDATES, 0.02)


@settings(max_examples=50, deadline=None)
@given(st.lists(st.sampled_from([OOM, CRASHED, RUNNING]), max_size=19))
def test_failures_alone_never_end_a_study(states: list[ObservationState]) -> None:
    assert not verdict(states)


def test_every_point_left_has_its_chance() -> None:
    found = hopeless(Pessimist(CANDIDATES, seed=0), told(BORNE_OUT), CANDIDATES, 0.02)
    assert found is not None
    left = CANDIDATES[len(BORNE_OUT) :]
    assert set(found.chances) == {each.config.config_key for each in left}
    assert f"each of the {len(left)} points left" in found.reason
    assert "2%" in found.reason


@pytest.fixture
def no_refits(monkeypatch: pytest.MonkeyPatch) -> None:
    """What is predicted of trials is no matter here, and takes most of the time."""
    monkeypatch.setattr("tuner.controller.Predictor.learn", lambda *_: None)


def run(study: Study, answer: Callable[[TrialJob], TrialOutput]) -> StudyOutcome:
    searcher = Pessimist(study.candidates, seed=0, order="enumerated")
    searcher.lookahead = 1
    launcher = FakeLauncher(num_devices=2, answer=answer)
    return Controller(study, searcher, launcher, as_observer(None), threading.Event()).run()


def _first_few(num_fitting: int) -> Callable[[TrialJob], TrialOutput]:
    seen: list[str] = []

    def answer(job: TrialJob) -> TrialOutput:
        seen.append(job.config.config_key)
        return completed(job) if len(seen) <= num_fitting else failed(FailureKind.OOM)

    return answer


@pytest.mark.usefixtures("no_refits")
def test_a_study_ends_and_its_points_say_why(make_study: Callable[..., Study]) -> None:
    study = make_study(max_trials=40)
    outcome = run(study, _first_few(4))
    assert outcome.num_trials == 4 + MIN_FAILURES
    assert outcome.reason.startswith("each of the ")
    untried = study.store.untried(study.id)
    assert len(untried) == len(study.candidates) - outcome.num_trials
    left = [row for row in untried if row.rule == UNLIKELY_RULE]
    assert left
    assert left[0].reason == "a chance of 1.0% to run, by what failed"


@pytest.mark.usefixtures("no_refits")
@pytest.mark.parametrize(("fitting", "below"), [(4, 0.0), (2, 0.02)])
def test_a_study_goes_on(make_study: Callable[..., Study], fitting: int, below: float) -> None:
    """The rule is off, or too little ran to trust the expectation."""
    study = make_study(max_trials=12, stop_below=below)
    outcome = run(study, _first_few(fitting))
    assert outcome.num_trials == 12
    assert outcome.reason == "the budget of 12 trials is used up"
    rows = study.store.trials(study.id)
    assert sum(row.trial.status is TrialStatus.INFEASIBLE for row in rows) == 12 - fitting
