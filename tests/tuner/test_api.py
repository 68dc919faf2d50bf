"""`import tuner`: what a notebook or another program may call."""

import subprocess
import sys
import threading
from collections.abc import Sequence
from pathlib import Path

import pytest

import tuner
from results_db.records import StudyStatus
from search_spaces.untried import BUDGET_RULE
from trainer.contract import FailureKind
from tuner.launchers.simulated import SimulatedLauncher
from tuner.testing.fake_launcher import FakeLauncher, failed

HEAVY = ("torch", "ray", "deephyper", "pandas", "sqlalchemy", "sklearn", "pydantic", "optuna")


def run(folder: Path, **changes: object) -> tuner.Study:
    options = {
        "cluster": "dgx-a100-80",
        "devices": 8,
        "space": {"compile": False, "cp": 1, "reduce_dtype": "fp32", "recompute": "none"},
        "searcher": "random",
        "max_trials": 5,
        "launcher": "simulated",
        "store": folder / "r.db",
        "name": "s",
        "more": {"search.confirm_top": 0, "search.check_drift": False},
    }
    return tuner.run("gpt2-124m", **{**options, **changes})  # type: ignore[arg-type]


def test_importing_is_light() -> None:
    code = (
        "import sys, tuner; print([name for name in"
        f" {HEAVY!r} if name in sys.modules]);"
        "print(len([name for name in sys.modules if name.startswith('tuner.')]))"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.split() == ["[]", "0"]


@pytest.mark.parametrize("name", tuner.__all__)
def test_every_public_name_loads_and_is_documented(name: str) -> None:
    found = getattr(tuner, name)
    if isinstance(found, type) or callable(found):
        assert found.__doc__ or name.endswith("Function")


def test_unknown_names_are_attribute_errors() -> None:
    with pytest.raises(AttributeError, match="has no attribute 'rnu'"):
        tuner.rnu  # noqa: B018
    assert set(tuner.__all__) <= set(dir(tuner))


def test_a_study_is_run_iterated_and_ranked(tmp_path: Path) -> None:
    lines: list[str] = []
    with run(tmp_path, baseline={"dp": 8}, observer=lines.append) as study:
        assert study.status is StudyStatus.COMPLETED
        assert [trial.number for trial in study] == [1, 2, 3, 4, 5, 6]
        assert len(study) == 6
        best = study.best
        assert best is not None
        assert best.tokens_per_s == max(trial.tokens_per_s or 0 for trial in study)
        assert study.trial(best.trial_number).config == best.config
        assert study.leaderboard(top=2)[0] == best
        assert study.baseline is not None
        assert study.baseline.config == tuner.ParallelConfig(dp=8)
        assert study.speedup == pytest.approx(best.tokens_per_s / study.baseline.tokens_per_s)
        assert [step.step for step in study.steps(1)] == list(range(len(study.steps(1))))
        assert {row.rule for row in study.untried()} == {BUDGET_RULE}
        assert len(study.predictions()) >= 6
        assert study.model.name == "gpt2-124m"
        assert study.cluster.num_devices == 8
        assert study.training.global_batch_size == 8
        assert "'s': completed, 6 trials" in repr(study)
        assert best.label in study._repr_html_()
    assert len([line for line in lines if line.startswith("trial ")]) == 6
    assert "tokens/s" in lines[0]


def test_frames(tmp_path: Path) -> None:
    with run(tmp_path) as study:
        frame = study.to_frame()
        assert len(frame) == 5
        assert {"tp", "dp", "tokens_per_s", "step_time_s", "status"} <= set(frame.columns)
        board = study.to_frame("leaderboard")
        assert board["tokens_per_s"].max() == study.leaderboard()[0].tokens_per_s
        with pytest.raises(tuner.ResultsDbError, match="no table or view 'leaders'"):
            study.to_frame("leaders")


def test_a_study_is_opened_again_and_gone_on_with(tmp_path: Path) -> None:
    run(tmp_path).close()
    with tuner.resume("s", store=tmp_path / "r.db", max_trials=7) as study:
        assert len(study) == 7
    with tuner.Study.open(store=tmp_path / "r.db") as study:
        assert study.name == "s"
        assert len(study.trials(["completed"])) == 7
        assert study.trials(["failed"]) == []
        with pytest.raises(tuner.ConfigError, match="never 'done'"):
            study.trials(["done"])
    with pytest.raises(tuner.ConfigError, match="no study is called 'other'"):
        tuner.Study.open("other", store=tmp_path / "r.db")


def test_stopping_leaves_a_study_that_can_be_resumed(tmp_path: Path) -> None:
    stop = threading.Event()
    stop.set()
    with run(tmp_path, stop=stop) as study:
        assert study.status is StudyStatus.INTERRUPTED
        assert study.best is None
    with tuner.resume(store=tmp_path / "r.db") as study:
        assert len(study) == 5


@pytest.mark.parametrize(
    ("changes", "expected"),
    [
        ({"max_trails": 3}, "no option 'max_trails'.*did you mean 'max_trials'"),
        ({"max_trials": 0}, "search.max_trials.*greater than or equal to 1"),
        ({"space": {"tpp": 2}}, "unknown key `space.tpp`.*did you mean `tp`"),
        ({"searcher": "cbbo"}, "unknown searcher 'cbbo'.*did you mean 'cbo'"),
        ({"launcher": "slurm"}, "unknown launcher 'slurm'"),
        ({"launcher_options": {"nois": 1}}, "no option 'nois'.*did you mean 'noise'"),
        ({"cluster": "dgx"}, "dgx"),
    ],
)
def test_wrong_arguments_are_one_sentence_and_store_nothing(
    tmp_path: Path, changes: dict[str, object], expected: str
) -> None:
    with pytest.raises((tuner.TunerError, tuner.SearchSpaceError), match=expected):
        run(tmp_path, **changes)
    assert not (tmp_path / "r.db").exists()


def test_an_unknown_model_names_those_that_exist(tmp_path: Path) -> None:
    with pytest.raises(tuner.SearchSpaceError, match="gpt2-124m"):
        tuner.run("gpt2-124", store=tmp_path / "r.db")


def test_a_study_is_described_once_and_used_many_times(tmp_path: Path) -> None:
    path = tmp_path / "study.toml"
    path.write_text('[model]\nsource = "gpt2-124m"\n[cluster]\npreset = "dgx-a100-80"\n')
    config = tuner.describe(study_file=path, devices=4, training={"global_batch_size": 16})
    assert config.cluster is not None
    assert (config.cluster.preset, config.cluster.devices) == ("dgx-a100-80", 4)
    again = tuner.describe(config, max_trials=3, training={"dtype": "bf16"})
    assert (again.training.global_batch_size, again.training.dtype) == (16, "bf16")
    assert again.search.max_trials == 3
    points = tuner.candidates(again)
    assert {point.config.world_size for point in points} == {4}
    assert all(point.step_time_s for point in points)
    with pytest.raises(tuner.ConfigError, match="exclude each other"):
        tuner.describe(config, study_file=path)


def per_gib(trial: tuner.Trial) -> float:
    assert trial.tokens_per_s is not None
    assert trial.peak_memory_bytes is not None
    return trial.tokens_per_s / (trial.peak_memory_bytes / 2**30)


def test_an_objective_ranks_the_trials_and_steers_the_search(tmp_path: Path) -> None:
    with run(tmp_path, objective=per_gib) as study:
        scores = [per_gib(trial) for trial in study]
        assert study.best is not None
        assert study.best.score == pytest.approx(max(scores))
        board = study.leaderboard()
        assert [row.score for row in board] == sorted(scores, reverse=True)
        assert all(row.score_low <= row.score <= row.score_high for row in board)
        assert board[0].tokens_per_s < max(row.tokens_per_s for row in board)
        assert study.record.objective_metric.endswith("test_api:per_gib")
    opened = tuner.Study.open(store=tmp_path / "r.db", objective="tokens_per_s")
    with opened as study:
        assert study.leaderboard()[0].score == max(t.tokens_per_s or 0 for t in study)


def test_an_objective_can_be_minimised(tmp_path: Path) -> None:
    def memory(trial: tuner.Trial) -> float:
        return float(trial.peak_memory_bytes or 0)

    with run(tmp_path, objective=memory, objective_direction="minimize") as study:
        board = study.leaderboard()
        assert [row.score for row in board] == sorted(row.score for row in board)
        assert board[0].score == min(trial.peak_memory_bytes or 0 for trial in study)
        # memory does not depend on time, so the measurements tell all of them apart
        assert [row.position for row in board] == list(range(1, len(board) + 1))
    with tuner.Study.open(store=tmp_path / "r.db") as study:
        assert len(study) == 5  # trials are read without the function ...
        with pytest.raises(tuner.ConfigError, match="objective=") as told:
            study.leaderboard()  # ... which ranking needs
    assert "memory" in told.value.message
    with pytest.raises(tuner.ConfigError, match="pass it again"):
        tuner.resume(store=tmp_path / "r.db")
    again = tuner.resume(store=tmp_path / "r.db", objective=memory, max_trials=6)
    with again as study:
        assert len(study.leaderboard()) == 6


class Seen:
    """A searcher that shows what it is told."""

    name = "seen"
    lookahead = 1
    told: Sequence[tuner.Observation] = ()

    def __init__(self, candidates: Sequence[tuner.Candidate], *, seed: int) -> None:
        self._points = [point.config for point in candidates]

    def tell(self, observations: Sequence[tuner.Observation]) -> None:
        type(self).told = list(observations)

    def ask(self, count: int) -> list[tuner.ParallelConfig]:
        known = {item.config for item in self.told}
        return [point for point in self._points if point not in known][:count]


def test_a_searcher_is_told_the_objective(tmp_path: Path) -> None:
    with run(tmp_path, searcher=Seen, objective=per_gib) as study:
        scores = {trial.config: per_gib(trial) for trial in study}
    assert len(Seen.told) == 4
    for item in Seen.told:
        assert item.tokens_per_s == pytest.approx(scores[item.config])
        assert item.step_time_s is None
    with tuner.Study.open(store=tmp_path / "r.db") as study:
        assert study.record.searcher == "seen"
        assert {trial.source for trial in study} == {"seen"}


@pytest.mark.parametrize("value", [float("nan"), -1.0, 0.0])
def test_an_objective_that_is_no_positive_number_says_so(tmp_path: Path, value: float) -> None:
    with pytest.raises(tuner.ConfigError, match=r"objective .* for trial 1 .* no positive number"):
        run(tmp_path, objective=lambda trial: value)
    with tuner.Study.open(store=tmp_path / "r.db") as study:
        assert study.status is StudyStatus.INTERRUPTED
        assert study.trial(1).is_measured  # the measurement itself is kept


def test_an_objective_that_fails_says_so(tmp_path: Path) -> None:
    with pytest.raises(tuner.ConfigError, match="failed: ZeroDivisionError: division by zero"):
        run(tmp_path, objective=lambda trial: 1 / 0)


def no_tp(config: tuner.ParallelConfig, setting: tuner.Setting) -> str | None:
    assert setting.model.name == "gpt2-124m"
    return f"tp {config.tp} is not wired" if config.tp > 1 else None


def test_a_constraint_takes_points_out_and_keeps_its_reasons(tmp_path: Path) -> None:
    every = tuner.candidates("gpt2-124m", cluster="dgx-a100-80", devices=8)
    kept = tuner.candidates("gpt2-124m", cluster="dgx-a100-80", devices=8, constraint=no_tp)
    assert {point.config for point in kept} == {p.config for p in every if p.config.tp == 1}
    stop = threading.Event()
    stop.set()
    with run(tmp_path, constraint=no_tp, stop=stop, space={}) as study:
        # the reasons are there at once, also of a study that was stopped
        refused = [row for row in study.untried() if row.rule == "user:no_tp"]
        assert len(refused) == len(every) - len(kept)
        assert {row.reason for row in refused} == {"tp 2 is not wired", "tp 4 is not wired"}
        frame = study.to_frame("why_not")
        assert set(frame["cause"]) == {"user:no_tp"}
        assert study.record.num_legal_points == len(kept)
        told = {item["rule"]: item for item in study.record.provenance["refusals"]}
        assert told["user:no_tp"]["num_points"] == len(refused)
    with tuner.resume(store=tmp_path / "r.db") as study:
        assert all(trial.config.tp == 1 for trial in study)
        assert {row.rule for row in study.untried()} == {"user:no_tp", BUDGET_RULE}


def test_a_baseline_may_break_the_constraint(tmp_path: Path) -> None:
    with run(tmp_path, constraint=no_tp, baseline={"tp": 2, "dp": 4}) as study:
        assert study.baseline is not None
        assert study.baseline.config.tp == 2


def test_a_constraint_that_refuses_everything_says_why(tmp_path: Path) -> None:
    with pytest.raises(tuner.NothingFeasibleError, match=r"user:.*because we never do"):
        run(tmp_path, constraint=lambda config, setting: "we never do")


@pytest.mark.parametrize(
    ("answer", "expected"),
    [(True, "gave True"), ("", "gave ''"), (1 / 3, "gave 0.33")],
)
def test_a_constraint_gives_a_reason_or_none(tmp_path: Path, answer: object, expected: str) -> None:
    with pytest.raises(tuner.ConfigError, match=expected):
        run(tmp_path, constraint=lambda config, setting: answer)  # type: ignore[arg-type,return-value]


def test_a_launcher_object_whose_trials_all_fail(tmp_path: Path) -> None:
    launcher = FakeLauncher(answer=failed(FailureKind.OOM, "too big"))
    with run(tmp_path, launcher=launcher) as study:
        assert study.record.launcher == "fake"
        assert study.best is None
        assert study.speedup is None
        assert {trial.failure.message for trial in study if trial.failure} == {"too big"}
        assert study.failures(1)[0].kind == "oom"
    assert not launcher.is_open


def test_options_of_a_launcher_object_are_its_own(tmp_path: Path) -> None:
    launcher = SimulatedLauncher(num_devices=8, run_folder=tmp_path, cluster="dgx-a100-80")
    with run(tmp_path, launcher=launcher) as study:
        assert study.best is not None


def test_the_best_is_exported_to_a_trainer(tmp_path: Path) -> None:
    with run(tmp_path) as study:
        made = study.export("megatron-lm", nearest=True)
        text = "\n".join(made.files.values())
        assert "--tensor-model-parallel-size" in text
        with pytest.raises(tuner.ConfigError, match="unknown exporter 'megatron'"):
            study.export("megatron")
