"""`Engine`: one rank's part of a model under one parallel configuration; runs optimizer steps."""

from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor

from search_spaces.layers import stage_layer_counts
from search_spaces.model_spec import ModelSpec
from search_spaces.parallel_config import ParallelConfig
from search_spaces.training_spec import TrainingSpec
from trainer.contract import Phase
from trainer.data import global_batch
from trainer.errors import UnsupportedConfigError
from trainer.mesh import ParallelMesh
from trainer.model.attention import AttentionCore
from trainer.model.parameters import Initializer, num_held, num_owned
from trainer.model.stage import Stage, StageParts
from trainer.optimizer import LossScaler, ShardedOptimizer
from trainer.parallel.collectives import Communicator, Group
from trainer.parallel.context import ContextParallelAttention
from trainer.parallel.expert import TokenDispatcher, expert_ranks, expert_zero_groups
from trainer.parallel.pipeline import PipelinePlan, PipelineRunner
from trainer.parallel.tensor_form import LossInputs, compute_dtype
from trainer.parallel.tensor_forms import make_form
from trainer.parallel.unit_hooks import sum_partial_gradients
from trainer.parallel.zero import ShardedUnit, UnitOptions
from trainer.schedules import stage_to_rank, stages_of_rank
from trainer.timing import Span, Timeline


@dataclass(frozen=True)
class StepCounts:
    """What one step really did, summed over all ranks."""

    loss: float
    tokens: int
    layer_runs: int
    forward_runs: int
    backward_runs: int


def _no_phase(phase: Phase, stage: int) -> None:
    """Take no notice of phases."""


class Engine:
    """Builds this rank's stages and optimizer, and runs steps.

    Args:
        model: the model.
        training: the recipe.
        config: the parallel configuration; it must occupy exactly the ranks of `mesh`.
        mesh: the configuration bound to the world size.
        rank: this process's rank.
        device: where tensors live.
        seed: of initial weights and data.
        enter_phase: told when a phase begins, with the stage it is in (-1 for none).
        groups: the process groups, if others than the default backend's.

    Raises:
        UnsupportedConfigError: the kernel cannot run this configuration.
    """

    def __init__(
        self, model: ModelSpec, training: TrainingSpec, config: ParallelConfig, mesh: ParallelMesh,
        rank: int, device: torch.device, seed: int = 0,
        enter_phase: Callable[[Phase, int], None] = _no_phase, groups: Communicator | None = None,
    ) -> None:  # fmt: skip
        _check(model, training, config)
        self.model, self.training, self.config = model, training, config
        self.mesh, self.rank, self.device, self.seed = mesh, rank, device, seed
        self.coordinates = mesh.coordinates(rank)
        self.is_training = training.workload == "training"
        self._enter_phase = enter_phase
        self.groups = groups or Communicator(mesh, rank)
        self.world = self.groups.group("world")
        self.num_micro_batches = training.global_batch_size // (config.micro_batch_size * config.dp)
        self.form = make_form(model, config, self.groups)
        self.core = (
            ContextParallelAttention(model, device, self.groups.group("cp"))
            if config.cp > 1
            else AttentionCore(model, device)
        )
        num_tokens = self.core.num_local_tokens(training.sequence_length)
        self.core.prepare(num_tokens, compute_dtype(config))
        self.stages = self._build_stages()
        self.units = list(dict.fromkeys(u for s in self.stages.values() for u in s.units))
        self.runner = PipelineRunner(self._plan(), self.stages, self.groups, enter_phase)
        self._tied_unit: ShardedUnit | None = None
        self.tied_copy, self._tied_group = self._tie()  # last: see Communicator on order
        self.scaler = LossScaler(is_active=config.dtype == "fp16" and self.is_training)
        self._loss_scale = self.scaler.scale
        self.optimizer = (
            ShardedOptimizer(self.units, training, offloads=config.optimizer_offload)
            if self.is_training
            else None
        )
        self.is_poisoned = False  # a test asked for a loss that is no number

    # ---------------------------------------------------------------- construction
    def _unit_options(self, shard: Group, replicate: Group) -> UnitOptions:
        config = self.config
        return UnitOptions(
            shard=shard, replicate=replicate,
            zero_stage=config.zero_stage, compute_dtype=compute_dtype(config),
            reduce_dtype=torch.float32 if config.reduce_dtype == "fp32" else torch.bfloat16,
            device=self.device, is_training=self.is_training,
            offloads_optimizer=config.optimizer_offload,
        )  # fmt: skip

    def _stage_parts(self) -> StageParts:
        groups, model = self.groups, self.model
        options = self._unit_options(groups.group("shard"), groups.group("replicate"))
        dispatcher, expert_options = None, None
        if model.num_experts:
            ep = groups.of_ranks("ep", expert_ranks(self.mesh, self.rank))
            dispatcher = TokenDispatcher(ep, model.num_experts)
            expert_options = self._unit_options(*expert_zero_groups(groups))
        return StageParts(
            model, self.config, self.form, self.core, options,
            Initializer(self.seed, self.device), dispatcher, expert_options,
        )  # fmt: skip

    def _build_stages(self) -> dict[int, Stage]:
        config, parts = self.config, self._stage_parts()
        stages: dict[int, Stage] = {}
        embedding: ShardedUnit | None = None
        for index in stages_of_rank(
            config.pipeline_schedule, self.coordinates["pp"], config.pp, config.virtual_stages
        ):
            stages[index] = Stage(parts, index, embedding)
            embedding = embedding or stages[index].embedding
        return stages

    def _tie(self) -> tuple[ShardedUnit | None, Group | None]:
        """The head's copy of a tied embedding, and the group over which the two sum gradients."""
        config = self.config
        ends = [
            stage_to_rank(config.pipeline_schedule, stage, config.pp, config.virtual_stages)
            for stage in (0, config.num_stages - 1)
        ]
        is_end = self.coordinates["pp"] in ends
        if not self.model.tied_embeddings or ends[0] == ends[1] or not is_end:
            return None, None
        ranks = tuple(sorted(self.mesh.rank_at({**self.coordinates, "pp": end}) for end in ends))
        first, last = self.stages.get(0), self.stages.get(config.num_stages - 1)
        self._tied_unit = first.embedding if first else last.head if last else None
        return (last.head if last else None), self.groups.of_ranks("embedding", ranks)

    def _plan(self) -> PipelinePlan:
        config = self.config
        tokens = self.core.num_local_tokens(self.training.sequence_length)
        return PipelinePlan(
            schedule=config.pipeline_schedule, num_ranks=config.pp, rank=self.coordinates["pp"],
            virtual_stages=config.virtual_stages, num_micro_batches=self.num_micro_batches,
            is_training=self.is_training,
            hidden_shape=self.form.hidden_shape(config.micro_batch_size, tokens),
            dtype=compute_dtype(config), device=self.device,
        )  # fmt: skip

    # ---------------------------------------------------------------- steps
    def step(self, step: int) -> StepCounts:
        """Run one optimizer step (or one forward pass of the global batch) and count what ran."""
        timeline = Timeline(self.device)
        self._begin_step()
        ids, losses = self._micro_batches(step)
        loss = self.runner.run(ids, losses, timeline)
        if self.is_training:
            self._enter_phase(Phase.OPTIMIZER, -1)
            timeline.start("gradients")
            self.reduce_gradients()
            timeline.end()
            timeline.start("optimizer")
            self.update()
            timeline.end()
        timeline.start("agree")
        counts = self._agree(loss)
        timeline.end()
        self._last_timeline = timeline
        return counts

    def read_timeline(self) -> list[Span]:
        """Spans of the last step, in seconds from its start."""
        self.synchronize()
        return self._last_timeline.spans()

    def synchronize(self) -> None:
        """Wait until the device has done everything."""
        if self.device.type != "cpu":
            torch.cuda.synchronize(self.device)

    def _begin_step(self) -> None:
        self._loss_scale = self.scaler.scale  # an update may change it before the loss is read
        self.groups.log.clear()
        self.runner.num_forward = self.runner.num_backward = 0
        for stage in self.stages.values():
            stage.num_layer_runs = stage.num_loss_tokens = 0
        for unit in self.units:
            users = sum(unit in stage.units for stage in self.stages.values())
            unit.begin_step(self.num_micro_batches, users)

    def _micro_batches(self, step: int) -> tuple[list[Tensor], list[LossInputs]]:
        """This replica's micro-batches, cut to what this rank sees of them."""
        ids, targets = global_batch(self.model, self.training, self.seed, step)
        size, count = self.config.micro_batch_size, self.num_micro_batches
        start = self.coordinates["dp"] * size * count
        scale = self._loss_scale / self.training.tokens_per_step
        ids_list, loss_list = [], []
        for place in range(start, start + size * count, size):
            ids_list.append(self._local(ids[place : place + size]))
            loss_list.append(
                LossInputs(
                    targets=self._local(targets[place : place + size]),
                    scale=scale,
                    needs_gradient=self.is_training,
                )
            )
        return ids_list, loss_list

    def _local(self, ids_BT: Tensor) -> Tensor:
        local = self.form.local_batch(self.core.local_tokens(ids_BT))
        return local.contiguous().to(self.device)

    def reduce_gradients(self) -> None:
        """Complete the gradient of the global batch in every unit's shard."""
        for unit in self.units:
            unit.finish_reduction()
        sum_partial_gradients(self.units)
        if self._tied_group is not None and self._tied_unit is not None:
            assert self._tied_unit.gradient_shard is not None
            self._tied_group.all_reduce(self._tied_unit.gradient_shard).wait()

    def update(self) -> None:
        """Optimizer step (skipped on fp16 overflow), and new weights to where they are needed."""
        assert self.optimizer is not None
        if self.scaler.unscale(self.optimizer.gradients, self.world):
            self.optimizer.step()
            for pending in [unit.publish() for unit in self.units]:
                pending.wait()

    def _agree(self, loss: Tensor | None) -> StepCounts:
        """Sum over ranks what each counted; ranks that repeat another's work count nothing."""
        counts = torch.zeros(5, dtype=torch.float64)
        if self.form.counts_passes and self.core.counts_tokens:
            counts[2] = sum(stage.num_layer_runs for stage in self.stages.values())
            counts[3] = self.runner.num_forward
            counts[4] = self.runner.num_backward
        if loss is not None or self.is_poisoned:
            counts[0], counts[1] = self._counted_loss(loss)
        counts = counts.to(self.device)
        self.world.all_reduce(counts).wait()
        total, tokens, layers, forward, backward = counts.tolist()
        return StepCounts(
            loss=total / self._loss_scale, tokens=round(tokens), layer_runs=round(layers),
            forward_runs=round(forward), backward_runs=round(backward),
        )  # fmt: skip

    def _counted_loss(self, loss: Tensor | None) -> tuple[float, float]:
        if self.is_poisoned:
            return float("nan"), 0.0
        if loss is None or not self.form.counts_tokens:
            return 0.0, 0.0
        return float(loss.item()), float(self._num_tokens())

    def _num_tokens(self) -> int:
        """Tokens whose loss this rank computed in the last step."""
        last = self.stages.get(self.config.num_stages - 1)
        return last.num_loss_tokens if last is not None else 0

    # ---------------------------------------------------------------- inventory
    @property
    def layer_indices(self) -> list[int]:
        """Decoder layers that this rank holds."""
        return sorted(index for stage in self.stages.values() for index in stage.layer_indices)

    def num_distinct_parameters(self) -> int:
        """Parameters of which this rank is the counted holder; over all ranks, the model's."""
        units = [
            unit
            for unit in self.units
            if unit is not self.tied_copy
            and unit.options.shard.rank == unit.options.replicate.rank == 0
        ]
        return sum(num_owned(spec, self.form) for unit in units for spec in unit.specs)

    def num_held_parameters(self) -> int:
        """Parameters whose shards this rank holds or shares, without padding."""
        return sum(num_held(spec, self.form) for unit in self.units for spec in unit.specs)

    def state_bytes(self) -> int:
        """Parameters, gradients and optimizer states, as allocated between steps."""
        own = sum(unit.resident_bytes for unit in self.units)
        return own + (self.optimizer.state_bytes if self.optimizer is not None else 0)

    def unit_of(self, name: str) -> ShardedUnit | None:
        """The unit on this rank that holds a parameter; none if it is elsewhere."""
        for unit in self.units:
            if name in unit.parameters:
                return unit
        return None


def _check(model: ModelSpec, training: TrainingSpec, config: ParallelConfig) -> None:
    share = config.micro_batch_size * config.dp
    if training.global_batch_size % share:
        raise UnsupportedConfigError(
            f"a global batch of {training.global_batch_size} is not a multiple of "
            f"micro_batch_size {config.micro_batch_size} x dp {config.dp}"
        )
    counts = stage_layer_counts(model.num_layers, config)
    if sum(counts) != model.num_layers or len(counts) != config.num_stages:
        raise UnsupportedConfigError(
            f"stages of {counts} layers do not make up the model's {model.num_layers}"
        )
    if model.family == "gpt2" and training.sequence_length > model.max_positions:
        raise UnsupportedConfigError(
            f"{training.sequence_length} tokens exceed the model's {model.max_positions} positions"
        )
    if model.num_experts and config.tp_layout != "1d":
        raise UnsupportedConfigError(
            f"tp_layout={config.tp_layout} does not split mixtures of experts", hint="use 1d"
        )
    if config.ep > 1 and not model.num_experts:
        raise UnsupportedConfigError(f"ep={config.ep} needs a model with experts")
