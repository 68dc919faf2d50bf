"""The interface between the model and tensor parallelism: one class per form, one file per class.

A decoder layer is written once, in `trainer.model`, on the methods of `TensorForm`. A form decides
which piece of every parameter a rank holds (`range_of`), what the activations between layers look
like (`hidden_shape`), and how the few operations that need other ranks are done. Everything between
them (attention core, activation function, residual sums) works on local tensors alone.

To add a form: subclass `TensorForm` in a file here, implement the abstract methods, add a line to
`trainer.parallel.tensor_forms.FORMS`. The oracle then checks it against the single process.

Letters of shapes: B micro-batch, T tokens of a sequence, D hidden size, F features of a split
projection, H heads, V vocabulary. "Residual layout" is what flows between layers: `x_BTD` of
`hidden_shape`. "Split layout" is what lies between a column linear and a row linear: this rank's
features of every token it sees.

Gradients. Weights get theirs through `parameter.sink` inside the linear functions (so that they can
be deferred and accumulate without a copy); norms, biases of norms and positions through autograd.
Where the pieces of a parameter on several ranks each get a part of one gradient, `gradient_groups`
says over which ranks it must be summed; the engine does that once a step, on the ZeRO shards.
"""

from abc import ABC, abstractmethod
from dataclasses import dataclass

import torch
from torch import Tensor

from search_spaces.model_spec import ModelSpec
from search_spaces.parallel_config import ParallelConfig
from trainer.model.parameters import ParameterSpec, Part, Range, ShardParameter
from trainer.parallel.collectives import Communicator, Group


@dataclass(frozen=True)
class GradientSum:
    """Rows `start..stop` of a parameter's piece whose gradient is summed over `group`."""

    group: Group
    start: int
    stop: int


@dataclass(frozen=True)
class LossInputs:
    """What the loss of one micro-batch is computed from besides the hidden states.

    `targets` are token ids (B, T). `scale` multiplies every token's loss (1 / tokens of the global
    batch, times the loss scale), so gradients of all micro-batches and replicas simply add up.
    """

    targets: Tensor
    scale: float
    needs_gradient: bool


class TensorForm(ABC):
    """How one tensor-parallel layout holds parameters and computes with them."""

    sequence_parallel: bool = False
    uses_plain_autograd: bool = False
    """With `torch.compile` linear layers are plain autograd operations that a graph can hold."""

    def __init__(self, model: ModelSpec, config: ParallelConfig, groups: Communicator) -> None:
        self.model, self.config = model, config

    # ---------------------------------------------------------------- layout
    @abstractmethod
    def range_of(self, spec: ParameterSpec, dim: int, part: Part) -> Range:
        """Range of one part of a parameter's dimension that this rank holds."""

    @abstractmethod
    def gradient_groups(self, spec: ParameterSpec) -> list[GradientSum]:
        """Where the gradient of this rank's piece is a part of a sum; empty where it is whole."""

    @abstractmethod
    def hidden_shape(self, micro_batch_size: int, num_tokens: int) -> tuple[int, int, int]:
        """Shape of the residual layout for a micro-batch with `num_tokens` tokens a sequence."""

    @property
    @abstractmethod
    def num_local_heads(self) -> int:
        """Query heads of this rank."""

    @property
    @abstractmethod
    def num_local_kv_heads(self) -> int:
        """KV heads of this rank."""

    @property
    def counts_tokens(self) -> bool:
        """Whether this rank is the one of its peers that counts the tokens it sees."""
        return True

    @property
    def counts_passes(self) -> bool:
        """Whether this rank is the one of its peers that counts passes through layers."""
        return self.counts_tokens

    def local_batch(self, ids_BT: Tensor) -> Tensor:
        """Part of a micro-batch's ids or targets that this rank works on; all, unless 2D."""
        return ids_BT

    # ---------------------------------------------------------------- operations
    @abstractmethod
    def embedding(self, ids_BT: Tensor, weight: ShardParameter) -> Tensor:
        """Token embedding in residual layout."""

    @abstractmethod
    def add_positions(self, x_BTD: Tensor, positions_T: Tensor, weight: ShardParameter) -> Tensor:
        """Add learned position vectors to `x`; `positions_T` are those of the whole sequence."""

    @abstractmethod
    def norm(self, x_BTD: Tensor, weight: ShardParameter, bias: ShardParameter | None) -> Tensor:
        """LayerNorm with a bias, RMSNorm without, in residual layout, with the model's epsilon."""

    @abstractmethod
    def column_linear(
        self, x_BTD: Tensor, weight: ShardParameter, bias: ShardParameter | None
    ) -> Tensor:
        """Residual layout in, split layout out: enter the split region and project."""

    @abstractmethod
    def row_linear(
        self, x_BTF: Tensor, weight: ShardParameter, bias: ShardParameter | None
    ) -> Tensor:
        """Split layout in, residual layout out: project and sum over the split region."""

    @abstractmethod
    def enter(self, x_BTD: Tensor) -> Tensor:
        """Residual layout to every token's full vector on each rank of the split region."""

    @abstractmethod
    def leave(self, x_BTD: Tensor) -> Tensor:
        """Partial sums over the split region to residual layout; the transpose of `enter`."""

    @abstractmethod
    def cross_entropy(self, x_BTD: Tensor, weight: ShardParameter, inputs: LossInputs) -> Tensor:
        """Scaled sum of token losses of the projection of `x` to the vocabulary (a scalar)."""

    def last_logits(self, x_BTD: Tensor, weight: ShardParameter) -> Tensor:
        """This rank's columns of every token's logits; only for checks, so a form may lack it."""
        raise NotImplementedError

    def hidden_dtype(self) -> torch.dtype:
        """Type of the activations between layers."""
        return compute_dtype(self.config)


def compute_dtype(config: ParallelConfig) -> torch.dtype:
    """Torch's name for the compute precision of a configuration."""
    return {"fp32": torch.float32, "bf16": torch.bfloat16, "fp16": torch.float16}[config.dtype]
