"""How well the cost model predicts public measurements, and how fast.

`python -m benchmarks.cost_model [--reference DIR] [--json]` scores it on the reference tables.
`python -m benchmarks.cost_model --table FILE.csv [--calibrate-table OTHER.csv] --calibrate N
[--calibrate-where EXPR] [--json]` calibrates on N rows, drawn with a fixed seed among those that
satisfy EXPR (in the language of `DataFrame.query`), and scores it on all other rows of any table
with the columns of the reference tables. Nothing is fitted to a row that is scored.
"""

import argparse
import math
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd

from benchmarks import cost_model_checks, harness
from benchmarks.cost_model_scores import (
    BYTES_PER_GB,
    SEED,
    Scores,
    calibrate,
    draw,
    predict,
    score,
    score_table,
)
from benchmarks.cost_model_tables import (
    DEFAULT_STACK,
    find_reference,
    hardware_by_name,
    is_ok,
    points_of_table,
    read_table,
)
from search_spaces.cost_models.constants import Constants
from search_spaces.cost_models.prediction import step_time

Figures = dict[str, Any]
VTRAIN_ROWS, NANOTRON_ROWS, FSDP_ROWS = 40, 80, 15
CLEAN = "not slow_pipeline_regime and devices <= 256 and model in ('1B', '8B')"


def main() -> None:
    """Run what the options ask for."""
    options = harness.parser(__doc__)
    options.add_argument("--reference", type=Path, help="folder with measured/*.csv")
    options.add_argument("--table", type=Path, help="score this table alone")
    options.add_argument("--calibrate", type=int, default=0, help="rows to calibrate on")
    options.add_argument("--calibrate-table", type=Path, help="draw those rows from another table")
    options.add_argument("--calibrate-where", help="draw them among rows that satisfy this")
    options.add_argument("--seed", type=int, default=SEED, help="of the draw")
    args = options.parse_args()
    harness.finish(args, _one_table(args) if args.table else _reference(args))


def _one_table(args: argparse.Namespace) -> Figures:
    other = read_table(args.calibrate_table) if args.calibrate_table else None
    scores, _ = score_table(
        read_table(args.table), args.calibrate, args.calibrate_where, other, args.seed
    )
    return scores.figures()


def _reference(args: argparse.Namespace) -> Figures:
    figures: Figures = {}
    figures.update(cost_model_checks.speed(args.quick))
    figures.update(cost_model_checks.uneven_stages())
    folder = find_reference(args.reference)
    if folder is None:
        print("no reference tables found: give --reference DIR for the errors")
        return figures
    tables = folder / "measured"
    pieces = [
        _zero_fit(tables), _vtrain(tables, args.seed), _fsdp(tables, args.seed),
        _nanotron(tables, args.seed), _nanotron_memory(tables, args.seed),
    ]  # fmt: skip
    covered = [piece.pop("coverage") for piece in pieces]
    for piece in pieces:
        figures.update(piece)
    inside = sum(hits for hits, _ in covered)
    figures["coverage_90"] = inside / max(sum(rows for _, rows in covered), 1)
    figures.update(_frontier(tables))
    figures.update(cost_model_checks.frontier_stages(folder))
    figures.update(cost_model_checks.selective_recompute(folder))
    return figures


def _coverage(*scores: Scores) -> tuple[float, int]:
    """Rows inside their interval, and rows."""
    hits = sum((s.coverage_90 or 0.0) * s.rows_time for s in scores)
    return hits, sum(s.rows_time for s in scores)


def _zero_fit(tables: Path) -> Figures:
    """Nothing is fitted."""
    first, _ = score_table(read_table(tables / "megatron_2104_04473_t1.csv"), 0)
    second, _ = score_table(read_table(tables / "seqsel_2205_05198_t5.csv"), 0)
    return {
        "mape_megatron_t1": first.mape,
        "mape_seqsel": second.mape,
        "coverage": _coverage(first, second),
    }


def _vtrain(tables: Path, seed: int) -> Figures:
    scores, _ = score_table(read_table(tables / "vtrain_single_node.csv"), VTRAIN_ROWS, seed=seed)
    return {
        "mape_vtrain_single_node": scores.mape,
        "spearman_vtrain_single_node": scores.spearman,
        "coverage": _coverage(scores),
    }


def _fsdp(tables: Path, seed: int) -> Figures:
    a100, _ = score_table(read_table(tables / "foundry_fsdp_a100_80.csv"), FSDP_ROWS, seed=seed)
    h100, _ = score_table(read_table(tables / "foundry_fsdp_h100_80.csv"), FSDP_ROWS, seed=seed)
    return {
        "mape_fsdp_a100": a100.mape,
        "mape_fsdp_h100": h100.mape,
        "coverage": _coverage(a100, h100),
    }


def _nanotron(tables: Path, seed: int) -> Figures:
    """Step times of the clean rows."""
    clean = read_table(tables / "nanotron_h100.csv").query(CLEAN, engine="python")
    scores, _ = score_table(clean, NANOTRON_ROWS, seed=seed)
    return {
        "mape_nanotron_clean": scores.mape,
        "median_error_nanotron_clean": scores.median_error,
        "regret_top1_nanotron_clean": scores.regret_top1,
        "regret_top5_nanotron_clean": scores.regret_top5,
        "mape_memory_nanotron_clean": scores.mape_memory,
        "coverage": _coverage(scores),
    }


def _nanotron_memory(tables: Path, seed: int) -> Figures:
    """Peaks and verdicts of all rows, from as many readings drawn among all rows that ran."""
    frame = read_table(tables / "nanotron_h100.csv")
    drawn = draw(frame, NANOTRON_ROWS, None, seed)
    rows = predict(frame.drop(index=drawn), calibrate(frame.loc[drawn]))
    scores = score(rows)
    read = rows[is_ok(rows) & rows["peak_memory_gb"].notna().to_numpy()]
    ratio = read["predicted_reading"] / (read["peak_memory_gb"] * BYTES_PER_GB)
    return {
        "mape_memory_nanotron": scores.mape_memory,
        "median_error_memory_nanotron": 100.0 * float((ratio - 1.0).abs().median()),
        "oom_accuracy_nanotron": scores.oom_accuracy,
        "oom_false_alarm_nanotron": scores.oom_false_alarm,
        "coverage": (0.0, 0),
    }


def _frontier(tables: Path) -> Figures:
    """One constant, the time of matrix products, is set by the 175B run."""
    frame: pd.DataFrame = read_table(tables / "frontier.csv")
    hardware = hardware_by_name("mi250x-gcd")
    points = points_of_table(frame, DEFAULT_STACK)
    measured = frame["step_time_s"].to_numpy(dtype=np.float64)
    anchor = int(np.flatnonzero(frame["model"] == "175B")[0])

    def times(gemm: float) -> Any:
        return step_time(points, hardware, replace(Constants(), gemm=gemm))

    low, high = 0.3, 3.0
    for _ in range(60):
        middle = math.sqrt(low * high)
        too_slow = times(middle)[anchor] > measured[anchor]
        low, high = (low, middle) if too_slow else (middle, high)
    errors = 100.0 * (times(low) / measured - 1.0)
    return {
        f"error_frontier_{name.lower()}": float(error)
        for name, error in zip(frame["model"], errors, strict=True)
    }


if __name__ == "__main__":
    main()
