"""The single-process reference: the same mathematics in a few plain autograd operations.

It shares nothing with the kernel but the names, shapes and initial values of the parameters: no
custom autograd function, no flat buffers, no micro-batches. The oracle compares every parallel
configuration with it, and a test compares it with Hugging Face's models.
"""

import torch
import torch.nn.functional as F
from torch import Tensor

from search_spaces.model_spec import ModelSpec
from trainer.model import specs
from trainer.model.parameters import ROW_BIAS, Initializer, ParameterSpec


def all_specs(model: ModelSpec) -> list[ParameterSpec]:
    """Every parameter of the model, once."""
    found = [*specs.embedding_specs(model), *specs.position_specs(model)]
    for index in range(model.num_layers):
        found += specs.layer_specs(model, index)
    found += [*specs.final_norm_specs(model), *specs.head_specs(model)]
    return list({spec.name: spec for spec in found}.values())


class ReferenceModel:
    """Whole weights in fp32 (or `dtype`), plain operations, ordinary gradients."""

    def __init__(self, model: ModelSpec, seed: int = 0, dtype: torch.dtype = torch.float32) -> None:
        self.model = model
        initializer = Initializer(seed, torch.device("cpu"))
        self.weights = {
            spec.name: initializer.full(spec).to(dtype).requires_grad_()
            for spec in all_specs(model)
        }

    def logits(self, ids_BT: Tensor) -> Tensor:
        """Logits (B, T, V) of every token."""
        weights, model = self.weights, self.model
        x = weights[specs.TOKEN_EMBEDDING][ids_BT]
        if model.family == "gpt2":
            x = x + weights[specs.POSITION_EMBEDDING][: ids_BT.shape[1]]
        for index in range(model.num_layers):
            prefix = specs.layer_prefix(index)
            x = x + self._attention(self._norm(x, f"{prefix}.norm1"), f"{prefix}.attention")
            x = x + self._feed_forward(self._norm(x, f"{prefix}.norm2"), f"{prefix}.feed_forward")
        head = specs.TOKEN_EMBEDDING if model.tied_embeddings else specs.HEAD
        return self._norm(x, "final_norm") @ weights[head].T

    def loss(self, ids_BT: Tensor, targets_BT: Tensor) -> Tensor:
        """Mean cross-entropy over all tokens."""
        logits = self.logits(ids_BT)
        return F.cross_entropy(logits.flatten(0, 1).float(), targets_BT.flatten())

    def _norm(self, x: Tensor, name: str) -> Tensor:
        weight, eps = self.weights[f"{name}.weight"], self.model.norm_eps
        if self.model.family == "gpt2":
            mean, variance = x.mean(-1, keepdim=True), x.var(-1, keepdim=True, correction=0)
            return (x - mean) / torch.sqrt(variance + eps) * weight + self.weights[f"{name}.bias"]
        return x * torch.rsqrt(x.square().mean(-1, keepdim=True) + eps) * weight

    def _linear(self, x: Tensor, name: str, bias: str) -> Tensor:
        y = x @ self.weights[f"{name}.weight"].T
        return y + self.weights[name + bias] if name + bias in self.weights else y

    def _attention(self, x: Tensor, name: str) -> Tensor:
        model, dim = self.model, self.model.head_dim
        qkv = self._linear(x, f"{name}.qkv", ".bias")
        sizes = [model.num_heads * dim, model.num_kv_heads * dim, model.num_kv_heads * dim]
        q, k, v = (part.unflatten(-1, (-1, dim)).transpose(1, 2) for part in qkv.split(sizes, -1))
        if model.family != "gpt2":
            q, k = rotate(q, model.rope_theta), rotate(k, model.rope_theta)
        repeats = model.num_heads // model.num_kv_heads
        k, v = k.repeat_interleave(repeats, 1), v.repeat_interleave(repeats, 1)
        scores = q @ k.transpose(-1, -2) / dim**0.5
        mask = torch.ones(scores.shape[-2:], dtype=torch.bool).triu(1)
        mixed = scores.masked_fill(mask, float("-inf")).softmax(-1) @ v
        return self._linear(mixed.transpose(1, 2).flatten(-2), f"{name}.out", ROW_BIAS)

    def _feed_forward(self, x: Tensor, name: str) -> Tensor:
        if self.model.num_experts:
            return self._experts(x, name)
        return self._block(x, name)

    def _experts(self, x: Tensor, name: str) -> Tensor:
        """Every expert on every token, and a mask: wasteful, but with nothing to get wrong."""
        chances = self._linear(x, f"{name}.router", ".bias").float().softmax(-1)
        best = chances.topk(self.model.experts_per_token, -1)
        kept = torch.zeros_like(chances).scatter(-1, best.indices, best.values)
        shares = (kept / kept.sum(-1, keepdim=True)).to(x.dtype)
        return sum(
            (
                shares[..., expert, None] * self._block(x, specs.expert_prefix(name, expert))
                for expert in range(self.model.num_experts)
            ),
            torch.zeros_like(x),
        )

    def _block(self, x: Tensor, name: str) -> Tensor:
        up = self._linear(x, f"{name}.up", ".bias")
        if self.model.family == "gpt2":
            return self._linear(F.gelu(up, approximate="tanh"), f"{name}.down", ROW_BIAS)
        gate, up = up.chunk(2, -1)
        return self._linear(F.silu(gate) * up, f"{name}.down", ROW_BIAS)


def rotate(x_BHTE: Tensor, theta: float) -> Tensor:
    """Rotary positions in Hugging Face's half-split order."""
    tokens, dim = x_BHTE.shape[-2:]
    rates = theta ** (-torch.arange(0, dim, 2, dtype=torch.float32) / dim)
    angles = torch.outer(torch.arange(tokens, dtype=torch.float32), rates)
    cos, sin = angles.cos().to(x_BHTE.dtype), angles.sin().to(x_BHTE.dtype)
    left, right = x_BHTE.chunk(2, -1)
    return torch.cat([left * cos - right * sin, right * cos + left * sin], -1)
