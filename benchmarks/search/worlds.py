"""Emulated machines: a 22B model on 64 devices of 40 GB, 12,687 legal points, about a third fit.

The truth and the prior are two different models. The truth quantises each GEMM into waves of tiles,
floors kernels by their launch time, takes the slowest pipeline stage with its head or embedding,
overlaps the gradient reduction with one backward pass alone, and adds random interactions of knobs
and an idiosyncrasy of each configuration. The prior is a closed alpha-beta formula. A world is one
draw of the truth's constants and interactions.
"""

import itertools
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache

import numpy as np
from numpy.typing import NDArray

from search_spaces.parallel_config import ParallelConfig

Floats = NDArray[np.float64]

NUM_DEVICES, PER_NODE = 64, 8
LAYERS, HIDDEN, HEADS, SEQUENCE, VOCAB, BATCH = 48, 6144, 64, 2048, 51200, 512
PARAMETERS = LAYERS * 12 * HIDDEN**2 + VOCAB * HIDDEN
MEMORY_LIMIT_BYTES = 40e9
TOKENS_PER_STEP = SEQUENCE * BATCH
RUN_NOISE = 0.01
SCHEDULES = ("1f1b", "gpipe", "interleaved", "zero_bubble")
RECOMPUTES = ("none", "selective", "full")


@dataclass(frozen=True)
class Table:
    """Knobs of all points as columns of numbers; schedules and recomputation by index."""

    configs: tuple[ParallelConfig, ...]
    tp: Floats
    pp: Floats
    dp: Floats
    chunks: Floats
    micro: Floats
    steps: Floats
    zero: Floats
    schedule: Floats
    recompute: Floats
    summa: Floats
    sequence: Floats
    half: Floats

    def labels(self) -> Floats:
        """Columns (points, 10) from which random interactions are drawn."""
        columns = (self.tp, self.pp, self.chunks, self.micro, self.zero, self.schedule)
        more = (self.recompute, self.summa, self.sequence, self.half)
        return np.stack([*columns, *more], axis=1)


@cache
def table() -> Table:
    """All legal points."""
    configs = tuple(_configs())

    def column(name: str) -> Floats:
        return np.array([float(getattr(config, name)) for config in configs])

    dp, micro = column("dp"), column("micro_batch_size")
    return Table(
        configs=configs,
        tp=column("tp"),
        pp=column("pp"),
        dp=dp,
        chunks=column("virtual_stages"),
        micro=micro,
        steps=BATCH / (dp * micro),
        zero=column("zero_stage"),
        schedule=np.array([float(SCHEDULES.index(c.pipeline_schedule)) for c in configs]),
        recompute=np.array([float(RECOMPUTES.index(c.recompute)) for c in configs]),
        summa=np.array([float(c.tp_layout == "2d") for c in configs]),
        sequence=column("sequence_parallel"),
        half=np.array([float(c.reduce_dtype == "bf16") for c in configs]),
    )


def _configs() -> list[ParallelConfig]:
    degrees = itertools.product((1, 2, 4, 8, 16), (1, 2, 4, 8, 16, 32), (1, 2, 4, 8, 16))
    rest = itertools.product(
        (1, 2, 3, 4, 6),
        SCHEDULES,
        range(4),
        RECOMPUTES,
        (False, True),
        (False, True),
        (False, True),
    )
    found = []
    for (tp, pp, micro), knobs in itertools.product(degrees, list(rest)):
        chunks, schedule, zero, recompute, summa, sequence, half = knobs
        if NUM_DEVICES % (tp * pp) or BATCH % (micro * NUM_DEVICES // (tp * pp)):
            continue
        dp = NUM_DEVICES // (tp * pp)
        if not _is_legal(tp, pp, dp, BATCH // (micro * dp), chunks, schedule, zero):
            continue
        if (summa and tp not in (4, 16)) or (sequence and (tp == 1 or summa)):
            continue
        if half and dp == 1:
            continue
        found.append(
            ParallelConfig.model_construct(
                tp=tp,
                pp=pp,
                dp=dp,
                micro_batch_size=micro,
                virtual_stages=chunks,
                pipeline_schedule=schedule,
                zero_stage=zero,
                recompute=recompute,
                tp_layout="2d" if summa else "1d",
                sequence_parallel=sequence,
                reduce_dtype="bf16" if half else "fp32",
            )
        )
    return found


def _is_legal(tp: int, pp: int, dp: int, steps: int, chunks: int, schedule: str, zero: int) -> bool:
    if pp == 1 and (chunks != 1 or schedule != "1f1b"):
        return False
    if (schedule == "interleaved") != (chunks > 1):
        return False
    if chunks > 1 and steps % pp:
        return False
    if LAYERS % (pp * chunks) or (pp > 1 and zero >= 2) or (dp == 1 and zero > 0):
        return False
    return HEADS % tp == 0 and steps >= pp // 2


@dataclass(frozen=True)
class World:
    """One machine: true step times and peaks of all points of `table()`."""

    step_time_s: Floats
    memory_bytes: Floats

    @property
    def fits(self) -> NDArray[np.bool_]:
        """Which points run."""
        return self.memory_bytes <= MEMORY_LIMIT_BYTES


@dataclass(frozen=True)
class Machine:
    """Constants of the truth."""

    peak: float = 312e12
    gemm: float = 0.82
    memory_bandwidth: float = 1.45e12
    launch_s: float = 5e-6
    nvlink: float = 210e9
    network: float = 21e9
    step_s: float = 9e-6
    hop_s: float = 2.5e-5
    overlap: float = 0.75
    jitter: float = 0.012
    host_s: float = 2.5e-4

    @classmethod
    def draw(cls, rng: np.random.Generator) -> "Machine":
        """Constants as they scatter between machines."""
        scatter = {
            "gemm": 0.06,
            "memory_bandwidth": 0.08,
            "launch_s": 0.2,
            "nvlink": 0.15,
            "network": 0.2,
            "step_s": 0.3,
            "hop_s": 0.3,
            "jitter": 0.4,
            "host_s": 0.3,
        }
        nominal = cls()
        drawn = {
            name: getattr(nominal, name) * float(np.exp(sd * rng.standard_normal()))
            for name, sd in scatter.items()
        }
        return cls(**drawn, overlap=float(rng.uniform(0.55, 0.9)))


def draw_world(seed: int) -> World:
    """The machine of this seed."""
    rng = np.random.default_rng([2027, seed])
    points = table()
    time = true_time(points, Machine.draw(rng))
    time = time * np.exp(interactions(points.labels(), 0.02, rng))
    time = time * np.exp(0.01 * rng.standard_normal(len(time)))
    memory = _true_memory(points, activation=float(np.exp(0.1 * rng.standard_normal())), rng=rng)
    return World(time, memory)


def interactions(labels: Floats, sd: float, rng: np.random.Generator) -> Floats:
    """Random effects: one table for each of six pairs of knobs and two triples, of total `sd`."""
    total = np.zeros(len(labels))
    groups: list[Sequence[int]] = [
        tuple(rng.choice(labels.shape[1], size=size, replace=False)) for size in (2,) * 6 + (3,) * 2
    ]
    for group in groups:
        _, index = np.unique(labels[:, list(group)], axis=0, return_inverse=True)
        index = index.reshape(-1)
        total += rng.standard_normal(index.max() + 1)[index]
    return sd * total / np.sqrt(len(groups))


def true_time(points: Table, machine: Machine) -> Floats:
    """Step time in seconds before interactions and noise."""
    forward, backward = _layer_times(points, machine)
    layers = LAYERS / points.pp
    head = _gemm(points.micro * SEQUENCE, VOCAB / points.tp, HIDDEN, machine)
    stage = layers * (forward + backward) + 3 * head * (points.pp == 1)
    last = stage + 3 * head * (points.pp > 1) - 0.35 * head * (points.chunks > 1)
    slowest = np.maximum(stage, last) * (1 + machine.jitter * np.log2(points.pp * points.dp))
    hop = _hop_time(points, machine)
    period = slowest + hop * points.chunks * np.where(points.schedule == 2, 0.8, 0.5)
    fill = (points.pp - 1) * (stage + 2 * hop) / points.chunks
    fill = np.where(points.schedule == 3, 0.42 * fill + 0.1 * stage, fill)
    fill = np.where(points.schedule == 1, 1.03 * fill, fill)
    busy = points.steps * period * np.where(points.schedule == 3, 1.018, 1.0) + fill
    reduction = _reduction_time(points, machine, backward * layers)
    return busy + reduction + _optimizer_time(points, machine) + machine.host_s * points.steps


def _layer_times(points: Table, machine: Machine) -> tuple[Floats, Floats]:
    """Forward and backward seconds of one layer and micro-batch, its communication included."""
    root = np.where(points.summa == 1, np.sqrt(points.tp), 1.0)
    rows, split = points.micro * SEQUENCE / root, np.where(points.summa == 1, root, points.tp)
    gemm = sum(
        _gemm(rows, n / (split if cut_n else 1), k / (1 if cut_n else split), machine)
        for n, k, cut_n in (
            (3 * HIDDEN, HIDDEN, True),
            (HIDDEN, HIDDEN, False),
            (4 * HIDDEN, HIDDEN, True),
            (HIDDEN, 4 * HIDDEN, False),
        )
    )
    score_flops = 2 * points.micro * SEQUENCE**2 * HIDDEN / points.tp
    attention = np.maximum(score_flops / (0.5 * machine.peak * machine.gemm), 3 * machine.launch_s)
    shard = np.where((points.sequence == 1) | (points.summa == 1), points.tp, 1.0)
    traffic = 2 * points.micro * SEQUENCE * HIDDEN * (14 / shard + 12 / points.tp)
    pointwise = np.maximum(traffic / machine.memory_bandwidth, 9 * machine.launch_s)
    compute = gemm + attention + pointwise
    exchange = _tensor_time(points, machine)
    again = np.select(
        [points.recompute == 1, points.recompute == 2],
        [1.15 * attention + 0.3 * pointwise, compute + exchange],
        0.0,
    )
    return compute + exchange, 2.04 * gemm + 2.4 * attention + 1.6 * pointwise + exchange + again


def _gemm(rows: Floats, columns: Floats, depth: Floats | float, machine: Machine) -> Floats:
    """Seconds of an (m, n, k) product: whole waves of 128 x 256 tiles over 108 processors."""
    tiles = np.ceil(rows / 128) * np.ceil(columns / 256)
    waves = np.maximum(np.ceil(tiles / 108), 0.85 * tiles / 108 + 0.6)
    wave = 2 * 128 * 256 * np.asarray(depth, dtype=float) * 108 / machine.peak
    efficiency = machine.gemm * np.asarray(depth, dtype=float) / (np.asarray(depth) + 300.0)
    return np.maximum(waves * wave / efficiency, machine.launch_s)


def _tensor_time(points: Table, machine: Machine) -> Floats:
    """Tensor-parallel collectives of one layer and pass."""
    payload = 2 * points.micro * SEQUENCE * HIDDEN
    spans = points.tp > PER_NODE
    width = np.where(spans, 3.2 * machine.network, machine.nvlink)
    width = width * payload / (payload + 6e6)
    ring = 2 * (points.tp - 1) * machine.step_s * np.where(spans, 2.5, 1) + (
        2 * payload * (points.tp - 1) / points.tp / width
    )
    root = np.sqrt(points.tp)
    shift = 7.5 * payload / root / width + 4 * root * machine.step_s
    one = 2 * ring * np.where(points.sequence == 1, 0.96, 1.0)
    time = np.where(points.summa == 1, shift + 8 * machine.launch_s, one)
    return np.where(points.tp > 1, time, 0.0)


def _hop_time(points: Table, machine: Machine) -> Floats:
    payload = 2 * points.micro * SEQUENCE * HIDDEN / np.where(points.sequence == 1, points.tp, 1)
    inside = points.tp * points.pp <= PER_NODE
    width = np.where(
        inside, machine.nvlink, machine.network / np.minimum(points.tp, PER_NODE) ** 0.3
    )
    return np.where(points.pp > 1, payload / width + machine.hop_s, 0.0)


def _reduction_time(points: Table, machine: Machine, backward: Floats) -> Floats:
    """Gradient and parameter exchange of a step that no backward pass hides."""
    held = PARAMETERS / (points.tp * points.pp)
    inside = np.clip(PER_NODE / (points.tp * points.pp), 1, points.dp)
    outside = points.dp / inside
    width = np.where(outside > 1, machine.network * np.sqrt(inside) * 0.9, machine.nvlink)
    payload = held * np.where(points.half == 1, 2.0, 4.0)
    share = (points.dp - 1) / points.dp
    gather = 2 * held * share / width
    reduce = np.where(points.zero >= 1, 1.0, 2.0) * payload * share / width
    reduce = reduce + 2 * np.log2(np.maximum(points.dp, 1)) * 8 * machine.step_s
    hidden = machine.overlap * backward * np.where(points.pp > 1, 0.6, 1.0)
    exposed = np.maximum(reduce - hidden, 0.15 * reduce)
    exposed = exposed + np.where(points.zero >= 1, gather, 0.0) * 0.7
    exposed = exposed + np.where(points.zero == 2, 0.06 * reduce, 0.0)
    again = 2 * points.steps * np.maximum(gather - 0.5 * hidden, 0.25 * gather)
    return np.where(points.dp > 1, exposed + np.where(points.zero == 3, again, 0.0), 0.0)


def _optimizer_time(points: Table, machine: Machine) -> Floats:
    share = np.where(points.zero >= 1, points.dp, 1.0)
    return 28 * PARAMETERS / (points.tp * points.pp * share) / machine.memory_bandwidth + 4e-3


def _true_memory(points: Table, activation: float, rng: np.random.Generator) -> Floats:
    """Peak bytes, with fragmentation that depends on knobs and 2 % idiosyncrasy."""
    states, activations, fixed = memory_parts(points).values()
    fragmentation = 1.04 + 0.02 * (points.recompute == 0) + 0.01 * np.log2(points.micro)
    total = (states + activation * activations) * fragmentation + fixed * 1.2
    noise = interactions(points.labels(), 0.02, rng) + 0.02 * rng.standard_normal(len(total))
    return total * np.exp(noise)


def memory_parts(points: Table) -> dict[str, Floats]:
    """Bytes of states, activations and the fixed rest by the usual counting."""
    held = PARAMETERS / (points.tp * points.pp)
    share = [np.where(points.zero >= stage, points.dp, 1.0) for stage in (3, 2, 1)]
    states = 2 * held / share[0] + 4 * held / share[1] + 12 * held / share[2]
    states = states + np.where(points.pp > 1, 2 * VOCAB * HIDDEN / points.tp, 0.0)
    base = SEQUENCE * points.micro * HIDDEN
    shard = np.where((points.sequence == 1) | (points.summa == 1), points.tp, 1.0)
    scores = 5 * HEADS * SEQUENCE / HIDDEN / points.tp
    whole = base * (10 / shard + 24 / points.tp + scores)
    layer = np.select(
        [points.recompute == 0, points.recompute == 1],
        [whole, base * (10 / shard + 24 / points.tp)],
        base * 2 / shard,
    )
    waves = np.select(
        [points.schedule == 1, points.schedule == 3, points.schedule == 2],
        [
            points.steps,
            np.minimum(points.steps, 2 * points.pp - 1),
            np.minimum(points.steps, points.pp)
            * (1 + (points.pp - 1) / (points.pp * points.chunks)),
        ],
        np.minimum(points.steps, points.pp),
    )
    activations = layer * LAYERS / points.pp * waves + whole * (points.recompute == 2)
    activations = activations + 4 * points.micro * SEQUENCE * VOCAB / points.tp
    fixed = np.full(len(held), 2.5e9)
    return {"states": states, "activations": activations, "fixed": fixed}
