"""The attention core: softmax(q k^T) v over this rank's heads and tokens, with rotary positions.

`AttentionCore` is the single-rank form. Context parallelism subclasses it: it cuts the sequence
(`local_tokens`, `positions`) and attends across ranks.

B micro-batch, T tokens, H query heads, K KV heads, E head_dim.
"""

from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from search_spaces.model_spec import ModelSpec
from trainer.model.block_attention import BlockAttention, suits


class AttentionCore:
    """Causal attention over whole sequences."""

    communicates = False
    """Whether `attend` speaks to other ranks, which no compiler can follow."""

    def __init__(self, model: ModelSpec, device: torch.device) -> None:
        self.model, self.device = model, device
        self.attends_in_blocks = device.type == "cpu"
        """Where block attention suits the queries."""
        self._tables: dict[tuple[int, torch.dtype], tuple[Tensor, Tensor]] = {}

    def local_tokens(self, ids_BT: Tensor) -> Tensor:
        """Tokens of the sequence that this rank works on: all of them."""
        return ids_BT

    def positions(self, num_local_tokens: int) -> Tensor:
        """Positions in their sequence of the tokens that this rank works on."""
        return torch.arange(num_local_tokens, device=self.device)

    def num_local_tokens(self, num_tokens: int) -> int:
        """How many tokens of a whole sequence this rank works on."""
        return num_tokens

    @property
    def counts_tokens(self) -> bool:
        """Whether this rank's tokens are not counted by another rank."""
        return True

    def attend(self, q_BHTE: Tensor, k_BKTE: Tensor, v_BKTE: Tensor) -> Tensor:
        """Attention of this rank's heads; KV heads are shared by neighbouring query heads."""
        if q_BHTE.shape[1] != k_BKTE.shape[1]:
            k_BKTE, v_BKTE = expand_heads(k_BKTE, q_BHTE), expand_heads(v_BKTE, q_BHTE)
        if self.attends_in_blocks and suits(q_BHTE):
            out_BHTE: Tensor = BlockAttention.apply(q_BHTE, k_BKTE, v_BKTE)
            return out_BHTE
        return F.scaled_dot_product_attention(q_BHTE, k_BKTE, v_BKTE, is_causal=True)

    def rotate(self, x_BHTE: Tensor, num_tokens: int) -> Tensor:
        """Rotary positions (arXiv 2104.09864) in Hugging Face's half-split order."""
        cos_TE, sin_TE = self._rotary_table(num_tokens, x_BHTE.dtype)
        rotated: Tensor = Rotation.apply(x_BHTE, cos_TE, sin_TE)
        return rotated

    def prepare(self, num_local_tokens: int, dtype: torch.dtype) -> None:
        """Make what depends on positions alone, before any compiler looks at this object."""
        if self.model.family != "gpt2":
            self._rotary_table(num_local_tokens, dtype)

    def _rotary_table(self, num_tokens: int, dtype: torch.dtype) -> tuple[Tensor, Tensor]:
        key = (num_tokens, dtype)
        if key not in self._tables:
            dim = self.model.head_dim
            exponents = torch.arange(0, dim, 2, device=self.device, dtype=torch.float32) / dim
            rates = 1.0 / self.model.rope_theta**exponents
            angles = torch.outer(self.positions(num_tokens).float(), rates)
            angles = torch.cat([angles, angles], -1)
            self._tables[key] = (angles.cos().to(dtype), angles.sin().to(dtype))
        return self._tables[key]


class Rotation(torch.autograd.Function):
    """Turn pairs (j, j + E/2) by the angles of a table; its gradient turns back.

    Nothing but the table is kept for the backward pass.
    """

    @staticmethod
    def forward(ctx: Any, x_BHTE: Tensor, cos_TE: Tensor, sin_TE: Tensor) -> Tensor:  # noqa: D102
        ctx.save_for_backward(cos_TE, sin_TE)
        return turn(x_BHTE, cos_TE, sin_TE, 1.0)

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor, None, None]:  # noqa: D102
        cos_TE, sin_TE = ctx.saved_tensors
        return turn(grad, cos_TE, sin_TE, -1.0), None, None


def turn(x_BHTE: Tensor, cos_TE: Tensor, sin_TE: Tensor, direction: float) -> Tensor:
    """`x cos + direction * (-x2, x1) sin` in three passes."""
    half = x_BHTE.shape[-1] // 2
    out = x_BHTE * cos_TE
    out[..., :half].addcmul_(x_BHTE[..., half:], sin_TE[..., :half], value=-direction)
    out[..., half:].addcmul_(x_BHTE[..., :half], sin_TE[..., half:], value=direction)
    return out


def expand_heads(kv_BKTE: Tensor, q_BHTE: Tensor) -> Tensor:
    """Repeat each KV head for the query heads that share it."""
    return kv_BKTE.repeat_interleave(q_BHTE.shape[1] // kv_BKTE.shape[1], dim=1)
