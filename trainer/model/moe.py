"""Mixture of experts as in Mixtral (arXiv 2401.04088, section 2.1): a router and gated SiLU experts.

Every token visits the `experts_per_token` experts with the highest router scores; their outputs are
summed with the softmax of just those scores. No token is dropped. The experts of a layer may lie on
several ranks (`trainer.parallel.expert`), and each may be split over tensor-parallel ranks like a
dense feed-forward block: then every rank of that split routes the same tokens alike, and the
router's gradient, through partial outputs, is a part of a sum.

B micro-batch, T tokens, N = B T, K experts per token, D hidden size, E experts, M rows.
"""

import torch
import torch.nn.functional as F
from torch import Tensor

from search_spaces.model_spec import ModelSpec
from trainer.model.parameters import ParameterSpec, Part, ShardParameter
from trainer.model.recompute import recomputed
from trainer.parallel.expert import LocalLinear, TokenDispatcher
from trainer.parallel.tensor_form import TensorForm

ROUTER = ".router.weight"  # names of routers' weights end so


def route(scores_NE: Tensor, choices: int) -> tuple[Tensor, Tensor]:
    """Weights and experts (both N, K) of every token, in fp32 as the router is sensitive."""
    probabilities = F.softmax(scores_NE.float(), dim=-1)
    weights_NK, experts_NK = probabilities.topk(choices, dim=-1)
    return weights_NK / weights_NK.sum(-1, keepdim=True), experts_NK


class MixtureOfExperts:
    """The feed-forward part of a layer whose tokens choose among experts."""

    def __init__(
        self, model: ModelSpec, form: TensorForm, dispatcher: TokenDispatcher,
        weights: dict[str, ShardParameter], prefix: str, *, recomputes_activation: bool,
    ) -> None:  # fmt: skip
        self.form, self.dispatcher, self.choices = form, dispatcher, model.experts_per_token
        self.router_weight = weights[prefix + ROUTER]
        self.experts = [
            (weights[f"{name}.up.weight"], weights[f"{name}.down.weight"])
            for name in (expert_prefix(prefix, expert) for expert in dispatcher.local_experts)
        ]
        self.recomputes_activation = recomputes_activation

    @torch.compiler.disable
    def __call__(self, x_BTD: Tensor) -> Tensor:
        """Residual layout in and out; row counts depend on the data, so nothing is compiled."""
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
        hidden = LocalLinear.apply(x_MD, up)
        hidden = recomputed(_gated, hidden) if self.recomputes_activation else _gated(hidden)
        result: Tensor = LocalLinear.apply(hidden, down)
        return result


def _gated(hidden_MF: Tensor) -> Tensor:
    gate, up = hidden_MF.chunk(2, -1)
    return F.silu(gate) * up


def expert_prefix(prefix: str, expert: int) -> str:
    """Start of the names of one expert's parameters."""
    return f"{prefix}.experts.{expert}"


def router_specs(model: ModelSpec, prefix: str, std: float) -> list[ParameterSpec]:
    """Scores of the experts from a token's vector."""
    rows = (Part("expert", model.num_experts),)
    hidden = (Part("hidden", model.hidden_size),)
    return [ParameterSpec(prefix + ROUTER, (rows, hidden), std)]
