"""2D (Optimus, arXiv 2104.05343) and 2.5D (Tesseract, arXiv 2105.14500) tensor parallelism.

On a mesh of `depth x q x q` ranks the sequences of a micro-batch are dealt to the `depth * q` rows
and every vector's features are cut over the `q` columns, so no rank holds a whole activation.
Weights (out, in) are cut over columns and rows of each layer of the mesh; the layers of a 2.5D mesh
hold equal weights, see other sequences, and sum gradients once a step. Attention is local: a rank
has its column's heads of its row's sequences.
"""

from typing import NoReturn

import torch
from torch import Tensor

from search_spaces.model_spec import ModelSpec
from search_spaces.parallel_config import ParallelConfig
from trainer.errors import UnsupportedConfigError
from trainer.model.parameters import ParameterSpec, Part, Range, ShardParameter
from trainer.model.specs import POSITION_EMBEDDING, TOKEN_EMBEDDING
from trainer.parallel.collectives import Communicator
from trainer.parallel.linear_2d import Linear2D, Norm2D
from trainer.parallel.mesh_2d import TensorMesh
from trainer.parallel.summa import Grid
from trainer.parallel.tensor_form import GradientSum, LossInputs, TensorForm
from trainer.parallel.vocabulary_2d import (
    AddPositions2D,
    CrossEntropy2D,
    Embedding2D,
    HeadPlace,
)


class Tensor2D(TensorForm):
    """The SUMMA form, with or without depth."""

    def __init__(self, model: ModelSpec, config: ParallelConfig, groups: Communicator) -> None:
        super().__init__(model, config, groups)
        tensor_ranks = groups.group("tp")
        try:
            self.mesh = TensorMesh(tensor_ranks.size, config.tp_depth)
        except ValueError as error:
            raise UnsupportedConfigError(
                f"tp={config.tp} with tp_depth={config.tp_depth}: {error}",
                hint="tp must be tp_depth times a square",
            ) from error
        self.place = self.mesh.place(tensor_ranks.rank)
        self._check()

        def along(axis: str, places: list[int]) -> tuple[str, tuple[int, ...]]:
            return axis, tuple(tensor_ranks.ranks[place] for place in places)

        own = tensor_ranks.rank
        self.grid = Grid(
            groups.of_ranks(*along("tp_row", self.mesh.row_of(own))),
            groups.of_ranks(*along("tp_column", self.mesh.column_of(own))),
        )
        self._line = groups.of_ranks(*along("tp_depth", self.mesh.line_of(own)))
        self._group, self._mirror = tensor_ranks, self.mesh.mirror_of(own)
        self._is_first_row = self.place.row == 0

    def _check(self) -> None:
        side, model = self.mesh.side, self.model
        widths = {
            "heads": model.num_heads, "KV heads": model.num_kv_heads,
            "hidden size": model.hidden_size, "feed-forward width": model.ffn_size,
        }  # fmt: skip
        for name, width in widths.items():
            if width % side:
                raise UnsupportedConfigError(
                    f"a mesh of side {side} does not divide {name} {width}"
                )
        if self.config.micro_batch_size % self.mesh.num_rows:
            raise UnsupportedConfigError(
                f"a micro-batch of {self.config.micro_batch_size} sequences cannot be dealt to "
                f"{self.mesh.num_rows} rows",
                hint=f"use a multiple of {self.mesh.num_rows}",
            )

    # ---------------------------------------------------------------- layout
    def range_of(self, spec: ParameterSpec, dim: int, part: Part) -> Range:
        """Vectors and positions by column in the first row; matrices by column and row."""
        is_vector = len(spec.dims) == 1 or spec.name == POSITION_EMBEDDING
        if is_vector and dim == 0 and not self._is_first_row:
            return Range(0, 0, 0, is_owner=False)
        if part.label == "position":
            return Range(0, part.size, part.size, is_owner=self.place.layer == 0)
        # the token table lies (vocabulary, features) over (rows, columns), weights the other way
        by_row = not is_vector and (dim == 0) == (spec.name == TOKEN_EMBEDDING)
        return self._cut(part.size, self.place.row if by_row else self.place.column)

    def _cut(self, size: int, place: int) -> Range:
        """Part number `place` of `q` equal ones; the last are padded where it is uneven."""
        each = -(-size // self.mesh.side)
        start = min(place * each, size)
        return Range(start, min(start + each, size), each, is_owner=self.place.layer == 0)

    def gradient_groups(self, spec: ParameterSpec) -> list[GradientSum]:
        """Layers of the depth see other sequences; within a layer gradients are whole."""
        rows = sum(self.range_of(spec, 0, part).padded for part in spec.dims[0])
        return [GradientSum(self._line, 0, rows)] if self.mesh.depth > 1 and rows else []

    def hidden_shape(self, micro_batch_size: int, num_tokens: int) -> tuple[int, int, int]:
        """This row's sequences and this column's features."""
        batch = micro_batch_size // self.mesh.num_rows
        return batch, num_tokens, self.model.hidden_size // self.mesh.side

    @property
    def num_local_heads(self) -> int:
        """Query heads of this column."""
        return self.model.num_heads // self.mesh.side

    @property
    def num_local_kv_heads(self) -> int:
        """KV heads of this column."""
        return self.model.num_kv_heads // self.mesh.side

    @property
    def counts_tokens(self) -> bool:
        """Each row has its own tokens, so its first rank counts them."""
        return self.place.column == 0

    @property
    def counts_passes(self) -> bool:
        """All rows pass through the same layers, so the first rank of all counts that."""
        return self.place.column == self.place.row == self.place.layer == 0

    def local_batch(self, ids_BT: Tensor) -> Tensor:
        """Sequences of this row."""
        part = self.place.layer * self.mesh.side + self.place.row
        return ids_BT.chunk(self.mesh.num_rows)[part]

    # ---------------------------------------------------------------- operations
    def embedding(self, ids_BT: Tensor, weight: ShardParameter) -> Tensor:
        """Look up this row's tokens among the column's rows of the table."""
        first = self.range_of(weight.spec, 0, weight.spec.dims[0][0]).start
        x_BTD: Tensor = Embedding2D.apply(ids_BT, weight, first, self.grid.column)
        return x_BTD

    def add_positions(self, x_BTD: Tensor, positions_T: Tensor, weight: ShardParameter) -> Tensor:
        """Add the vectors, sent down from the first row."""
        y_BTD: Tensor = AddPositions2D.apply(x_BTD, positions_T, weight, self.grid.vectors)
        return y_BTD

    def norm(self, x_BTD: Tensor, weight: ShardParameter, bias: ShardParameter | None) -> Tensor:
        """Norm with statistics summed over the row."""
        y_BTD: Tensor = Norm2D.apply(x_BTD, weight, bias, self.grid, self.model.norm_eps)
        return y_BTD

    def column_linear(
        self, x_BTD: Tensor, weight: ShardParameter, bias: ShardParameter | None
    ) -> Tensor:
        """A product on the mesh; split and residual layout are cut alike."""
        y_BTF: Tensor = Linear2D.apply(x_BTD, weight, bias, self.grid)
        return y_BTF

    def row_linear(
        self, x_BTF: Tensor, weight: ShardParameter, bias: ShardParameter | None
    ) -> Tensor:
        """The same product."""
        y_BTD: Tensor = Linear2D.apply(x_BTF, weight, bias, self.grid)
        return y_BTD

    def enter(self, x_BTD: Tensor) -> NoReturn:
        """There is no region of whole vectors here; experts, who need one, are not split so."""
        raise UnsupportedConfigError(
            f"tp_layout={self.config.tp_layout} does not split mixtures of experts", hint="use 1d"
        )

    def leave(self, x_BTD: Tensor) -> NoReturn:
        """As `enter`."""
        self.enter(x_BTD)

    def _head_place(self, weight: ShardParameter) -> HeadPlace:
        is_tied = weight.spec.name == TOKEN_EMBEDDING
        rows = self._cut(self.model.vocab_size, self.place.column)
        return HeadPlace(self.grid, rows, self._group, self._mirror if is_tied else None)

    def cross_entropy(self, x_BTD: Tensor, weight: ShardParameter, inputs: LossInputs) -> Tensor:
        """Loss of this row's tokens over the vocabulary, which is cut over columns."""
        place = self._head_place(weight)
        loss: Tensor = CrossEntropy2D.apply(x_BTD.flatten(0, 1), weight, place, inputs)
        return loss

    @torch.no_grad()
    def last_logits(self, x_BTD: Tensor, weight: ShardParameter) -> Tensor:
        """This row's tokens by this column's vocabulary, for forward-only checks."""
        place = self._head_place(weight)
        x = place.token_panels(x_BTD.flatten(0, 1))
        logits = place.logits(x, place.weight_panels(weight))[:, : place.rows.size]
        return logits.view(*x_BTD.shape[:2], -1)
