"""Spectral norms of the decoder's atomic matrices over their radii, by exact singular values.

An atomic matrix is what the method puts on a sphere of its own: each head of q, k and v, gate, up, down and
    output
projections, each expert, the router. R = c sqrt(d_out / d_in). Independent of the optimizer, so that every
optimizer's training can be measured alike.
"""

from __future__ import annotations

import math
from collections.abc import Iterator

import torch
from jaxtyping import Float
from torch import Tensor

from icml_sso.moe import MixtureOfExperts
from icml_sso.transformer import Transformer


def atomic_matrices(model: Transformer) -> Iterator[tuple[str, Float[Tensor, "count rows columns"]]]:
    """Views of the weights as stacks of equal atomic matrices, with the parameter's name."""
    head = model.config.head_dim
    width = model.config.hidden_size
    for index, layer in enumerate(model.model.layers):
        where = f"model.layers.{index}"
        attention, mlp = layer.self_attn, layer.mlp
        for name in ("q_proj", "k_proj", "v_proj"):
            yield f"{where}.self_attn.{name}", getattr(attention, name).weight.detach().view(-1, head, width)
        yield f"{where}.self_attn.o_proj", attention.o_proj.weight.detach()[None]
        if isinstance(mlp, MixtureOfExperts):
            yield f"{where}.mlp.gate", mlp.gate.weight.detach()[None]
            gate_up = mlp.experts.gate_up_proj.detach()
            yield f"{where}.mlp.experts.gate_up_proj", gate_up.unflatten(1, (2, -1)).flatten(0, 1)
            yield f"{where}.mlp.experts.down_proj", mlp.experts.down_proj.detach()
            where, mlp = f"{where}.mlp", mlp.shared_expert
            if mlp is None:
                continue
            yield f"{where}.shared_expert_gate", layer.mlp.shared_expert_gate.weight.detach()[None]
            where = f"{where}.shared_expert"
        else:
            where = f"{where}.mlp"
        for name in ("gate_proj", "up_proj", "down_proj"):
            yield f"{where}.{name}", getattr(mlp, name).weight.detach()[None]


@torch.no_grad()
def sphere_ratios(model: Transformer, radius_scale: float = 1.0) -> dict[str, Float[Tensor, " count"]]:
    """σ₁ / R of every atomic matrix, by parameter; R = c sqrt(rows / columns).

    Args:
        model: the decoder.
        radius_scale: c.
    """
    ratios = {}
    for name, stack in atomic_matrices(model):
        radius = radius_scale * math.sqrt(stack.shape[-2] / stack.shape[-1])
        wide = torch.promote_types(stack.dtype, torch.float32)
        ratios[name] = torch.linalg.matrix_norm(stack.to(wide), ord=2) / radius
    return ratios
