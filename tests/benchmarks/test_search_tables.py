"""The search benchmark on tables of any shape, and its other problems."""

import csv
import json
import random
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

tables = pytest.importorskip("benchmarks.search.tables")
main = pytest.importorskip("benchmarks.search.__main__").main
factory = pytest.importorskip("benchmarks.search.__main__").factory
problem = pytest.importorskip("benchmarks.search.problem")
frontier = pytest.importorskip("benchmarks.search.frontier")
live = pytest.importorskip("benchmarks.search.live")
warm = pytest.importorskip("benchmarks.search.warm")


def rows(devices: int = 8, *, layers: int = 16, failing: bool = False) -> list[dict[str, Any]]:
    """A group of 48 configurations with step times of a made-up machine."""
    noise = random.Random(devices)
    found = []
    for tp in (1, 2, 4, 8):
        for pp in (1, 2, 4):
            for micro in (1, 2, 4, 8):
                if devices % (tp * pp) or 64 % (micro * devices // (tp * pp)):
                    continue
                is_out = failing or (micro == 8 and tp == 1)
                seconds = (1 + 0.2 * tp + 1 / micro + 0.1 * pp) * noise.uniform(0.98, 1.02)
                found.append(
                    {
                        "model": f"m{layers}", "device": "NVIDIA A100 80GB", "devices": devices,
                        "sequence_length": 2048, "global_batch_size": 64, "layers": layers,
                        "hidden_size": 2048, "attention_heads": 16, "ffn_size": 8192,
                        "vocab_size": 50000, "tp": tp, "pp": pp, "dp": devices // (tp * pp),
                        "micro_batch_size": micro, "recompute": "none", "zero_stage": 0,
                        "status": "failed" if is_out else "ok",
                        "step_time_s": "" if is_out else f"{seconds:.4f}",
                        "peak_memory_gb": "" if is_out else f"{4 + 5 * micro / tp:.1f}",
                    }
                )  # fmt: skip
    return found


def write(path: Path, table: list[dict[str, Any]], columns: list[str] | None = None) -> Path:
    """The table as CSV, with these columns in this order."""
    with path.open("w", newline="") as file:
        writer = csv.DictWriter(file, columns or list(table[0]), extrasaction="ignore")
        writer.writeheader()
        writer.writerows(table)
    return path


def test_order_of_columns_says_nothing(tmp_path: Path) -> None:
    table = rows()
    names = list(table[0])
    random.Random(1).shuffle(names)
    straight = tables.read_groups(write(tmp_path / "a.csv", table))
    mixed = tables.read_groups(write(tmp_path / "b.csv", table, names))
    assert len(straight) == len(mixed) == 1
    assert straight[0].configs == mixed[0].configs
    assert np.array_equal(straight[0].step_time_s, mixed[0].step_time_s)
    assert straight[0].cluster.name == "dgx-a100-80"


def test_optional_columns_may_be_missing(tmp_path: Path) -> None:
    optional = {"recompute", "zero_stage", "peak_memory_gb"}
    names = [name for name in rows()[0] if name not in optional]
    group = tables.read_groups(write(tmp_path / "t.csv", rows(), names))[0]
    assert np.isnan(group.peak_memory_bytes).all()
    assert np.isfinite(group.step_time_s).any()
    problem = tables.problem_of(group, tables.fit_weights([group]))
    assert all(candidate.step_time_s > 0 for candidate in problem.candidates)


def test_a_column_that_is_needed_is_named(tmp_path: Path, capsys: Any) -> None:
    names = [name for name in rows()[0] if name not in ("tp", "dp")]
    path = write(tmp_path / "t.csv", rows(), names)
    assert main(["tables", "--table", str(path), "--quick"]) != 0
    assert "lacks the columns tp, dp" in capsys.readouterr().err


def test_a_table_of_failures_alone_is_refused(tmp_path: Path, capsys: Any) -> None:
    path = write(tmp_path / "t.csv", rows(failing=True))
    assert main(["tables", "--table", str(path), "--quick"]) != 0
    assert "no group of 30 configurations" in capsys.readouterr().err


def test_other_tables_calibrate(tmp_path: Path, capsys: Any) -> None:
    """Groups of failures alone are left out, and the other table may hold anything."""
    path = write(tmp_path / "t.csv", rows() + rows(16, failing=True))
    other = write(tmp_path / "o.csv", rows(16) + rows(32, failing=True))
    arguments = ["tables", "--table", str(path), "--calibrate-table", str(other), "--quick"]
    assert main([*arguments, "--searchers", "prior,random", "--json"]) == 0
    figures = json.loads(capsys.readouterr().out.splitlines()[-1])
    assert figures["num_groups"] == 1
    assert figures["prior"]["trials_to_3_percent"] is not None
    assert figures["all_rows"]["random"]["failed_in_first_10"] >= 0
    assert figures["ask_tell_ms_1000"] > 0


def test_limit_is_learnt_from_failures() -> None:
    """Runs that end at 0.8 of the capacity: the fitted limit says so, other failures or not."""
    rng = np.random.default_rng(0)
    ratios = np.exp(rng.uniform(-2, 1, 400))
    ran = (ratios < 0.8 * np.exp(0.1 * rng.standard_normal(400))) & (rng.random(400) > 0.1)
    limit, spread = tables._fit_limit(np.log(ratios), ran)
    assert 0.7 < limit < 0.9
    assert spread < 0.25


def test_frontier_space_holds_what_the_study_held() -> None:
    space = frontier.space()
    legal = [space.configs[row] for row in space.legal_rows]
    assert {config.pp for config in legal} == {1, 2, 4, 8, 12, 16}
    assert {config.world_size for config in legal} == {96, 128}
    assert len(set(space.configs)) == len(space.configs) > len(legal)
    raw = frontier.frontier_problem(0, is_raw=True)
    wrong = [row for row, is_legal in enumerate(space.is_legal) if not is_legal]
    assert np.isinf(raw.step_time_s[wrong]).all()
    assert 20 < frontier.tflops_per_gcd(raw.best_s) < 191.5


class FakeMachine:
    """Counts what is measured, and fails after a number of trials."""

    def __init__(self, breaks_after: int) -> None:
        self.left = breaks_after
        self.num_measured = 0

    def measure(self, config: Any) -> Any:
        if self.num_measured == self.left:
            raise KeyboardInterrupt
        self.num_measured += 1
        state = live.ObservationState.COMPLETED
        return live.Observation(config=config, state=state, step_time_s=1.0 + config.tp)


def test_a_sweep_goes_on_where_it_stopped(tmp_path: Path) -> None:
    candidates = live.live_candidates()
    assert len(candidates) >= 60
    path = tmp_path / "sweep.jsonl"
    with pytest.raises(KeyboardInterrupt):
        live._sweep(FakeMachine(70), candidates, path, 2)
    path.write_text(path.read_text() + '{"repeat": 0, "conf')  # cut off within a line
    machine = FakeMachine(10_000)
    sweep = live._sweep(machine, candidates, path, 2)
    assert machine.num_measured == 2 * len(candidates) - 70
    assert all(len(times) == 2 for times in sweep.times.values())
    again = live._sweep(FakeMachine(0), candidates, path, 2)
    assert again.times == sweep.times


class LuckyOnce(FakeMachine):
    """One configuration looks fastest the first time it is measured, and never again."""

    def __init__(self, lucky: str) -> None:
        super().__init__(10_000)
        self.lucky, self.seen = lucky, False

    def measure(self, config: Any) -> Any:
        told = super().measure(config)
        if config.config_key != self.lucky or self.seen:
            return told
        self.seen = True
        return replace(told, step_time_s=0.5)


def test_a_lucky_reading_does_not_win_a_live_search() -> None:
    candidates = live.live_candidates()
    slow = next(c.config for c in candidates if c.config.tp == 4)
    truth = {c.config.config_key: 1.0 + c.config.tp for c in candidates}
    machine = LuckyOnce(slow.config_key)
    grid = factory("grid")
    found = live._search(machine, candidates, grid, 0, len(candidates), truth)
    assert found["regret"][-1] == 5.0 / 2.0 - 1, "the reading at its face value"
    assert found["final_regret"] == 0.0
    assert machine.num_measured == len(candidates) + live.LEADERS * live.REPEATS


def test_warm_start_pairs(tmp_path: Path) -> None:
    path = write(tmp_path / "t.csv", rows(8) + rows(16) + rows(16, layers=32))
    pairs = warm.table_pairs(tables.read_groups(path, min_rows=1))
    half, smaller = pairs["half the devices"], pairs["smaller model"]
    assert [(new.cluster.num_devices, old.cluster.num_devices) for new, old in half] == [(16, 8)]
    assert [(new.model.num_layers, old.model.num_layers) for new, old in smaller] == [(32, 16)]


Table = list[dict[str, Any]]


def _with(column: str, value: object) -> Table:
    table = rows()
    table[2][column] = value
    return table


@pytest.mark.parametrize(
    ("table", "sentence"),
    [
        (_with("layers", "many"), "line 4: layers is 'many', which is no whole number from 1 on"),
        (_with("tp", "2.5"), "line 4: tp is '2.5', which is no whole number from 1 on"),
        (_with("zero_stage", 4), "line 4: zero_stage is '4', which is none of 0, 1, 2, 3"),
        (_with("step_time_s", "fast"), "line 4: step_time_s is 'fast', which is no number"),
        (
            [row | {"attention_heads": 4096} for row in rows()],
            "group m16 NVIDIA A100 80GB 8 2048 64",
        ),
    ],
)
def test_what_is_wrong_is_named(
    table: Table, sentence: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = write(tmp_path / "t.csv", table)
    assert main(["tables", "--table", str(path), "--quick"]) == 2
    said = capsys.readouterr().err
    assert sentence in said
    assert len(said.splitlines()) <= 2


def test_a_file_that_is_no_table(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = tmp_path / "t.csv"
    for content in (b"\xff\xfe\x00\x01", b"", b"a,b\n1,2\n"):
        path.write_bytes(content)
        assert main(["tables", "--table", str(path)]) == 2
        assert capsys.readouterr().err.startswith("error: t.csv ")


@pytest.mark.parametrize("option", ["--seeds", "--trials"])
@pytest.mark.parametrize("value", ["0", "-1", "ten", "1.5"])
def test_numbers_of_runs_start_at_one(
    option: str, value: str, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit) as exit_:
        main(["tables", f"{option}={value}"])
    assert exit_.value.code == 2
    assert f"{value!r} is no whole number from 1 on" in capsys.readouterr().err


@pytest.mark.parametrize("named", ["cbo,guess", "", " , "])
def test_searchers_must_exist(named: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["tables", "--searchers", named]) == 2
    assert "cbo-plain" in capsys.readouterr().err


def _one_knob() -> Table:
    """One layout, thirty micro-batch sizes."""
    first = rows(8)[0] | {"global_batch_size": 8 * 232_792_560, "status": "ok"}
    sizes = [micro for micro in range(1, 50) if 232_792_560 % micro == 0][:31]
    extra = [{**first, "micro_batch_size": micro, "step_time_s": 1 + 1 / micro} for micro in sizes]
    return extra + extra[: max(0, 30 - len(extra))]


def _ties() -> Table:
    return [row | {"step_time_s": 2.0} for row in rows() if row["status"] == "ok"]


def _one_ran() -> Table:
    table = rows(failing=True)
    table[7] |= {"status": "ok", "step_time_s": 3.0}
    return table


def _no_memory() -> Table:
    return [{k: v for k, v in row.items() if k != "peak_memory_gb"} for row in rows()]


@pytest.mark.parametrize("make", [_one_knob, _ties, _one_ran, _no_memory])
def test_every_searcher_gets_to_the_end(make: Callable[[], Table], tmp_path: Path) -> None:
    """No searcher trips, and given time enough each finds the best."""
    found = tables.table_problems(write(tmp_path / "t.csv", make()), None)
    assert len(found) == 1
    size = len(found[0].candidates)
    for name in ("cbo", "prior", "random"):
        trace = problem.run(found[0], factory(name), seed=0, num_trials=size)
        assert trace.regret[-1] <= 0.01
        assert np.isfinite(trace.trials_to(0.01))


def test_empty_degrees_follow_from_the_devices(tmp_path: Path) -> None:
    table = [row | {"dp": ""} for row in rows()]
    group = tables.read_groups(write(tmp_path / "t.csv", table))[0]
    assert {config.world_size for config in group.configs} == {8}
    assert group.configs == tables.read_groups(write(tmp_path / "u.csv", rows()))[0].configs


def test_sizes_are_numbers_not_text(tmp_path: Path) -> None:
    """`8` and `8.0` devices are one group."""
    table = [row | {"devices": "8.0" if i % 2 else "8"} for i, row in enumerate(rows())]
    assert len(tables.read_groups(write(tmp_path / "t.csv", table))) == 1
