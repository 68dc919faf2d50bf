"""Mixture of experts as in Mixtral (arXiv 2401.04088, section 2.1): a router, gated SiLU experts.

Every token visits the `experts_per_token` experts with the highest router scores; their outputs are
summed with the softmax of just those scores. No token is dropped. The experts of a layer may lie on
several ranks (`trainer.parallel.expert`), and each may be split over tensor-parallel ranks like a
dense feed-forward block: then every rank of that split routes the same tokens alike, and the
router's gradient, through partial outputs, is a part of a sum.

B micro-batch, T tokens, N = B T, K experts per token, D hidden size, E experts, M rows.
"""

from collections.abc import Mapping

import torch
import torch.nn.functional as F
from torch import Tensor

from search_spaces.model_spec import ModelSpec
from trainer.model.parameters import ROUTER, ShardParameter
from trainer.model.recompute import forgetting, recomputed
from trainer.model.specs import expert_prefix
from trainer.parallel.expert import LocalLinear, TokenDispatcher
from trainer.parallel.tensor_form import TensorForm


def route(scores_NE: Tensor, choices: int) -> tuple[Tensor, Tensor]:
    """Weights and experts (both N, K) of every token, in fp32 as the router is sensitive."""
    probabilities = F.softmax(scores_NE.float(), dim=-1)
    weights_NK, experts_NK = probabilities.topk(choices, dim=-1)
    return weights_NK / weights_NK.sum(-1, keepdim=True), experts_NK


class MixtureOfExperts:
    """The feed-forward part of a layer whose tokens choose among experts."""

    def __init__(
        self, model: ModelSpec, form: TensorForm, dispatcher: TokenDispatcher,
        weights: Mapping[str, ShardParameter], prefix: str, *, recomputes_activation: bool,
    ) -> None:  # fmt: skip
        self.form, self.dispatcher, self.choices = form, dispatcher, model.experts_per_token
        self.router_weight = weights[prefix + ROUTER]
        self.experts = [
            (weights[f"{name}.up.weight"], weights[f"{name}.down.weight"])
            for name in (expert_prefix(prefix, expert) for expert in dispatcher.local_experts)
        ]
        self.recomputes_activation = recomputes_activation
        # how many rows an expert gets depends on the data, which a compiled graph cannot hold
        self._eager = torch.compiler.disable(self._forward)

    def __call__(self, x_BTD: Tensor) -> Tensor:
        """Residual layout in and out."""
        result: Tensor = self._eager(x_BTD)
        return result

    def _forward(self, x_BTD: Tensor) -> Tensor:
        x_BTD = self.form.enter(x_BTD)
        x_ND = x_BTD.flatten(0, 1)
        weights_NK, experts_NK = route(LocalLinear.apply(x_ND, self.router_weight), self.choices)
        plan = self.dispatcher.plan(experts_NK)
        x_MD = self.dispatcher.dispatch(x_ND, plan)
        y_MD = torch.cat(
            [
                self._expert(rows, *weights)
                for rows, weights in zip(x_MD.split(plan.counts), self.experts, strict=True)
            ]
        )
        y_ND = self.dispatcher.combine(y_MD, weights_NK.to(y_MD.dtype), plan)
        return self.form.leave(y_ND.view_as(x_BTD))

    def _expert(self, x_MD: Tensor, up: ShardParameter, down: ShardParameter) -> Tensor:
        up_MF: Tensor = LocalLinear.apply(x_MD, up)
        if not self.recomputes_activation:
            return self._down(_gated(up_MF), down)
        hidden_MF = recomputed(_gated, up_MF)
        kept = up_MF.detach()
        with forgetting(hidden_MF, lambda: _gated(kept)):
            return self._down(hidden_MF, down)

    def _down(self, hidden_MF: Tensor, down: ShardParameter) -> Tensor:
        y_MD: Tensor = LocalLinear.apply(hidden_MF, down)
        return y_MD


def _gated(hidden_MF: Tensor) -> Tensor:
    gate, up = hidden_MF.chunk(2, -1)
    return F.silu(gate) * up
