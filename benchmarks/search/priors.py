"""Priors of three qualities for the emulated machines: a closed alpha-beta formula, right or wrong.

`good`: weights of the parts fitted to the nominal machine, whose constants no world has.
`biased`: every weight and the memory's activations wrong by a random factor. `bad`: biased, with a
random error of 10 % for each family of points (equal tp, pp, schedule and recomputation) on top.
"""

from dataclasses import replace
from functools import cache
from typing import Literal

import numpy as np
from numpy.typing import NDArray
from scipy.optimize import nnls
from scipy.stats import norm

from benchmarks.search.worlds import (
    HIDDEN,
    LAYERS,
    MEMORY_LIMIT_BYTES,
    PARAMETERS,
    PER_NODE,
    SEQUENCE,
    VOCAB,
    Floats,
    Machine,
    Table,
    memory_parts,
    table,
    true_time,
)
from tuner.ports import Candidate

Quality = Literal["good", "biased", "bad"]
_PEAK, _FAST, _SLOW = 312e12, 200e9, 20e9
MEMORY_SPREAD = 0.12
"""Standard deviation of the log error that the memory prior admits."""


def step_time_parts(points: Table) -> dict[str, Floats]:
    """Addends of the step time by the formula, in seconds, with data-sheet constants."""
    tokens = points.micro * SEQUENCE
    passes = np.select([points.recompute == 2, points.recompute == 1], [4.0, 3.1], 3.0)
    width = np.where(points.summa == 1, points.tp**0.5, points.tp)
    efficiency = 0.75 * tokens / (tokens + 250) * (HIDDEN / width) / (HIDDEN / width + 150)
    flops = 2 * PARAMETERS / (points.tp * points.pp) * tokens
    scores = 2 * LAYERS / points.pp * SEQUENCE**2 * HIDDEN * points.micro / points.tp
    shard = np.where((points.sequence == 1) | (points.summa == 1), points.tp, 1.0)
    traffic = LAYERS / points.pp * 2 * tokens * HIDDEN * (14 / shard + 12 / points.tp)
    micro_batch = {
        "gemm": passes * flops / (_PEAK * efficiency),
        "attention": (passes + 0.4) * scores / (0.4 * _PEAK),
        "pointwise": (passes - 0.4) * traffic / 1.4e12,
        "tensor_parallel": _tensor_parallel(points, tokens, passes >= 4),
    }
    stage = sum(micro_batch.values())
    payload = 2 * tokens * HIDDEN / np.where(points.sequence == 1, points.tp, 1)
    hop = (payload / _SLOW + 2e-5) * points.chunks * (points.pp > 1)
    fill = (points.pp - 1) / points.chunks
    fill = np.where(points.schedule == 3, fill / 3 + 0.1, fill)
    held = PARAMETERS / (points.tp * points.pp)
    owned = held / np.where(points.zero >= 1, points.dp, 1.0)
    return {
        **{name: points.steps * part for name, part in micro_batch.items()},
        "head": points.steps * 6 * tokens * VOCAB * HIDDEN / points.tp / (0.6 * _PEAK),
        "pipeline_p2p": points.steps * hop,
        "pipeline_bubble": fill * (stage + hop),
        **_data_parallel(points, held, 0.6 * stage),
        "optimizer": 30 * owned / 1.4e12 + 5e-3,
        "micro_batches": 5e-4 * points.steps,
    }


def _tensor_parallel(points: Table, tokens: Floats, again: NDArray[np.bool_]) -> Floats:
    """Collectives of one micro-batch on one stage."""
    payload = 2 * tokens * HIDDEN
    lane = np.where(points.tp > PER_NODE, 3 * _SLOW, _FAST)
    ring = 2 * (2 * payload * (points.tp - 1) / points.tp / lane + points.tp * 2e-5)
    shift = 8 * payload / points.tp**0.5 / lane + 1.2e-4
    one = np.where(points.summa == 1, shift, ring) * (points.tp > 1)
    return LAYERS / points.pp * one * np.where(again, 3.0, 2.0)


def _data_parallel(points: Table, held: Floats, backward: Floats) -> dict[str, Floats]:
    """Gradient reduction that half a backward pass does not hide; gathers of parameters."""
    share = (points.dp - 1) / points.dp
    inside = np.clip(PER_NODE / (points.tp * points.pp), 1, points.dp)
    lane = np.where(points.dp > inside, _SLOW * inside**0.5, _FAST)
    volume = np.where(points.half == 1, 2.0, 4.0) * held * share
    reduce = np.where(points.zero >= 1, 1.0, 2.0) * volume / lane
    gather = 2 * held * share / lane
    rounds = np.where(points.zero == 3, points.steps, 0.5 * (points.zero >= 1))
    return {
        "gradients": np.maximum(reduce - 0.5 * backward, 0.15 * reduce),
        "parameters": rounds * np.maximum(gather - 0.3 * backward, 0.3 * gather),
    }


@cache
def nominal_weights() -> Floats:
    """Weight of each part, fitted to 300 points of the nominal machine (relative least squares)."""
    points = table()
    rows = np.random.default_rng(11).choice(len(points.configs), 300, replace=False)
    times = true_time(points, Machine())[rows]
    parts = np.stack([part[rows] for part in step_time_parts(points).values()], axis=1)
    shares, count = parts / times[:, None] / 0.03, parts.shape[1]
    pull = np.eye(count) / 0.3  # towards 1, because the parts are collinear
    system, target = (
        np.vstack([shares, pull]),
        np.r_[np.full(len(rows), 1 / 0.03), pull.sum(axis=1)],
    )
    weights, _ = nnls(system, target)
    return np.maximum(weights, 0.1)


def candidates(quality: Quality, seed: int) -> list[Candidate]:
    """All points of the emulated space with a prior of this quality; `seed` draws its errors."""
    rng = np.random.default_rng([4099, seed])
    points = table()
    parts = step_time_parts(points)
    weights = nominal_weights()
    activation, family = 1.0, np.ones(len(points.configs))
    if quality != "good":
        weights = weights * np.exp(0.35 * rng.standard_normal(len(weights)))
        activation = float(np.exp(0.15 * rng.standard_normal()))
    if quality == "bad":
        family = np.exp(0.10 * _family_errors(points, rng))
    scaled = {
        name: weight * family * part
        for (name, part), weight in zip(parts.items(), weights, strict=True)
    }
    memory = memory_parts(points)
    memory["activations"] = activation * memory["activations"]
    return _candidates(points, scaled, {name: 1.04 * part for name, part in memory.items()})


def _family_errors(points: Table, rng: np.random.Generator) -> Floats:
    columns = [points.tp, points.pp, points.schedule, points.recompute]
    _, index = np.unique(np.stack(columns, axis=1), axis=0, return_inverse=True)
    index = index.reshape(-1)
    return rng.standard_normal(index.max() + 1)[index]


def _candidates(
    points: Table, parts: dict[str, Floats], memory: dict[str, Floats]
) -> list[Candidate]:
    total = sum(parts.values())
    peak = sum(memory.values())
    fits = norm.cdf(np.log(MEMORY_LIMIT_BYTES / peak) / MEMORY_SPREAD)
    blank = Candidate(config=points.configs[0])
    return [
        replace(
            blank,
            config=config,
            step_time_s=float(total[row]),
            step_time_parts_s={name: float(part[row]) for name, part in parts.items()},
            peak_memory_bytes=float(peak[row]),
            peak_memory_parts_bytes={name: float(part[row]) for name, part in memory.items()},
            probability_fits=float(fits[row]),
        )
        for row, config in enumerate(points.configs)
    ]
