"""The search benchmark on tables of any shape, and its other problems."""

import csv
import json
import random
from pathlib import Path
from typing import Any

import numpy as np
import pytest

tables = pytest.importorskip("benchmarks.search.tables")
main = pytest.importorskip("benchmarks.search.__main__").main
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


def test_warm_start_pairs(tmp_path: Path) -> None:
    path = write(tmp_path / "t.csv", rows(8) + rows(16) + rows(16, layers=32))
    pairs = warm.table_pairs(tables.read_groups(path, min_rows=1))
    half, smaller = pairs["half the devices"], pairs["smaller model"]
    assert [(new.cluster.num_devices, old.cluster.num_devices) for new, old in half] == [(16, 8)]
    assert [(new.model.num_layers, old.model.num_layers) for new, old in smaller] == [(32, 16)]
