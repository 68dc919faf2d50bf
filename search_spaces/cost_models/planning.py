"""Plans: the best configurations of a space by prediction alone, and what limits each of them."""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from search_spaces.cluster_spec import ClusterSpec
from search_spaces.cost_models.analytic import AnalyticCostModel, CostEstimate
from search_spaces.cost_models.memory import MemoryParts, densities, stage_memory
from search_spaces.counts import model_flops_per_step
from search_spaces.layers import stage_layer_counts
from search_spaces.parallel_config import ParallelConfig
from search_spaces.pipeline_schedules import stages_of_rank
from search_spaces.space import SearchSpace
from search_spaces.training_spec import TrainingSpec

COMMUNICATION = (
    "tensor_parallel", "context_parallel", "expert_parallel", "pipeline_p2p", "data_parallel",
)  # fmt: skip
ACCELERATOR_MARGIN = 0.95
"""Share of an accelerator's memory that a plan may fill; its context and driver take the rest."""
LIKELY = 0.5
"""A point is said to fit from this probability on."""


@dataclass(frozen=True, kw_only=True)
class PlannedPoint:
    """One configuration and everything that is predicted of it."""

    config: ParallelConfig
    estimate: CostEstimate
    probability_fits: float
    tokens_per_s: float
    mfu: float | None
    """Model FLOP/s over the devices' peak; none where the peak is not known."""
    bubble_share: float
    communication_share: float
    limited_by: str
    """compute, communication, pipeline bubble, host or memory traffic: the largest part."""

    @property
    def fits(self) -> bool:
        """Whether it is more likely to fit than not."""
        return self.probability_fits >= LIKELY


@dataclass(frozen=True, kw_only=True)
class ScalingPoint:
    """The best configuration on some number of nodes."""

    num_nodes: int
    global_batch_size: int
    best: PlannedPoint | None
    efficiency: float | None
    """Tokens per second and device over those of the fewest nodes."""


def memory_limit_bytes(cluster: ClusterSpec) -> float:
    """Bytes of a device that a plan may fill."""
    margin = 1.0 if cluster.device_kind == "cpu" else ACCELERATOR_MARGIN
    return margin * cluster.memory_bytes


def plan_point(costs: AnalyticCostModel, config: ParallelConfig) -> PlannedPoint:
    """Everything that is predicted of one configuration."""
    return plan_points(costs, [config])[0]


def plan_points(costs: AnalyticCostModel, configs: Sequence[ParallelConfig]) -> list[PlannedPoint]:
    """Everything that is predicted of some configurations, in their order."""
    limit = memory_limit_bytes(costs.cluster)
    estimates = costs.estimate_many(configs)
    return [
        _planned(costs, config, estimate, limit)
        for config, estimate in zip(configs, estimates, strict=True)
    ]


def _planned(
    costs: AnalyticCostModel, config: ParallelConfig, estimate: CostEstimate, limit: float
) -> PlannedPoint:
    parts, total = estimate.parts_s, estimate.step_time_s
    communication = sum(parts[name] for name in COMMUNICATION)
    shares = {
        "compute": parts["compute"],
        "communication": communication,
        "pipeline bubble": parts["pipeline_bubble"],
        "host": parts["host"],
        "memory traffic": parts["accumulation"] + parts["optimizer"],
    }
    peak = costs.cluster.peak_flops_per_s.get(config.dtype)
    flops = model_flops_per_step(costs.model, costs.training)
    return PlannedPoint(
        config=config,
        estimate=estimate,
        probability_fits=estimate.probability_fits(limit),
        tokens_per_s=costs.training.tokens_per_step / total,
        mfu=flops / (total * config.world_size * peak) if peak else None,
        bubble_share=parts["pipeline_bubble"] / total,
        communication_share=communication / total,
        limited_by=max(shares, key=lambda name: shares[name]),
    )


def rank(
    costs: AnalyticCostModel, configs: Sequence[ParallelConfig]
) -> tuple[NDArray[np.intp], NDArray[np.float64], NDArray[np.float64]]:
    """Indices of the points that fit, fastest first; step times and peaks of all points."""
    result = costs.predict(costs.points(configs), has_parts=False)
    fits = result.peak_memory_bytes <= memory_limit_bytes(costs.cluster)
    order = np.argsort(result.step_time_s, kind="stable")
    return order[fits[order]], result.step_time_s, result.peak_memory_bytes


def pareto(
    order: NDArray[np.intp], peaks: NDArray[np.float64], least_saving: float = 0.1
) -> list[int]:
    """Of points in order of their time, those that need less memory than every faster one."""
    front, lowest = [], np.inf
    for index in order.tolist():
        if peaks[index] < lowest * (1.0 - least_saving):
            front.append(index)
            lowest = peaks[index]
    return front


def memory_by_rank(costs: AnalyticCostModel, config: ParallelConfig) -> list[dict[str, float]]:
    """Bytes by part on every pipeline rank, and their sum as `total`."""
    points = costs.points([config])
    counts = stage_layer_counts(costs.model.num_layers, config)
    ranks = range(config.pp)
    stages = [
        stages_of_rank(config.pipeline_schedule, rank, config.pp, config.virtual_stages)
        for rank in ranks
    ]
    last = config.num_stages - 1
    parts = stage_memory(
        points,
        densities(points, costs.hardware, costs.constants),
        np.array([float(sum(counts[stage] for stage in held)) for held in stages]),
        np.arange(config.pp, dtype=np.float64),
        np.array([float(0 in held) for held in stages]),
        np.array([float(last in held) for held in stages]),
    )
    table = {
        name: np.broadcast_to(np.asarray(getattr(parts, name), dtype=np.float64), (config.pp,))
        for name in (*MemoryParts.__dataclass_fields__, "total")
    }
    return [{name: float(column[rank]) for name, column in table.items()} for rank in ranks]


def changes_near(space: SearchSpace, config: ParallelConfig) -> list[ParallelConfig]:
    """Legal configurations one change away: another value of a knob, or ranks moved between axes.

    The values need not be of the space's domains: what would help may be what was left out.
    """
    found: dict[str, ParallelConfig] = {}
    for knobs in _single_changes(space, config):
        near = config.with_knobs(**knobs)
        if near != config and space.is_legal(near):
            found.setdefault(near.config_key, near)
    return list(found.values())


def _single_changes(space: SearchSpace, config: ParallelConfig) -> Iterable[Mapping[str, object]]:
    yield from ({"zero_stage": stage} for stage in range(4))
    kinds = ("none", "selective", "full")
    yield from ({"recompute": kind, "recompute_layers": None} for kind in kinds)
    size = config.micro_batch_size
    yield from ({"micro_batch_size": new} for new in (max(size // 2, 1), size * 2, 1))
    yield {"sequence_parallel": not config.sequence_parallel}
    schedules = ((1, "1f1b"), (2, "interleaved"), (1, "zero_bubble"), (2, "zbv"))
    yield from (
        {"virtual_stages": chunks, "pipeline_schedule": schedule, "stage_layers": None}
        for chunks, schedule in schedules
    )
    for knob in ("dtype", "reduce_dtype", "compile", "optimizer_offload"):
        yield from ({knob: value} for value in space.domains[knob])
    yield from _moved_ranks(config)


def _moved_ranks(config: ParallelConfig) -> Iterable[Mapping[str, object]]:
    """Half of one axis' ranks given to another."""
    axes = ("tp", "pp", "dp", "cp")
    for more in axes:
        for less in axes:
            if more != less and getattr(config, less) % 2 == 0:
                yield {
                    more: getattr(config, more) * 2,
                    less: getattr(config, less) // 2,
                    "stage_layers": None,
                }


def changed_knobs(before: ParallelConfig, after: ParallelConfig) -> dict[str, object]:
    """The knobs whose values differ, with their new values."""
    old, new = before.model_dump(mode="json"), after.model_dump(mode="json")
    return {name: value for name, value in new.items() if value != old[name]}


def with_nodes(cluster: ClusterSpec, num_nodes: int) -> ClusterSpec:
    """The same machines in another number."""
    return cluster.model_copy(update={"num_nodes": num_nodes})


def _moved(
    costs: AnalyticCostModel, training: TrainingSpec, cluster: ClusterSpec
) -> AnalyticCostModel:
    """The same cost model for another recipe or cluster."""
    return AnalyticCostModel(costs.model, training, cluster, costs.prior, is_kernel=costs.is_kernel)


def best_of(space: SearchSpace, costs: AnalyticCostModel) -> PlannedPoint | None:
    """The fastest point of a space that fits; none where none does."""
    configs = list(space)
    if not configs:
        return None
    order, _, _ = rank(costs, configs)
    return plan_point(costs, configs[order[0]]) if len(order) else None


def nodes_that_fit(
    space: SearchSpace, costs: AnalyticCostModel, most_doublings: int = 6
) -> tuple[int, PlannedPoint] | None:
    """The first doubling of the nodes on which some point fits, and the fastest such point."""
    setting = space.setting
    domains = _free_domains(space)
    for doubling in range(1, most_doublings + 1):
        cluster = with_nodes(setting.cluster, setting.cluster.num_nodes << doubling)
        larger = SearchSpace(setting.model, setting.training, cluster, domains)
        best = best_of(larger, _moved(costs, costs.training, cluster))
        if best is not None:
            return cluster.num_nodes, best
    return None


def scaling(
    space: SearchSpace, costs: AnalyticCostModel, nodes: Sequence[int], *, is_weak: bool
) -> list[ScalingPoint]:
    """The best point on each number of nodes: the batch grows with them (weak) or stays."""
    setting, domains = space.setting, _free_domains(space)
    fewest = min(nodes)
    rows: list[ScalingPoint] = []
    base: float | None = None
    for count in sorted(nodes):
        cluster = with_nodes(setting.cluster, count)
        batch = setting.training.global_batch_size
        batch = batch * count // fewest if is_weak else batch
        training = TrainingSpec.model_validate(
            {**setting.training.model_dump(), "global_batch_size": batch}
        )
        model = _moved(costs, training, cluster)
        best = best_of(SearchSpace(setting.model, training, cluster, domains), model)
        rate = best.tokens_per_s / cluster.num_devices if best else None
        base = rate if base is None else base
        efficiency = rate / base if rate is not None and base else None
        rows.append(
            ScalingPoint(num_nodes=count, global_batch_size=batch, best=best, efficiency=efficiency)
        )
    return rows


def _free_domains(space: SearchSpace) -> dict[str, tuple[object, ...]]:
    """The domains that do not follow from the number of devices."""
    bound = {"tp", "pp", "dp", "cp", "ep", "micro_batch_size", "zero_shard_degree"}
    return {knob: domain.values for knob, domain in space.domains.items() if knob not in bound}
