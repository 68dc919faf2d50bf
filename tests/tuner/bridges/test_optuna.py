"""Our search as Optuna's sampler, and stored trials as a study of Optuna's."""

import json
import warnings
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import optuna
import pytest

import tuner
from results_db.importers import optuna as importer
from results_db.importers.base import Recipe
from tuner.bridges.optuna import TunerSampler, to_optuna
from tuner.ports import Candidate, ObservationState


@pytest.fixture(autouse=True)
def _quiet() -> Iterator[None]:
    optuna.logging.set_verbosity(optuna.logging.ERROR)
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", category=optuna.exceptions.ExperimentalWarning)
        yield


@pytest.fixture(scope="module")
def points() -> list[Candidate]:
    return tuner.candidates(
        "gpt2-124m",
        cluster="dgx-a100-80",
        devices=4,
        space={"zero_stage": [0, 1], "compile": False, "cp": 1, "recompute": "none", "pp": [1, 2]},
    )


def test_only_legal_points_each_once_and_then_the_end(points: list[Candidate]) -> None:
    some = points[:12]
    sampler = TunerSampler(some, searcher="random", seed=3)
    seen: list[tuner.ParallelConfig] = []

    def objective(trial: optuna.Trial) -> float:
        seen.append(sampler.suggest(trial))
        return 1.0 + len(seen)

    study = optuna.create_study(sampler=sampler, direction="maximize")
    study.optimize(objective, n_trials=100)
    assert len(seen) == len(set(seen)) == 12
    assert set(seen) == {point.config for point in some}


def test_the_search_goes_where_it_is_fast(points: list[Candidate]) -> None:
    predicted_s = {point.config: point.step_time_s or 1.0 for point in points}
    sampler = TunerSampler(points)
    study = optuna.create_study(sampler=sampler, direction="minimize")
    study.optimize(lambda trial: predicted_s[sampler.suggest(trial)], n_trials=4)
    assert study.best_value == pytest.approx(min(predicted_s.values()), rel=0.02)


def test_failures_reach_the_search(points: list[Candidate]) -> None:
    sampler = TunerSampler(points, searcher="grid")

    def objective(trial: optuna.Trial) -> float:
        sampler.suggest(trial)
        extra = trial.suggest_float("learning_rate", 1e-5, 1e-3)
        assert 1e-5 <= extra <= 1e-3
        if trial.number == 0:
            trial.set_user_attr("failure", "oom")
            raise RuntimeError("out of memory")
        if trial.number == 1:
            raise optuna.TrialPruned
        return 5.0

    study = optuna.create_study(sampler=sampler, direction="maximize")
    study.optimize(objective, n_trials=3, catch=(RuntimeError,))
    states = [item.state for item in sampler._observations(study, besides=-1)]
    assert states == [
        ObservationState.INFEASIBLE,
        ObservationState.FAILED,
        ObservationState.COMPLETED,
    ]


def test_an_enqueued_point_that_is_not_legal_is_pruned(points: list[Candidate]) -> None:
    sampler = TunerSampler(points)
    study = optuna.create_study(sampler=sampler, direction="maximize")
    knobs = {knob: space.choices[0] for knob, space in sampler._space.items()}
    study.enqueue_trial({**knobs, "dp": 4, "tp": 4})
    study.optimize(lambda trial: float(sampler.suggest(trial).dp), n_trials=1)
    assert study.trials[0].state is optuna.trial.TrialState.PRUNED


def test_no_candidates_is_one_sentence() -> None:
    with pytest.raises(tuner.ConfigError, match="no candidate"):
        TunerSampler([])


@pytest.fixture(scope="module")
def stored(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("optuna") / "r.db"
    tuner.run(
        "gpt2-124m",
        name="s",
        cluster="dgx-a100-80",
        devices=8,
        searcher="random",
        max_trials=8,
        launcher="simulated",
        launcher_options={"failure_rate": 0.3, "seed": 5},
        more={"search.max_retries": 0, "search.early_stop": False},
        store=path,
    ).close()
    return path


def test_a_stored_study_is_a_study_of_optunas(stored: Path, tmp_path: Path) -> None:
    url = f"sqlite:///{tmp_path}/optuna.db"
    with tuner.Study.open(store=stored) as study:
        made = to_optuna(study, url)
        trials = list(study)
        assert study.best is not None
        assert made.best_value == pytest.approx(max(t.tokens_per_s or 0 for t in trials))
        with pytest.raises(tuner.ConfigError, match="holds a study 's'"):
            to_optuna(study, url)
        assert to_optuna(study, url, name="other").study_name == "other"
    assert any(trial.failure for trial in trials)
    for ours, theirs in zip(trials, made.trials, strict=True):
        assert theirs.user_attrs["configuration"] == ours.label
        assert (theirs.value is None) == (ours.tokens_per_s is None)
        assert theirs.params["dp"] == ours.config.dp
        assert theirs.duration is not None
        assert theirs.duration.total_seconds() == pytest.approx(ours.wall_s, abs=1e-3)
        if ours.failure:
            assert theirs.user_attrs["failure"] == ours.failure.kind
        else:
            assert len(theirs.intermediate_values) == ours.measured_steps


def test_what_was_written_is_read_back_by_our_importer(stored: Path, tmp_path: Path) -> None:
    url = f"sqlite:///{tmp_path}/optuna.db"
    with tuner.Study.open(store=stored) as study:
        to_optuna(study, url)
        trials = list(study)
    back: list[Any] = list(importer.read(url, Recipe()))
    assert [item.value for item in back] == [trial.tokens_per_s for trial in trials]
    for item, trial in zip(back, trials, strict=True):
        for knob, value in item.knobs.items():
            assert str(value) in (str(getattr(trial.config, knob)), "all", "even")


def test_optuna_dashboard_opens_it(stored: Path, tmp_path: Path) -> None:
    dashboard = pytest.importorskip("optuna_dashboard")
    storage = optuna.storages.RDBStorage(f"sqlite:///{tmp_path}/optuna.db")
    with tuner.Study.open(store=stored) as study:
        to_optuna(study, storage)
    app = dashboard.wsgi(storage)
    answers: list[str] = []

    def get(path: str) -> Any:
        environment = {
            "REQUEST_METHOD": "GET", "PATH_INFO": path, "SERVER_NAME": "x", "SERVER_PORT": "80",
            "wsgi.url_scheme": "http", "QUERY_STRING": "after=0",
        }  # fmt: skip
        body = app(environment, lambda status, headers, *rest: answers.append(status))
        return json.loads(b"".join(body))

    (summary,) = get("/api/studies")["study_summaries"]
    assert summary["study_name"] == "s"
    detail = get(f"/api/studies/{summary['study_id']}")
    assert len(detail["trials"]) >= 8
    assert answers == ["200 OK", "200 OK"]
