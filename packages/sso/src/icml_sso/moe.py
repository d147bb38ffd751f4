"""Mixture of experts: a router sends each token to k of E SwiGLU experts.

For a token x: logits l = R x, p = softmax(l), chosen set C = the k largest of p (or of p + b with a selection
bias b), weights w_e = p_e / sum_{C} p, output sum_{e in C} w_e expert_e(x) [+ sigmoid(g·x) shared(x)].
Auxiliary loss (Switch Transformer, arXiv 2101.03961): α E sum_e f_e P_e with f_e the share of assignments and
P_e the mean of p_e. Loss-free balancing (arXiv 2408.15664): b_e += γ sign(mean load - load_e) after each
step. z-loss (ST-MoE, arXiv 2202.08906): mean of logsumexp(l)². Parameters are named as in transformers'
Qwen2-MoE.
"""

from __future__ import annotations

from typing import NamedTuple

import torch
from jaxtyping import Float, Int
from torch import Tensor, nn
from torch.nn import functional as F

from icml_sso.configurations import MoEConfig
from icml_sso.data_parallel import processes, summed

SCORE_DTYPE = torch.float32
"""Routing probabilities are never computed in less than this (the published runs: --moe-router-dtype
fp32)."""


class RouterStatistics(NamedTuple):
    """What one mixture layer says about one batch.

    Attributes:
        load: assignments that each expert got.
        aux_loss: E sum_e f_e P_e, not yet multiplied by α; 1 where the load is even.
        z_loss: mean of logsumexp(logits)².
    """

    load: Int[Tensor, " experts"]
    aux_loss: Float[Tensor, ""]
    z_loss: Float[Tensor, ""]


class Router(nn.Module):
    """Linear scores of the experts; chooses k of them for each token.

    Args:
        width: of a token.
        experts: E.
        active: k.
    """

    selection_bias: Tensor

    def __init__(self, width: int, experts: int, active: int) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.empty(experts, width))
        self.active = active
        self.register_buffer("selection_bias", torch.zeros(experts))

    def forward(
        self, tokens: Float[Tensor, "tokens width"]
    ) -> tuple[Float[Tensor, "tokens active"], Int[Tensor, "tokens active"], RouterStatistics]:
        """Weights and indices of the chosen experts, and the statistics of this batch."""
        logits = F.linear(tokens, self.weight)
        logits = logits.to(torch.promote_types(logits.dtype, SCORE_DTYPE))
        probabilities = logits.softmax(dim=-1)
        chosen = (probabilities.detach() + self.selection_bias).topk(self.active, dim=-1).indices
        weights = probabilities.gather(1, chosen)
        weights = weights / weights.sum(dim=-1, keepdim=True)
        experts = self.weight.shape[0]
        load = torch.zeros(experts, dtype=torch.int64, device=tokens.device)
        load = load.index_add(0, chosen.flatten(), torch.ones_like(chosen).flatten())
        # The published runs balance the load of the global batch (global_aux_loss).
        share = summed(load).to(probabilities.dtype) / (processes() * chosen.numel())
        aux_loss = experts * (share * probabilities.mean(dim=0)).sum()
        z_loss = logits.logsumexp(dim=-1).square().mean()
        return weights.to(tokens.dtype), chosen, RouterStatistics(load, aux_loss, z_loss)

    @torch.no_grad()
    def update_bias(self, load: Int[Tensor, " experts"], rate: float) -> None:
        """b_e += rate · sign(mean load - load_e): experts with too many tokens become less likely."""
        load = load.to(self.selection_bias.dtype)
        self.selection_bias += rate * torch.sign(load.mean() - load)


class Experts(nn.Module):
    """E SwiGLU layers side by side: expert_e(x) = D_e (silu(G_e x) ∘ U_e x), rows [G_e; U_e] in one tensor.

    Args:
        experts: E.
        width: of a token.
        hidden: of an expert.
    """

    def __init__(self, experts: int, width: int, hidden: int) -> None:
        super().__init__()
        self.gate_up_proj = nn.Parameter(torch.empty(experts, 2 * hidden, width))
        self.down_proj = nn.Parameter(torch.empty(experts, width, hidden))

    def forward(
        self, tokens: Float[Tensor, "rows width"], load: Int[Tensor, " experts"]
    ) -> Float[Tensor, "rows width"]:
        """Rows in the order of their experts: the first ``load[0]`` go to expert 0, and so on."""
        kind = tokens.device.type
        dtype = torch.get_autocast_dtype(kind) if torch.is_autocast_enabled(kind) else tokens.dtype
        tokens, gate_up_proj, down_proj = (x.to(dtype) for x in (tokens, self.gate_up_proj, self.down_proj))
        if kind == "cuda" and dtype == torch.bfloat16:
            # One call for all experts, and the host need not know their loads.
            ends = load.cumsum(0).to(torch.int32)
            gate, up = F.grouped_mm(tokens, gate_up_proj.mT, offs=ends).chunk(2, dim=-1)
            return F.grouped_mm(F.silu(gate) * up, down_proj.mT, offs=ends)
        results = []
        for expert, rows in enumerate(tokens.split(load.tolist())):
            gate, up = F.linear(rows, gate_up_proj[expert]).chunk(2, dim=-1)
            results.append(F.linear(F.silu(gate) * up, down_proj[expert]))
        return torch.cat(results)


class SharedExpert(nn.Module):
    """The SwiGLU layer that every token visits: down(silu(gate x) ∘ up x).

    Args:
        width: of a token.
        hidden: of the layer.
    """

    def __init__(self, width: int, hidden: int) -> None:
        super().__init__()
        self.gate_proj = nn.Linear(width, hidden, bias=False)
        self.up_proj = nn.Linear(width, hidden, bias=False)
        self.down_proj = nn.Linear(hidden, width, bias=False)

    def forward(self, x: Float[Tensor, "... width"]) -> Float[Tensor, "... width"]:
        """down(silu(gate x) ∘ up x)."""
        return self.down_proj(F.silu(self.gate_proj(x)) * self.up_proj(x))


class MixtureOfExperts(nn.Module):
    """Router, experts and the gated shared expert.

    Args:
        width: of a token.
        config: sizes.
    """

    def __init__(self, width: int, config: MoEConfig) -> None:
        super().__init__()
        self.gate = Router(width, config.num_experts, config.num_experts_per_tok)
        self.experts = Experts(config.num_experts, width, config.moe_intermediate_size)
        self.shared_expert: SharedExpert | None = None
        self.shared_expert_gate: nn.Linear | None = None
        if config.shared_expert_intermediate_size:
            self.shared_expert = SharedExpert(width, config.shared_expert_intermediate_size)
            self.shared_expert_gate = nn.Linear(width, 1, bias=False)

    def forward(self, x: Float[Tensor, "... width"]) -> tuple[Float[Tensor, "... width"], RouterStatistics]:
        """The mixture's output, and what the router did."""
        tokens = x.reshape(-1, x.shape[-1])
        weights, chosen, statistics = self.gate(tokens)
        # Assignments in the order of experts; a stable sort keeps the sums in the order of tokens.
        order = chosen.flatten().argsort(stable=True)
        token = order // chosen.shape[1]
        rows = self.experts(tokens[token], statistics.load) * weights.flatten()[order, None]
        out = torch.zeros_like(tokens).index_add(0, token, rows.to(tokens.dtype))
        if self.shared_expert is not None and self.shared_expert_gate is not None:
            out = out + torch.sigmoid(self.shared_expert_gate(tokens)) * self.shared_expert(tokens)
        return out.view_as(x), statistics


def max_violation(load: Int[Tensor, "... experts"]) -> Float[Tensor, ...]:
    """MaxVio = max_e load_e / mean load - 1: 0 where all experts have the same load, E - 1 at worst.

    (Loss-free balancing, arXiv 2408.15664, equation 4.)
    """
    load = load.to(torch.float64)
    return load.amax(dim=-1) / load.mean(dim=-1) - 1
