"""Calibrate the cost model on some rows of a table and score it on the others."""

from dataclasses import dataclass, field

import numpy as np
import pandas as pd
from numpy.typing import NDArray
from scipy.stats import spearmanr

from benchmarks.cost_model_tables import (
    DEFAULT_STACK,
    STACKS,
    Stack,
    hardware_by_name,
    is_failed,
    is_illegal,
    is_ok,
    points_of_table,
    stack_by_source,
)
from search_spaces.cost_models.calibration import Calibration, calibrate_memory, calibrate_time
from search_spaces.cost_models.prediction import first_rank_bytes, peak_memory_bytes

SEED = 7
BYTES_PER_GB = 2**30
"""The tables' memory readings are binary gigabytes."""
SAFE_SHARE = 0.88
"""Share of a device's memory that a run can hold: the context and fragmentation take the rest."""
SMALLEST_GROUP = 5
"""Fewer runs than this do not make a ranking."""
GROUP = ["model", "devices", "sequence_length", "global_batch_size"]

Key = tuple[str, str]


@dataclass(frozen=True, kw_only=True)
class Scores:
    """Errors over rows that were not fitted; a figure is none where its columns are missing."""

    mape: float | None = None
    median_error: float | None = None
    spearman: float | None = None
    regret_top1: float | None = None
    regret_top5: float | None = None
    coverage_90: float | None = None
    mape_memory: float | None = None
    oom_accuracy: float | None = None
    oom_false_alarm: float | None = None
    rows_calibrated: int = 0
    rows_time: int = 0
    rows_memory: int = 0
    rows_oom: int = 0
    groups_regret: int = 0
    errors: NDArray[np.float64] = field(default_factory=lambda: np.empty(0), repr=False)

    def figures(self) -> dict[str, float | int | None]:
        """What a benchmark prints."""
        return {name: value for name, value in vars(self).items() if name != "errors"}


def draw(frame: pd.DataFrame, count: int, where: str | None, seed: int = SEED) -> pd.Index:
    """Labels of `count` timed rows, drawn at random among those that satisfy an expression."""
    pool = frame.query(where, engine="python") if where else frame
    pool = pool[is_ok(pool) & pool["step_time_s"].notna().to_numpy()]
    drawn = np.random.RandomState(seed).permutation(len(pool))[:count]
    return pool.index[np.sort(drawn)]


def _groups(frame: pd.DataFrame) -> dict[Key, pd.DataFrame]:
    """Rows by device and stack, in the order of their number."""
    stacks = frame["source"].astype(str).map(lambda source: stack_by_source(source).name)
    groups = {
        (str(device), str(stack)): rows
        for (device, stack), rows in frame.groupby([frame["device"], stacks])
    }
    return dict(sorted(groups.items(), key=lambda item: -len(item[1])))


def _stack(name: str) -> Stack:
    return next((stack for stack in STACKS if stack.name == name), DEFAULT_STACK)


def calibrate(rows: pd.DataFrame) -> dict[Key, Calibration]:
    """What the rows teach, by device and stack."""
    learnt = {}
    for (device, name), group in _groups(rows).items():
        stack, hardware = _stack(name), hardware_by_name(device)
        start = Calibration(constants=stack.constants)
        points = points_of_table(group, stack)
        seconds = group["step_time_s"].to_numpy(dtype=np.float64)
        calibration = calibrate_time(start, points, hardware, seconds)
        read = group[group["peak_memory_gb"].notna()]
        peaks = read["peak_memory_gb"].to_numpy(dtype=np.float64) * BYTES_PER_GB
        exact = np.zeros(len(read), dtype=bool)
        reading = first_rank_bytes if stack.reads_first_rank else peak_memory_bytes
        learnt[device, name] = calibrate_memory(
            calibration,
            points_of_table(read, stack),
            hardware,
            peaks,
            exact,
            reading,
            stack.memory_spreads,
        )
    return learnt


def _choose(learnt: dict[Key, Calibration], key: Key) -> Calibration:
    """The calibration of the same device and stack, else of the same stack, else the prior."""
    if key in learnt:
        return learnt[key]
    same_stack = [calibration for (_, name), calibration in learnt.items() if name == key[1]]
    return same_stack[0] if same_stack else Calibration(constants=_stack(key[1]).constants)


def predict(frame: pd.DataFrame, learnt: dict[Key, Calibration]) -> pd.DataFrame:
    """The rows with columns of predictions added."""
    pieces = []
    for key, group in _groups(frame).items():
        stack, hardware = _stack(key[1]), hardware_by_name(key[0])
        points, calibration = points_of_table(group, stack), _choose(learnt, key)
        result = calibration.predict(points, hardware)
        read = result.peak_memory_bytes
        if stack.reads_first_rank:
            corrected = read / calibration.read(points, hardware)
            read = corrected * calibration.read(points, hardware, first_rank_bytes)
        pieces.append(
            group.assign(
                predicted_s=result.step_time_s,
                half_width=result.step_time_half_width,
                predicted_bytes=result.peak_memory_bytes,
                # a run that ends has read no more than its device has
                predicted_reading=np.minimum(read, hardware.memory_bytes),
                limit_bytes=SAFE_SHARE * hardware.memory_bytes,
                is_illegal=is_illegal(group, stack),
            )
        )
    return pd.concat(pieces).loc[frame.index]


def score(rows: pd.DataFrame, rows_calibrated: int = 0) -> Scores:
    """Scores of rows with predictions."""
    timed = rows[is_ok(rows) & rows["step_time_s"].notna().to_numpy()]
    figures: dict[str, float | int | None] = {"rows_calibrated": rows_calibrated}
    errors = (timed["predicted_s"] / timed["step_time_s"] - 1.0).to_numpy(dtype=np.float64)
    figures["rows_time"] = len(timed)
    if len(timed):
        figures["mape"] = 100.0 * float(np.abs(errors).mean())
        figures["median_error"] = 100.0 * float(np.median(np.abs(errors)))
        inside = np.abs(np.log1p(errors)) <= timed["half_width"].to_numpy(dtype=np.float64)
        figures["coverage_90"] = float(inside.mean())
    if len(timed) > 2:
        figures["spearman"] = float(spearmanr(timed["predicted_s"], timed["step_time_s"])[0])
    figures.update(_regrets(timed))
    figures.update(_memory(rows))
    return Scores(errors=errors, **figures)  # type: ignore[arg-type]


def _regrets(timed: pd.DataFrame) -> dict[str, float | int | None]:
    """How much slower than the best run the first choice is, and the best of the first five."""
    first, top = [], []
    for _, group in timed.groupby(GROUP):
        if len(group) < SMALLEST_GROUP:
            continue
        ranked = group.sort_values("predicted_s")["step_time_s"].to_numpy(dtype=np.float64)
        first.append(ranked[0] / ranked.min() - 1.0)
        top.append(ranked[:5].min() / ranked.min() - 1.0)
    if not first:
        return {"groups_regret": 0}
    return {
        "groups_regret": len(first),
        "regret_top1": 100.0 * float(np.mean(first)),
        "regret_top5": 100.0 * float(np.mean(top)),
    }


def _memory(rows: pd.DataFrame) -> dict[str, float | int | None]:
    """Error of the peak, and of the verdict whether a run fits."""
    figures: dict[str, float | int | None] = {}
    ok, failed = is_ok(rows), is_failed(rows)
    read = rows[ok & rows["peak_memory_gb"].notna().to_numpy()]
    figures["rows_memory"] = len(read)
    if len(read):
        peaks = read["peak_memory_gb"] * BYTES_PER_GB
        errors = read["predicted_reading"] / peaks - 1.0
        figures["mape_memory"] = 100.0 * float(errors.abs().mean())
    if failed.any():
        too_much = (rows["predicted_bytes"] > rows["limit_bytes"]).to_numpy()
        alarm = too_much | rows["is_illegal"].to_numpy()
        known = ok | failed
        figures["rows_oom"] = int(known.sum())
        figures["oom_accuracy"] = float((alarm == failed)[known].mean())
        figures["oom_false_alarm"] = float(alarm[ok].mean()) if ok.any() else None
    return figures


def score_table(
    frame: pd.DataFrame,
    count: int,
    where: str | None = None,
    other: pd.DataFrame | None = None,
    seed: int = SEED,
) -> tuple[Scores, pd.DataFrame]:
    """Calibrate on rows of the table (or of another one) and score all rows not drawn."""
    source = frame if other is None else other
    drawn = draw(source, count, where, seed) if count else source.index[:0]
    learnt = calibrate(source.loc[drawn]) if len(drawn) else {}
    left = frame if other is not None else frame.drop(index=drawn)
    rows = predict(left, learnt)
    return score(rows, len(drawn)), rows
