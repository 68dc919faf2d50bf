"""`TunerSearch`: our search in Ray Tune. A real run of Tune is in tests/examples."""

import json
from pathlib import Path
from typing import Any

import pytest

import tuner
from tuner.bridges.ray_tune import TunerSearch
from tuner.ports import Candidate, ObservationState


@pytest.fixture(scope="module")
def points() -> list[Candidate]:
    return tuner.candidates(
        "gpt2-124m",
        cluster="dgx-a100-80",
        devices=4,
        space={"zero_stage": [0, 1], "compile": False, "cp": 1, "recompute": "none", "pp": 1},
    )


def test_every_point_once_and_then_the_end(points: list[Candidate]) -> None:
    search = TunerSearch(points, searcher="random")
    seen = set()
    for number in range(len(points)):
        knobs = search.suggest(f"t{number}")
        assert isinstance(knobs, dict)
        seen.add(tuner.ParallelConfig(**knobs))
        search.on_trial_complete(f"t{number}", {"tokens_per_s": 1.0 + number})
    assert seen == {point.config for point in points}
    assert search.suggest("last") == TunerSearch.FINISHED


@pytest.mark.parametrize(
    ("mode", "result", "error", "state", "told"),
    [
        ("max", {"tokens_per_s": 4.0}, False, ObservationState.COMPLETED, 4.0),
        ("min", {"tokens_per_s": 4.0}, False, ObservationState.COMPLETED, 0.25),
        ("max", {"tokens_per_s": 4.0}, True, ObservationState.FAILED, None),
        ("max", {"loss": 4.0}, False, ObservationState.FAILED, None),
        ("max", {"tokens_per_s": float("nan")}, False, ObservationState.FAILED, None),
        ("max", {"failure": "oom"}, False, ObservationState.INFEASIBLE, None),
        ("max", None, True, ObservationState.FAILED, None),
    ],
)
def test_outcomes_reach_the_searcher(
    points: list[Candidate],
    mode: Any,
    result: dict[str, Any] | None,
    error: bool,
    state: ObservationState,
    told: float | None,
) -> None:
    class Spy:
        name, lookahead = "spy", 1

        def __init__(self, candidates: list[Candidate], *, seed: int) -> None:
            self.points, self.seen = candidates, []

        def tell(self, observations: Any) -> None:
            self.seen = observations

        def ask(self, count: int) -> list[tuner.ParallelConfig]:
            return [self.points[len(self.seen)].config]

    search = TunerSearch(points, mode=mode, searcher=Spy)
    search.suggest("a")
    search.suggest("b")
    assert search._searcher.seen[0].state is ObservationState.RUNNING  # type: ignore[attr-defined]
    search.on_trial_complete("a", result, error)
    search.on_trial_complete("unknown", result, error)
    search.suggest("c")
    seen = search._searcher.seen  # type: ignore[attr-defined]
    assert [item.state for item in seen] == [state, ObservationState.RUNNING]
    assert seen[0].tokens_per_s == told


def test_a_search_is_saved_and_restored(points: list[Candidate], tmp_path: Path) -> None:
    search = TunerSearch(points, searcher="grid")
    for number in range(4):
        search.suggest(f"t{number}")
    search.on_trial_complete("t0", {"tokens_per_s": 3.0})
    search.on_trial_complete("t1", {"failure": "oom"})
    search.on_trial_complete("t2", None, error=True)
    search.save(str(tmp_path / "state"))
    json.loads((tmp_path / "state").read_text())
    other = TunerSearch(points, searcher="grid")
    other.restore(str(tmp_path / "state"))
    assert other._known == search._known
    assert other.suggest("next") == search.suggest("next")


def test_a_search_space_of_tunes_is_refused(points: list[Candidate]) -> None:
    search = TunerSearch(points)
    assert not search.set_search_properties("m", "max", {"lr": [1, 2]})
    assert search.set_search_properties("steps_per_s", "max", {})
    assert search.metric == "steps_per_s"
