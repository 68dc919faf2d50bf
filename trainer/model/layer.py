"""One decoder layer, written once for every tensor-parallel form and every dense family.

B micro-batch, T tokens, D hidden size, F split features, H query heads, K KV heads, E head_dim.
"""

from collections.abc import Callable, Mapping

import torch
import torch.nn.functional as F
from torch import Tensor

from search_spaces.model_spec import ModelSpec
from trainer.model.attention import AttentionCore
from trainer.model.moe import MixtureOfExperts
from trainer.model.parameters import ROW_BIAS, ShardParameter
from trainer.model.recompute import forgetting, recomputed
from trainer.parallel.expert import TokenDispatcher
from trainer.parallel.tensor_form import TensorForm

Weights = Mapping[str, ShardParameter]


class Attention:
    """Self-attention: fused projection, core over this rank's heads, output projection."""

    def __init__(
        self, model: ModelSpec, form: TensorForm, core: AttentionCore, weights: Weights,
        prefix: str, *, recomputes_core: bool,
    ) -> None:  # fmt: skip
        self.model, self.form, self.core = model, form, core
        self.qkv_weight = weights[f"{prefix}.qkv.weight"]
        self.qkv_bias = weights.get(f"{prefix}.qkv.bias")
        self.out_weight = weights[f"{prefix}.out.weight"]
        self.out_bias = weights.get(f"{prefix}.out{ROW_BIAS}")
        self.recomputes_core = recomputes_core
        is_opaque = core.communicates and form.config.compile
        self._attend = torch.compiler.disable(core.attend) if is_opaque else core.attend

    def __call__(self, x_BTD: Tensor) -> Tensor:
        """Residual layout in and out."""
        qkv_BTF = self.form.column_linear(x_BTD, self.qkv_weight, self.qkv_bias)
        run = recomputed if self.recomputes_core else _call
        return self.form.row_linear(run(self._core, qkv_BTF), self.out_weight, self.out_bias)

    def _core(self, qkv_BTF: Tensor) -> Tensor:
        batch, tokens, _ = qkv_BTF.shape
        heads, kv_heads = self.form.num_local_heads, self.form.num_local_kv_heads
        # strided views: a copy to head-major order gains the attention kernel less than it costs
        heads_BHTE = qkv_BTF.unflatten(-1, (-1, self.model.head_dim)).transpose(1, 2)
        if self.model.family == "gpt2":
            q, k, v = heads_BHTE.split([heads, kv_heads, kv_heads], 1)
        else:
            rotated, v = heads_BHTE.split([heads + kv_heads, kv_heads], 1)
            q, k = self.core.rotate(rotated, tokens).split([heads, kv_heads], 1)
        return self._attend(q, k, v).transpose(1, 2).reshape(batch, tokens, -1)


class FeedForward:
    """Dense feed-forward block: GELU (tanh form) for GPT-2, gated SiLU for the Llama family."""

    def __init__(
        self, model: ModelSpec, form: TensorForm, weights: Weights, prefix: str, *,
        recomputes_activation: bool,
    ) -> None:  # fmt: skip
        self.form, self.is_gated = form, model.family != "gpt2"
        self.up_weight = weights[f"{prefix}.up.weight"]
        self.up_bias = weights.get(f"{prefix}.up.bias")
        self.down_weight = weights[f"{prefix}.down.weight"]
        self.down_bias = weights.get(f"{prefix}.down{ROW_BIAS}")
        self.recomputes_activation = recomputes_activation

    def __call__(self, x_BTD: Tensor) -> Tensor:
        """Residual layout in and out."""
        up_BTF = self.form.column_linear(x_BTD, self.up_weight, self.up_bias)
        if not self.recomputes_activation:
            return self._down(self._activation(up_BTF))
        hidden_BTF = recomputed(self._activation, up_BTF)
        kept = up_BTF.detach()
        with forgetting(hidden_BTF, lambda: self._activation(kept)):
            return self._down(hidden_BTF)

    def _down(self, hidden_BTF: Tensor) -> Tensor:
        return self.form.row_linear(hidden_BTF, self.down_weight, self.down_bias)

    def _activation(self, up_BTF: Tensor) -> Tensor:
        if not self.is_gated:
            return F.gelu(up_BTF, approximate="tanh")
        gate, up = up_BTF.chunk(2, -1)
        return F.silu(gate) * up


def _call(region: Callable[..., Tensor], *inputs: Tensor) -> Tensor:
    return region(*inputs)


class DecoderLayer:
    """`x + attention(norm(x))`, then `x + feed_forward(norm(x))`."""

    def __init__(
        self, model: ModelSpec, form: TensorForm, core: AttentionCore, weights: Weights,
        prefix: str, *, recompute: str, compiles: bool, dispatcher: TokenDispatcher | None = None,
    ) -> None:  # fmt: skip
        self.form = form
        selective = recompute == "selective"
        self.attention = Attention(
            model, form, core, weights, f"{prefix}.attention", recomputes_core=selective
        )
        self.feed_forward: FeedForward | MixtureOfExperts
        name = f"{prefix}.feed_forward"
        if dispatcher is None:
            self.feed_forward = FeedForward(
                model, form, weights, name, recomputes_activation=selective
            )
        else:
            self.feed_forward = MixtureOfExperts(
                model, form, dispatcher, weights, name, recomputes_activation=selective
            )
        self.norm1 = (weights[f"{prefix}.norm1.weight"], weights.get(f"{prefix}.norm1.bias"))
        self.norm2 = (weights[f"{prefix}.norm2.weight"], weights.get(f"{prefix}.norm2.bias"))
        self.is_recomputed = recompute == "full"
        self._body = torch.compile(self._forward) if compiles else self._forward

    def __call__(self, x_BTD: Tensor) -> Tensor:
        """Residual layout in and out."""
        if self.is_recomputed:
            return recomputed(self._body, x_BTD)
        return self._body(x_BTD)

    def _forward(self, x_BTD: Tensor) -> Tensor:
        x_BTD = x_BTD + self.attention(self.form.norm(x_BTD, *self.norm1))
        return x_BTD + self.feed_forward(self.form.norm(x_BTD, *self.norm2))
