"""`tuner compare`: a fall beyond the noise fails, noise does not; other questions are refused."""

import json
from dataclasses import replace
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

import tuner
from tuner.cli import main
from tuner.comparison import Pooled, Verdict, parse_reference, verdict_of

REGRESSION = 7


def run(store: Path, name: str, seed: int = 0, slowness: float = 1.0, **changes: object) -> None:
    """A simulated study; a slower device stands for a regression."""
    cluster = {
        "name": "box", "device_kind": "cuda", "device_name": "GPU", "devices_per_node": 4,
        "memory_gib": 40.0, "peak_tflops": {"fp32": 20.0 / slowness},
        "memory_gb_per_s": 1500.0 / slowness,
        "intra_node": {"alpha_us": 5.0 * slowness, "gb_per_s": 200.0 / slowness},
    }  # fmt: skip
    options = {
        "cluster": cluster,
        "space": {"compile": False, "cp": 1, "recompute": "none", "tp": [1, 2]},
        "searcher": "random",
        "max_trials": 4,
        "launcher": "simulated",
        "launcher_options": {"seed": seed, "noise": 0.01, "idiosyncrasy": 0.0},
        "name": name,
        "store": store,
        "more": {"search.check_drift": False},
    }
    tuner.run("gpt2-124m", **{**options, **changes}).close()  # type: ignore[arg-type]


@pytest.fixture(scope="module")
def store(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("compare") / "r.db"
    run(path, "base", seed=1)
    run(path, "again", seed=2)
    run(path, "slow", seed=3, slowness=1.25)
    run(path, "bigger", training={"global_batch_size": 16})
    run(path, "measured-elsewhere", space={"tp": 4, "compile": False})
    run(path, "empty", launcher_options={"failure_rate": 1.0}, max_trials=1)
    return path


def compare(store: Path, base: str, head: str, *options: str) -> int:
    return main(["compare", f"{store}:{base}", f"{store}:{head}", *options])


def test_the_same_within_the_noise_is_fine(store: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert compare(store, "base", "again") == 0
    out = capsys.readouterr().out
    assert "same: the best throughput is the same" in out
    assert "4 configurations measured in both" in out


def test_a_fall_beyond_the_noise_has_an_exit_code_of_its_own(
    store: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert compare(store, "base", "slow", "--json") == REGRESSION
    document = json.loads(capsys.readouterr().out)
    assert document["verdict"] == "regression"
    assert document["is_regression"] is True
    assert document["ratio"] == pytest.approx(0.8, rel=0.05)
    assert document["matched_ratio"] == pytest.approx(0.8, rel=0.05)
    assert {match["verdict"] for match in document["matches"]} == {"regression"}
    assert document["base"]["studies"] == ["base"]
    assert compare(store, "slow", "base") == 0
    assert "faster: the best throughput rose" in capsys.readouterr().out


def test_a_threshold_forgives(store: Path) -> None:
    assert compare(store, "base", "slow", "--threshold", "0.4") == 0
    assert compare(store, "base", "slow", "--threshold", "0") == REGRESSION


def test_markdown_for_a_summary(store: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert compare(store, "base", "slow", "--markdown") == REGRESSION
    lines = capsys.readouterr().out.splitlines()
    assert lines[0] == "### Training throughput: regression"
    tables = [line for line in lines if line.startswith("|")]
    assert len(tables) == 4 + 6
    assert len({line.count("|") for line in tables[:4]}) == 1


@pytest.mark.parametrize(
    ("base", "head", "options", "code", "expected"),
    [
        ("base", "bigger", (), 2, "training.global_batch_size is 8 and 16"),
        ("base", "nobody", (), 2, "no study is called 'nobody'"),
        ("base", "empty", (), 3, "'empty' has no measured configuration"),
        ("base", "again", ("--threshold", "1"), 2, "not in the range"),
        ("base", "again", ("--json", "--markdown"), 2, "exclude each other"),
    ],
)
def test_what_cannot_be_compared_says_why(
    store: Path,
    capsys: pytest.CaptureFixture[str],
    base: str,
    head: str,
    options: tuple[str, ...],
    code: int,
    expected: str,
) -> None:
    assert compare(store, base, head, *options) == code
    assert expected in capsys.readouterr().err


def test_different_questions_on_purpose(store: Path, capsys: pytest.CaptureFixture[str]) -> None:
    compare(store, "base", "bigger", "--anyway")
    assert "note: training.global_batch_size is 8 and 16" in capsys.readouterr().err


def test_a_best_that_was_not_tried_again_is_said(
    store: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    compare(store, "base", "measured-elsewhere")
    captured = capsys.readouterr()
    assert "no configuration was measured in both" in captured.out
    assert "the best configuration of 'base' was not measured in head" in captured.err


def test_two_databases_and_the_newest_study(store: Path, tmp_path: Path) -> None:
    run(tmp_path / "head.db", "old", slowness=1.3)
    run(tmp_path / "head.db", "new")
    assert main(["compare", f"{store}:base", str(tmp_path / "head.db")]) == 0
    assert main(["compare", f"{store}:base", f"{tmp_path}/head.db:old"]) == REGRESSION
    assert main(["compare", "old", "new", "--store", str(tmp_path / "head.db")]) == 0


def test_the_spread_between_several_studies_is_noise(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "r.db"
    # the machine is now fast, now slow; each single study is sure of itself
    for number, slowness in enumerate((1.0, 1.3, 1.02), 1):
        run(path, f"base-{number}", slowness=slowness, max_trials=2)
        run(path, f"head-{number}", slowness=1.28 / slowness, max_trials=2)
        run(path, f"bad-{number}", slowness=1.8 * slowness, max_trials=2)
    assert compare(path, "base-1", "head-1") == REGRESSION
    assert "with one study a side" in capsys.readouterr().err
    assert compare(path, "base-*", "head-*") == 0
    captured = capsys.readouterr()
    assert "base-1 and 2 more" in captured.out
    assert "with one study a side" not in captured.err
    assert compare(path, "base-*", "bad-*") == REGRESSION
    assert compare(path, "base-*", "none-*") == 2
    assert "matches 'none-*'" in capsys.readouterr().err


def test_from_python(store: Path) -> None:
    with tuner.Study.open("base", store=store) as base:
        found = tuner.compare(base, f"{store}:slow")
        assert found.is_regression
        assert "fell" in found.sentence()
    with pytest.raises(tuner.ConfigError, match="threshold"):
        tuner.compare(f"{store}:base", f"{store}:slow", threshold=2)


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("main.db:smoke", ("main.db", "smoke")),
        ("main.db", ("main.db", None)),
        ("/a/b.db:s", ("/a/b.db", "s")),
        ("sqlite:///a.db", ("sqlite:///a.db", None)),
        ("sqlite:///a.db:s", ("sqlite:///a.db", "s")),
        ("postgresql://u:p@host:5432/db", ("postgresql://u:p@host:5432/db", None)),
        ("postgresql://u:p@host:5432/db:s", ("postgresql://u:p@host:5432/db", "s")),
        ("smoke", ("sqlite:///default.db", "smoke")),
    ],
)
def test_references(
    text: str, expected: tuple[str, str | None], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("TUNER_STORE", "sqlite:///default.db")
    assert parse_reference(text) == expected


def row(low: float, middle: float, high: float) -> Pooled:
    return Pooled(
        config_key="k",
        label="l",
        trial_number=1,
        num_trials=1,
        tokens_per_s=middle,
        tokens_per_s_low=low,
        tokens_per_s_high=high,
        step_time_s=1.0,
    )


spans = st.tuples(*[st.floats(1, 1e6)] * 3).map(sorted).map(lambda ends: row(*ends))
thresholds = st.floats(0, 0.9)


@given(spans, spans, thresholds)
def test_a_verdict_needs_both_sureness_and_size(
    base: Pooled, head: Pooled, threshold: float
) -> None:
    verdict = verdict_of(base, head, threshold)
    overlap = (
        base.tokens_per_s_low <= head.tokens_per_s_high
        and head.tokens_per_s_low <= base.tokens_per_s_high
    )
    if overlap or abs(head.tokens_per_s / base.tokens_per_s - 1) <= threshold:
        assert verdict is Verdict.SAME
    if verdict is Verdict.REGRESSION:
        assert head.tokens_per_s < base.tokens_per_s
        # a slower head is a regression all the more
        slower = replace(
            head,
            tokens_per_s=head.tokens_per_s / 2,
            tokens_per_s_low=head.tokens_per_s_low / 2,
            tokens_per_s_high=head.tokens_per_s_high / 2,
        )
        assert verdict_of(base, slower, threshold) is Verdict.REGRESSION


@given(spans, thresholds)
def test_a_study_never_regresses_against_itself(base: Pooled, threshold: float) -> None:
    assert verdict_of(base, base, threshold) is Verdict.SAME
