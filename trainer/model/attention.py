"""The attention core: softmax(q k^T) v over this rank's heads and tokens, with rotary positions.

`AttentionCore` is the single-rank form. Context parallelism subclasses it: it cuts the sequence
(`local_tokens`, `positions`) and attends across ranks.

B micro-batch, T tokens, H query heads, K KV heads, E head_dim.
"""

import torch
import torch.nn.functional as F
from torch import Tensor

from search_spaces.model_spec import ModelSpec


class AttentionCore:
    """Causal attention over whole sequences."""

    def __init__(self, model: ModelSpec, device: torch.device) -> None:
        self.model, self.device = model, device
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
        return F.scaled_dot_product_attention(q_BHTE, k_BKTE, v_BKTE, is_causal=True)

    def rotate(self, x_BHTE: Tensor, num_tokens: int) -> Tensor:
        """Rotary positions (arXiv 2104.09864) in Hugging Face's half-split order."""
        cos_TE, sin_TE = self._rotary_table(num_tokens, x_BHTE.dtype)
        half = x_BHTE.shape[-1] // 2
        turned = torch.cat([-x_BHTE[..., half:], x_BHTE[..., :half]], -1)
        return torch.addcmul(x_BHTE * cos_TE, turned, sin_TE)

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


def expand_heads(kv_BKTE: Tensor, q_BHTE: Tensor) -> Tensor:
    """Repeat each KV head for the query heads that share it."""
    return kv_BKTE.repeat_interleave(q_BHTE.shape[1] // kv_BKTE.shape[1], dim=1)
