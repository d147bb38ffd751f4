"""The layers of a TinyLM: RMSNorm, grouped-query attention with rotary positions, SwiGLU, the block.

Touvron et al., "LLaMA", arXiv 2302.13971; Shazeer, "GLU variants improve Transformer", arXiv 2002.05202.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import torch
import torch.nn.functional as F
from jaxtyping import Float
from torch import Tensor, nn

from icml_lm.cache import KeyValueCache
from icml_lm.rotary import rotate

if TYPE_CHECKING:
    from icml_lm.tiny import TinyConfig


@dataclass
class Context:
    """What all blocks of one forward pass share."""

    cos: Tensor
    sin: Tensor
    mask: Tensor | None
    triangle: bool
    cache: KeyValueCache | None
    sinks: list[Tensor] | None
    first: Tensor | None


class RMSNorm(nn.Module):
    """x / sqrt(mean(x²) + eps) · weight, with the mean square in float32 at least. arXiv 1910.07467."""

    def __init__(self, d: int, eps: float) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.ones(d))
        self.eps = eps

    def forward(self, x: Float[Tensor, "... d"]) -> Float[Tensor, "... d"]:
        """The normalised vectors."""
        if x.dtype in (torch.float16, torch.bfloat16):
            wide = x.float()
            scale = torch.rsqrt(wide.square().mean(-1, keepdim=True) + self.eps)
            return (wide * scale).to(x.dtype) * self.weight
        scale = torch.linalg.vector_norm(x, dim=-1, keepdim=True)
        scale = torch.rsqrt(scale.square() / x.shape[-1] + self.eps)
        return x * scale * self.weight


class Attention(nn.Module):
    """Grouped-query attention with rotary positions.

    ``kind`` is ``"sdpa"`` (torch's fused attention) or ``"eager"`` (the probabilities themselves, which
    ``torch.func.vmap`` batches and which ``output_sinks`` reads).
    """

    def __init__(self, config: TinyConfig, layer: int) -> None:
        super().__init__()
        self.layer, self.heads, self.kv_heads = layer, config.heads, config.kv_heads
        self.head_dim = config.d // config.heads
        kv = config.kv_heads * self.head_dim
        self.q_proj = nn.Linear(config.d, config.d, bias=False)
        self.k_proj = nn.Linear(config.d, kv, bias=False)
        self.v_proj = nn.Linear(config.d, kv, bias=False)
        self.o_proj = nn.Linear(config.d, config.d, bias=False)
        self.kind = "sdpa"

    def forward(
        self, x: Float[Tensor, "batch tokens d"], context: Context
    ) -> Float[Tensor, "batch tokens d"]:
        """What the tokens take from those that they see."""
        batch, tokens, d = x.shape
        turned = torch.cat((self.q_proj(x), self.k_proj(x)), -1)
        turned = rotate(
            turned.view(batch, tokens, -1, self.head_dim).transpose(1, 2), context.cos, context.sin
        )
        q, k = turned[:, : self.heads], turned[:, self.heads :]
        v = self.v_proj(x).view(batch, tokens, self.kv_heads, self.head_dim).transpose(1, 2)
        if context.cache is not None:
            k, v = context.cache.update(self.layer, k, v)
        if self.kind == "sdpa" and context.sinks is None:
            out = F.scaled_dot_product_attention(
                q,
                k,
                v,
                attn_mask=context.mask,
                is_causal=context.triangle,
                enable_gqa=self.heads != self.kv_heads,
            )
        else:
            out = self._eager(q, k, v, context)
        return self.o_proj(out.transpose(1, 2).reshape(batch, tokens, d))

    def _eager(self, q: Tensor, k: Tensor, v: Tensor, context: Context) -> Tensor:
        batch, heads, tokens, width = q.shape
        groups = heads // self.kv_heads
        grouped = q.reshape(batch, self.kv_heads, groups * tokens, width)
        scores = (grouped * width**-0.5) @ k.transpose(2, 3)
        scores = scores.view(batch, heads, tokens, -1)
        if context.triangle:
            scores = scores + _triangle(tokens, scores)
        elif context.mask is not None:
            hidden = context.mask if context.mask.dtype != torch.bool else _additive(context.mask, scores)
            scores = scores + hidden
        probabilities = scores.softmax(-1)
        if context.sinks is not None:
            context.sinks.append(_at_first(probabilities, context.first))
        out = probabilities.view(batch, self.kv_heads, groups * tokens, -1) @ v
        return out.view(batch, heads, tokens, width)


class GatedMLP(nn.Module):
    """down(silu(gate(x)) · up(x))."""

    def __init__(self, d: int, hidden: int) -> None:
        super().__init__()
        self.gate_proj = nn.Linear(d, hidden, bias=False)
        self.up_proj = nn.Linear(d, hidden, bias=False)
        self.down_proj = nn.Linear(hidden, d, bias=False)

    def forward(self, x: Float[Tensor, "batch tokens d"]) -> Float[Tensor, "batch tokens d"]:
        """The network's output for each token."""
        return self.down_proj(F.silu(self.gate_proj(x)) * self.up_proj(x))


class Block(nn.Module):
    """x + attention(norm(x)), then x + mlp(norm(x))."""

    def __init__(self, config: TinyConfig, layer: int) -> None:
        super().__init__()
        self.self_attn = Attention(config, layer)
        self.mlp = GatedMLP(config.d, config.hidden)
        self.input_layernorm = RMSNorm(config.d, config.eps)
        self.post_attention_layernorm = RMSNorm(config.d, config.eps)

    def forward(
        self, x: Float[Tensor, "batch tokens d"], context: Context
    ) -> Float[Tensor, "batch tokens d"]:
        """The residual stream after this block."""
        x = x + self.self_attn(self.input_layernorm(x), context)
        return x + self.mlp(self.post_attention_layernorm(x))


def visible(tokens: int, past: int, mask: Tensor | None, causal: bool, like: Tensor) -> Tensor | None:
    """Which keys each query sees, [batch or 1, 1, tokens, past + tokens], or None for all.

    A query always sees itself, so that padding has finite values too; nobody sees padding otherwise.

    Raises:
        ValueError: a mask of another length.
    """
    total = past + tokens
    if mask is not None and mask.dim() == 4:
        return mask
    if mask is not None and (mask.dim() != 2 or mask.shape[1] != total):
        raise ValueError(
            f"an attention_mask of shape {tuple(mask.shape)} does not cover {past} cached and {tokens} new "
            f"positions; it should have {total} columns"
        )
    if tokens == 1 or not causal:
        if mask is None:
            return None
        keys = mask.bool()[:, None, None, :]
        return keys if tokens == 1 else keys | torch.eye(tokens, dtype=torch.bool, device=like.device)
    lower = torch.ones(tokens, total, dtype=torch.bool, device=like.device).tril(past)
    if mask is None:
        return lower[None, None]
    itself = torch.ones_like(lower).triu(past) & lower
    return lower & mask.bool()[:, None, None, :] | itself


def _additive(seen: Tensor, like: Tensor) -> Tensor:
    return torch.where(seen, 0.0, -torch.inf).to(like.dtype)


def _triangle(tokens: int, like: Tensor) -> Tensor:
    return torch.full((tokens, tokens), -torch.inf, dtype=like.dtype, device=like.device).triu(1)


def _at_first(probabilities: Tensor, first: Tensor | None) -> Tensor:
    if first is None:
        return probabilities[..., 0]
    index = first[:, None, None, None].expand(*probabilities.shape[:3], 1)
    return probabilities.gather(-1, index)[..., 0]
