"""One pipeline stage: decoder layers, the embedding on the first, norm and head on the last."""

from dataclasses import dataclass
from itertools import pairwise

import torch
from torch import Tensor

from search_spaces.layers import stage_layer_counts
from search_spaces.model_spec import ModelSpec
from search_spaces.parallel_config import ParallelConfig
from trainer.model import specs
from trainer.model.attention import AttentionCore
from trainer.model.layer import DecoderLayer
from trainer.model.parameters import Initializer, ParameterSpec
from trainer.parallel.expert import TokenDispatcher
from trainer.parallel.tensor_form import LossInputs, TensorForm
from trainer.parallel.unit_hooks import UnitBegin, UnitEnd
from trainer.parallel.zero import ShardedUnit, UnitOptions


@dataclass(frozen=True)
class StageParts:
    """What every stage of a rank is made from."""

    model: ModelSpec
    config: ParallelConfig
    form: TensorForm
    core: AttentionCore
    options: UnitOptions
    initializer: Initializer
    dispatcher: TokenDispatcher | None = None
    expert_options: UnitOptions | None = None

    def unit(self, name: str, unit_specs: list[ParameterSpec]) -> ShardedUnit:
        """A unit of these parameters."""
        return ShardedUnit(name, unit_specs, self.form, self.options, self.initializer)

    def layer_units(self, index: int) -> list[ShardedUnit]:
        """A layer's unit, and one for its experts, which other ranks share than share the rest."""
        prefix = specs.layer_prefix(index)
        units = [self.unit(prefix, specs.shared_layer_specs(self.model, index))]
        if self.dispatcher is not None:
            assert self.expert_options is not None
            experts = specs.expert_specs(self.model, index, self.dispatcher.local_experts)
            name, options = f"{prefix}.experts", self.expert_options
            units.append(ShardedUnit(name, experts, self.form, options, self.initializer))
        return units


class Stage:
    """Layers `first_layer..` of the model, as one rank runs them.

    `shared_embedding` is the token embedding's unit of an earlier stage on the same rank, which the
    head uses too when the two are tied.
    """

    def __init__(
        self, parts: StageParts, index: int, shared_embedding: ShardedUnit | None = None
    ) -> None:
        counts = stage_layer_counts(parts.model.num_layers, parts.config)
        self.index, self.form, self.core = index, parts.form, parts.core
        self.is_first, self.is_last = index == 0, index == len(counts) - 1
        first = sum(counts[:index])
        self.layer_indices = list(range(first, first + counts[index]))
        self.embedding: ShardedUnit | None
        self.positions: ShardedUnit | None
        self.embedding, self.positions = _embedding(parts) if self.is_first else (None, None)
        self.layers: list[tuple[list[ShardedUnit], DecoderLayer]] = []
        for place, layer in enumerate(self.layer_indices):
            self._build_layer(parts, place, layer)
        self.final_norm: ShardedUnit | None = None
        self.head: ShardedUnit | None = None
        if self.is_last:
            self._build_head(parts, self.embedding or shared_embedding)
        self._link_units()
        self.num_layer_runs = self.num_loss_tokens = 0

    def _build_layer(self, parts: StageParts, place: int, index: int) -> None:
        prefix = specs.layer_prefix(index)
        units = parts.layer_units(index)
        weights = {name: held for unit in units for name, held in unit.parameters.items()}
        limit = parts.config.recompute_layers
        recompute = parts.config.recompute if limit is None or place < limit else "none"
        layer = DecoderLayer(
            parts.model, parts.form, parts.core, weights, prefix,
            recompute=recompute, compiles=parts.config.compile, dispatcher=parts.dispatcher,
        )  # fmt: skip
        self.layers.append((units, layer))

    def _build_head(self, parts: StageParts, embedding: ShardedUnit | None) -> None:
        model = parts.model
        self.final_norm = parts.unit("final_norm", specs.final_norm_specs(model))
        if model.tied_embeddings and embedding is not None:
            self.head = embedding
        else:
            self.head = parts.unit(specs.HEAD, specs.head_specs(model))

    @property
    def units(self) -> list[ShardedUnit]:
        """Distinct units that this stage uses, in the order of the forward pass."""
        found = [self.embedding, self.positions, *self._layer_units]
        found += [self.final_norm, self.head]
        return list(dict.fromkeys(unit for unit in found if unit is not None))

    @property
    def _layer_units(self) -> list[ShardedUnit]:
        return [unit for units, _ in self.layers for unit in units]

    def _link_units(self) -> None:
        chain = self._layer_units
        if self.final_norm is not None:
            chain.append(self.final_norm)
        for left, right in pairwise(chain):
            left.forward_next, right.backward_next = right, left

    # ---------------------------------------------------------------- forward and backward
    def forward(self, x: Tensor, loss_inputs: LossInputs | None = None) -> Tensor:
        """Token ids or hidden states in; hidden states out, from the last stage the scaled loss."""
        x = self._run_layers(x)
        if not self.is_last:
            return x
        assert loss_inputs is not None
        return self._loss(x, loss_inputs)

    @torch.no_grad()
    def logits(self, x: Tensor) -> Tensor:
        """This rank's columns of every token's logits; on the last stage, in place of the loss."""
        x_BTD = self._final_norm(self._run_layers(x))
        assert self.head is not None
        self.head.gather()
        (weight,) = self.head.parameters.values()
        logits = self.form.last_logits(x_BTD, weight)
        self.head.release()
        return logits

    def _run_layers(self, x: Tensor) -> Tensor:
        if self.is_first:
            x = self._embed(x)
        for units, layer in self.layers:
            for unit in units:
                x = _begin(x, unit)
            x = layer(x)
            for unit in units:
                x = _end(x, unit)
            self.num_layer_runs += 1
        return x

    def _embed(self, ids_BT: Tensor) -> Tensor:
        assert self.embedding is not None
        self.embedding.gather()
        weight = self.embedding.parameters[specs.TOKEN_EMBEDDING]
        x_BTD = self.form.embedding(ids_BT, weight)
        self.embedding.release()
        if self.positions is not None:
            self.positions.gather()
            positions_T = self.core.positions(ids_BT.shape[1])
            table = self.positions.parameters[specs.POSITION_EMBEDDING]
            x_BTD = self.form.add_positions(x_BTD, positions_T, table)
            self.positions.release()
        return x_BTD

    def _final_norm(self, x_BTD: Tensor) -> Tensor:
        assert self.final_norm is not None
        weights = self.final_norm.parameters
        x_BTD = _begin(x_BTD, self.final_norm)
        x_BTD = self.form.norm(x_BTD, weights["final_norm.weight"], weights.get("final_norm.bias"))
        return _end(x_BTD, self.final_norm)

    def _loss(self, x_BTD: Tensor, loss_inputs: LossInputs) -> Tensor:
        assert self.head is not None
        head = self.head
        x_BTD = self._final_norm(x_BTD)
        head.gather()
        (weight,) = head.parameters.values()
        self.num_loss_tokens += loss_inputs.targets.numel()
        loss = self.form.cross_entropy(x_BTD, weight, loss_inputs)
        head.release()
        return loss

    def finish_backward(self) -> None:
        """Finish the units that no autograd node finishes: embedding, positions, head."""
        for unit in self.units:
            unit.finish_backward()


def _begin(x: Tensor, unit: ShardedUnit) -> Tensor:
    unit.gather()
    if unit.forward_next is not None:
        unit.forward_next.start_gather()
    if torch.is_grad_enabled() and x.requires_grad:
        result: Tensor = UnitBegin.apply(x, unit)
        return result
    return x


def _end(x: Tensor, unit: ShardedUnit) -> Tensor:
    unit.release()
    if torch.is_grad_enabled() and x.requires_grad:
        result: Tensor = UnitEnd.apply(x, unit)
        return result
    return x


def _embedding(parts: StageParts) -> tuple[ShardedUnit, ShardedUnit | None]:
    """Units of the tokens' and, where the family learns them, the positions' vectors."""
    tokens = parts.unit(specs.TOKEN_EMBEDDING, specs.embedding_specs(parts.model))
    places = specs.position_specs(parts.model)
    return tokens, parts.unit(specs.POSITION_EMBEDDING, places) if places else None
