"""1D tensor parallelism (Megatron-LM, arXiv 1909.08053), with or without sequence parallelism.

Projections into the split region (query-key-value, feed-forward up and gate) are split by output
features, projections out of it by input features, the vocabulary by rows; norms, positions and
output biases are whole on every rank. Sequence parallelism (arXiv 2205.05198) keeps the residual
stream split by tokens, so that each rank norms its own tokens: the two all-reduces of a layer
become all-gathers and reduce-scatters of the same volume.

Under grouped-query attention with fewer KV heads than ranks each KV head is held by several ranks,
and its gradient is summed over them. A vocabulary that does not divide is padded with zero rows.
"""

from collections.abc import Callable

import torch
import torch.nn.functional as F
from torch import Tensor

from search_spaces.model_spec import ModelSpec
from search_spaces.parallel_config import ParallelConfig
from trainer.errors import UnsupportedConfigError
from trainer.model.parameters import ROUTER, ROW_BIAS, ParameterSpec, Part, Range, ShardParameter
from trainer.parallel.collectives import Communicator, Group
from trainer.parallel.linear import (
    ColumnLinear,
    GatherTokens,
    RowLinear,
    ScatterTokens,
    SumGradient,
    SumValue,
)
from trainer.parallel.tensor_form import GradientSum, LossInputs, TensorForm
from trainer.parallel.vocabulary import VocabularyCrossEntropy, VocabularyEmbedding

_VOCAB_MULTIPLE = 64  # local vocabulary rows are padded to it: GEMMs of ragged width are slow
_LARGE_VOCAB = 1024  # rows of a rank from which on that pays


class Tensor1D(TensorForm):
    """The Megatron form; with one rank it is the serial model, without any collective."""

    def __init__(self, model: ModelSpec, config: ParallelConfig, groups: Communicator) -> None:
        super().__init__(model, config, groups)
        self.group = groups.group("tp")
        self.sequence_parallel = config.sequence_parallel and self.group.size > 1
        self.uses_plain_autograd = config.compile
        # the compiler cannot follow logged collectives; its graphs end before and begin after them
        self._apply: Callable[[type[torch.autograd.Function], Tensor], Tensor] = (
            torch.compiler.disable(self._communicate) if config.compile else self._communicate
        )
        self._check()
        self._kv_group = self._make_kv_group(groups)

    def _check(self) -> None:
        size, model = self.group.size, self.model
        for what, number in (("heads", model.num_heads), ("feed-forward width", model.ffn_size)):
            if number % size:
                raise UnsupportedConfigError(f"tp={size} does not divide the {number} {what}")
        heads = model.num_kv_heads
        if heads % size and size % heads:
            raise UnsupportedConfigError(f"tp={size} and {heads} KV heads do not divide evenly")

    # ---------------------------------------------------------------- layout
    def range_of(self, spec: ParameterSpec, dim: int, part: Part) -> Range:
        """Split heads, feed-forward features and vocabulary; the rest is whole, owned by rank 0."""
        size, rank = self.group.size, self.group.rank
        if part.label in ("heads", "ffn"):
            each = part.size // size
            return Range(rank * each, (rank + 1) * each, each)
        if part.label == "kv_heads":
            sharers = max(1, size // self.model.num_kv_heads)
            each = part.size * sharers // size
            start = rank // sharers * each
            return Range(start, start + each, each, is_owner=rank % sharers == 0)
        if part.label == "vocab":
            multiple = _VOCAB_MULTIPLE if part.size // size >= _LARGE_VOCAB else 1
            each = -(-part.size // (size * multiple)) * multiple
            start = min(rank * each, part.size)
            return Range(start, min(start + each, part.size), each)
        whole = self._is_whole(spec)
        return Range(0, part.size, part.size, is_owner=rank == 0 or not whole)

    def _is_whole(self, spec: ParameterSpec) -> bool:
        """Whether no dimension of a parameter is split."""
        split = ("heads", "ffn", "kv_heads", "vocab")
        return not any(part.label in split for parts in spec.dims for part in parts)

    def gradient_groups(self, spec: ParameterSpec) -> list[GradientSum]:
        """Shared KV heads; under sequence parallelism also what is applied to a shard of tokens."""
        if self.group.size == 1:
            return []
        if self._is_whole(spec):
            rows = spec.shape[0]
            # RowLinear gathers the gradient before it sums its bias's, so that one is whole
            is_whole = spec.name.endswith(ROW_BIAS) and not self.uses_plain_autograd
            on_shard = self.sequence_parallel and not is_whole
            # a router's gradient comes through the ranks' partial outputs of the experts
            is_part = on_shard or spec.name.endswith(ROUTER)
            return [GradientSum(self.group, 0, rows)] if is_part else []
        if self._kv_group is None:
            return []
        sums, start = [], 0
        for part in spec.dims[0]:
            rows = self.range_of(spec, 0, part).padded
            if part.label == "kv_heads":
                sums.append(GradientSum(self._kv_group, start, start + rows))
            start += rows
        return sums

    def _make_kv_group(self, groups: Communicator) -> Group | None:
        sharers = self.group.size // self.model.num_kv_heads
        if sharers <= 1:
            return None
        first = self.group.rank // sharers * sharers
        return groups.of_ranks("tp_kv", self.group.ranks[first : first + sharers])

    def hidden_shape(self, micro_batch_size: int, num_tokens: int) -> tuple[int, int, int]:
        """All tokens, or this rank's shard of them under sequence parallelism."""
        shard = self.group.size if self.sequence_parallel else 1
        if num_tokens % shard:
            raise UnsupportedConfigError(
                f"sequence parallelism over tp={shard} does not divide {num_tokens} tokens"
            )
        return micro_batch_size, num_tokens // shard, self.model.hidden_size

    @property
    def num_local_heads(self) -> int:
        """Query heads of this rank."""
        return self.model.num_heads // self.group.size

    @property
    def num_local_kv_heads(self) -> int:
        """KV heads of this rank, at least one."""
        return max(1, self.model.num_kv_heads // self.group.size)

    @property
    def counts_tokens(self) -> bool:
        """Every rank sees all tokens, so the first counts them."""
        return self.group.rank == 0

    # ---------------------------------------------------------------- operations
    def embedding(self, ids_BT: Tensor, weight: ShardParameter) -> Tensor:
        """Look up this rank's rows, and sum over ranks into the residual layout."""
        first = self.range_of(weight.spec, 0, weight.spec.dims[0][0]).start
        x_BTD = VocabularyEmbedding.apply(ids_BT, weight, first, self.group.size == 1)
        return self.leave(x_BTD)

    def add_positions(self, x_BTD: Tensor, positions_T: Tensor, weight: ShardParameter) -> Tensor:
        """Add the vectors of this rank's tokens."""
        if self.sequence_parallel:
            positions_T = positions_T.chunk(self.group.size)[self.group.rank]
        return x_BTD + F.embedding(positions_T, weight)

    def norm(self, x_BTD: Tensor, weight: ShardParameter, bias: ShardParameter | None) -> Tensor:
        """Norm over the whole width, which every rank has."""
        if bias is None:
            return F.rms_norm(x_BTD, (x_BTD.shape[-1],), weight, self.model.norm_eps)
        return F.layer_norm(x_BTD, (x_BTD.shape[-1],), weight, bias, self.model.norm_eps)

    def column_linear(
        self, x_BTD: Tensor, weight: ShardParameter, bias: ShardParameter | None
    ) -> Tensor:
        """Every rank projects all tokens to its own features."""
        if self.uses_plain_autograd:
            return F.linear(self.enter(x_BTD), weight, bias)
        y_BTF: Tensor = ColumnLinear.apply(x_BTD, weight, bias, self.group, self.sequence_parallel)
        return y_BTF

    def row_linear(
        self, x_BTF: Tensor, weight: ShardParameter, bias: ShardParameter | None
    ) -> Tensor:
        """Every rank projects its own features; the results are summed."""
        if self.uses_plain_autograd:
            y_BTD = self.leave(F.linear(x_BTF, weight))
            return y_BTD if bias is None else y_BTD + bias
        out_BTD: Tensor = RowLinear.apply(x_BTF, weight, bias, self.group, self.sequence_parallel)
        return out_BTD

    def enter(self, x_BTD: Tensor) -> Tensor:
        """Gather the tokens (sequence parallel), or pass on; the gradient is summed over ranks."""
        if self.group.size == 1:
            return x_BTD
        return self._apply(GatherTokens if self.sequence_parallel else SumGradient, x_BTD)

    def leave(self, x_BTD: Tensor) -> Tensor:
        """Sum over ranks, to whole tokens or (sequence parallel) to this rank's shard."""
        if self.group.size == 1:
            return x_BTD
        return self._apply(ScatterTokens if self.sequence_parallel else SumValue, x_BTD)

    def _communicate(self, function: type[torch.autograd.Function], x: Tensor) -> Tensor:
        result: Tensor = function.apply(x, self.group)
        return result

    def cross_entropy(self, x_BTD: Tensor, weight: ShardParameter, inputs: LossInputs) -> Tensor:
        """Cross-entropy over the split vocabulary; no rank ever sees another's logits."""
        held = self.range_of(weight.spec, 0, weight.spec.dims[0][0])
        x_ND = self.enter(x_BTD).flatten(0, 1)
        loss: Tensor = VocabularyCrossEntropy.apply(
            x_ND, weight, inputs.targets.flatten(), self.group, held.start, held.size,
            inputs.scale, inputs.needs_gradient,
        )  # fmt: skip
        return loss

    @torch.no_grad()
    def last_logits(self, x_BTD: Tensor, weight: ShardParameter) -> Tensor:
        """This rank's columns of every token's logits, for forward-only checks."""
        held = self.range_of(weight.spec, 0, weight.spec.dims[0][0])
        return F.linear(self.enter(x_BTD), weight)[..., : held.size]
