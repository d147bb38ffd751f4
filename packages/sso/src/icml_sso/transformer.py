"""A decoder of the kind the paper trains: Qwen3-like, dense or with a mixture of experts, any depth.

Pre-norm blocks x + attention(norm x), x + feed-forward(norm x); grouped-query attention with RMSNorm on each
head of queries and keys, rotary positions, SwiGLU, an untied head. Parameters are named and laid out as in
transformers' Qwen3 and Qwen3-MoE, so that their weights load as they are.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
from icml_core.randomness import seeded
from jaxtyping import Float, Int
from torch import Tensor, nn
from torch.nn import functional as F
from torch.utils.checkpoint import checkpoint

from icml_sso.configurations import TransformerConfig
from icml_sso.moe import MixtureOfExperts, RouterStatistics
from icml_sso.moe import SharedExpert as SwiGLU

INIT_STD = 0.02
"""Of all matrices before they are placed on spheres (the published runs: --init-method-std 0.02)."""
LOSS_CHUNK = 1 << 28
"""Logits that may be in memory at once; beyond it the loss goes over tokens in pieces, recomputed
backward."""


@dataclass
class TransformerOutput:
    """What a forward pass gives.

    Attributes:
        logits: scores of the next token, or None where only the loss was asked for.
        loss: what is minimised: cross-entropy and the weighted losses of the routers.
        cross_entropy: nats a token.
        load: assignments of each expert, one row a mixture layer; None in a dense model.
    """

    logits: Float[Tensor, "batch time vocabulary"] | None = None
    loss: Float[Tensor, ""] | None = None
    cross_entropy: Float[Tensor, ""] | None = None
    load: Int[Tensor, "layers experts"] | None = None


class Attention(nn.Module):
    """Causal grouped-query attention with norms of queries and keys and rotary positions.

    Args:
        config: sizes.
    """

    def __init__(self, config: TransformerConfig) -> None:
        super().__init__()
        self.config = config
        width, head = config.hidden_size, config.head_dim
        self.q_proj = nn.Linear(width, config.num_attention_heads * head, bias=False)
        self.k_proj = nn.Linear(width, config.num_key_value_heads * head, bias=False)
        self.v_proj = nn.Linear(width, config.num_key_value_heads * head, bias=False)
        self.o_proj = nn.Linear(config.num_attention_heads * head, width, bias=False)
        if config.qk_norm:
            self.q_norm = nn.RMSNorm(head, eps=config.rms_norm_eps)
            self.k_norm = nn.RMSNorm(head, eps=config.rms_norm_eps)

    def forward(
        self,
        x: Float[Tensor, "batch time width"],
        cos: Float[Tensor, "time head"],
        sin: Float[Tensor, "time head"],
    ) -> Float[Tensor, "batch time width"]:
        """softmax(q kᵀ / sqrt(head) + causal) v, joined by the output projection."""
        batch, time, _ = x.shape
        queries, keys, values = (
            projection(x).view(batch, time, -1, self.config.head_dim)
            for projection in (self.q_proj, self.k_proj, self.v_proj)
        )
        if self.config.qk_norm:
            queries, keys = self.q_norm(queries), self.k_norm(keys)
        queries, keys = rotate(queries.transpose(1, 2), cos, sin), rotate(keys.transpose(1, 2), cos, sin)
        out = F.scaled_dot_product_attention(
            queries,
            keys,
            values.transpose(1, 2),
            is_causal=True,
            enable_gqa=self.config.num_key_value_heads != self.config.num_attention_heads,
        )
        return self.o_proj(out.transpose(1, 2).reshape(batch, time, -1))


class Block(nn.Module):
    """One layer: attention and feed-forward, each behind a norm and beside a residual.

    Args:
        config: sizes.
        index: from 0; the first layers of a mixture model are dense.
    """

    def __init__(self, config: TransformerConfig, index: int) -> None:
        super().__init__()
        self.input_layernorm = nn.RMSNorm(config.hidden_size, eps=config.rms_norm_eps)
        self.self_attn = Attention(config)
        self.post_attention_layernorm = nn.RMSNorm(config.hidden_size, eps=config.rms_norm_eps)
        self.mlp: nn.Module
        if config.moe is not None and index >= config.moe.first_dense_layers:
            self.mlp = MixtureOfExperts(config.hidden_size, config.moe)
        else:
            self.mlp = SwiGLU(config.hidden_size, config.intermediate_size)

    def forward(
        self,
        x: Float[Tensor, "batch time width"],
        cos: Float[Tensor, "time head"],
        sin: Float[Tensor, "time head"],
    ) -> tuple[Float[Tensor, "batch time width"], RouterStatistics | None]:
        """The residual stream after this layer, and what its router did."""
        x = x + self.self_attn(self.input_layernorm(x), cos, sin)
        out = self.mlp(self.post_attention_layernorm(x))
        return (x + out, None) if isinstance(out, Tensor) else (x + out[0], out[1])


class Decoder(nn.Module):
    """Embedding, layers and the last norm.

    Args:
        config: sizes.
    """

    def __init__(self, config: TransformerConfig) -> None:
        super().__init__()
        self.config = config
        self.embed_tokens = nn.Embedding(config.vocab_size, config.hidden_size)
        self.layers = nn.ModuleList(Block(config, index) for index in range(config.num_hidden_layers))
        self.norm = nn.RMSNorm(config.hidden_size, eps=config.rms_norm_eps)
        self.gradient_checkpointing = False

    def forward(
        self, input_ids: Int[Tensor, "batch time"]
    ) -> tuple[Float[Tensor, "batch time width"], list[RouterStatistics]]:
        """The normalised last hidden states, and the statistics of the routers from bottom to top."""
        x = self.embed_tokens(input_ids)
        cos, sin = rotary_table(input_ids.shape[1], self.config.head_dim, self.config.rope_theta, x.device)
        # Turned in the precision of the weights: under autocast, queries and keys are then turned in fp32.
        cos, sin = cos.to(x.dtype), sin.to(x.dtype)
        statistics = []
        for layer in self.layers:
            if self.gradient_checkpointing and torch.is_grad_enabled():
                x, found = checkpoint(layer, x, cos, sin, use_reentrant=False)
            else:
                x, found = layer(x, cos, sin)
            if found is not None:
                statistics.append(found)
        return self.norm(x), statistics


class Transformer(nn.Module):
    """The decoder with its head.

    Args:
        config: sizes.
        seed: of the weights, drawn from N(0, 0.02²); norms begin at 1.
    """

    def __init__(self, config: TransformerConfig, *, seed: int = 0) -> None:
        super().__init__()
        self.config = config
        with seeded(seed):  # torch's layers draw weights of their own first
            self.model = Decoder(config)
            self.lm_head = nn.Linear(config.hidden_size, config.vocab_size, bias=False)
        generator = torch.Generator().manual_seed(seed)
        with torch.no_grad():
            for parameter in self.parameters():
                if parameter.ndim == 1:
                    parameter.fill_(1.0)
                elif not parameter.is_meta:
                    # On the CPU, so that a seed means the same weights on every device.
                    drawn = torch.empty(parameter.shape).normal_(std=INIT_STD, generator=generator)
                    parameter.copy_(drawn)

    @property
    def routers(self) -> list[Any]:
        """The routers from bottom to top; empty in a dense model."""
        return [layer.mlp.gate for layer in self.model.layers if isinstance(layer.mlp, MixtureOfExperts)]

    def forward(
        self, input_ids: Int[Tensor, "batch time"], targets: Int[Tensor, "batch time"] | None = None
    ) -> TransformerOutput:
        """Logits; with ``targets`` the losses instead.

        loss = cross-entropy + sum over mixture layers of (α aux_loss + ζ z_loss).

        Args:
            input_ids: tokens.
            targets: for each place the token that comes after it (already shifted); -100 is left out.

        Raises:
            ValueError: shapes that do not fit, or tokens beyond the vocabulary.
            TypeError: tokens that are not integers.
        """
        check_tokens(input_ids, self.config.vocab_size)
        hidden, statistics = self.model(input_ids)
        load = torch.stack([layer.load for layer in statistics]) if statistics else None
        if targets is None:
            return TransformerOutput(logits=self.lm_head(hidden), load=load)
        if targets.shape != input_ids.shape:
            raise ValueError(f"targets of shape {list(targets.shape)} for inputs {list(input_ids.shape)}")
        cross_entropy = self._cross_entropy(hidden.flatten(0, 1), targets.flatten())
        loss = cross_entropy
        moe = self.config.moe
        if moe is not None and statistics:
            if moe.balance == "loss":
                loss = loss + moe.aux_loss_coefficient * sum(layer.aux_loss for layer in statistics)
            loss = loss + moe.z_loss_coefficient * sum(layer.z_loss for layer in statistics)
        return TransformerOutput(loss=loss, cross_entropy=cross_entropy, load=load)

    def _cross_entropy(
        self, hidden: Float[Tensor, "tokens width"], targets: Int[Tensor, " tokens"]
    ) -> Float[Tensor, ""]:
        rows = max(1, LOSS_CHUNK // self.config.vocab_size)
        if len(hidden) <= rows:
            return _summed_cross_entropy(hidden, self.lm_head, targets) / (targets != -100).sum()
        total = hidden.new_zeros((), dtype=torch.promote_types(hidden.dtype, torch.float32))
        for piece, wanted in zip(hidden.split(rows), targets.split(rows), strict=True):
            total = total + checkpoint(
                _summed_cross_entropy, piece, self.lm_head, wanted, use_reentrant=False
            )
        return total / (targets != -100).sum()


def _summed_cross_entropy(
    hidden: Float[Tensor, "tokens width"], head: nn.Module, targets: Int[Tensor, " tokens"]
) -> Float[Tensor, ""]:
    logits = head(hidden)
    logits = logits.to(torch.promote_types(logits.dtype, torch.float32))
    return F.cross_entropy(logits, targets, reduction="sum")


def check_tokens(tokens: Tensor, vocabulary: int) -> None:
    """Refuse what cannot be embedded. On a GPU the range is left to the kernel: a check would wait for it.

    Raises:
        TypeError: not an integer tensor.
        ValueError: not of shape (batch, time), empty, or a token outside the vocabulary.
    """
    if not isinstance(tokens, Tensor) or tokens.dtype not in (torch.int64, torch.int32):
        raise TypeError(f"expected a tensor of int64 tokens, got {getattr(tokens, 'dtype', type(tokens))}")
    if tokens.ndim != 2 or not tokens.numel():
        raise ValueError(f"expected tokens of shape (batch, time), neither empty, got {list(tokens.shape)}")
    if tokens.device.type == "cpu" and not torch.compiler.is_compiling():
        low, high = torch.aminmax(tokens)
        if low < 0 or high >= vocabulary:
            raise ValueError(
                f"tokens from {int(low)} to {int(high)}; the vocabulary is 0 to {vocabulary - 1}"
            )


def rotary_table(
    time: int, head: int, theta: float, device: torch.device
) -> tuple[Float[Tensor, "time head"], Float[Tensor, "time head"]]:
    """cos and sin of position · theta^(-2i/head), i < head/2, twice side by side, in double precision.

    (RoFormer, arXiv 2104.09864; the two halves of a head make the pairs, as in Llama and Qwen.)
    """
    exponent = torch.arange(0, head, 2, device=device, dtype=torch.float64) / head
    angle = torch.arange(time, device=device, dtype=torch.float64)[:, None] * theta**-exponent
    angle = torch.cat((angle, angle), dim=-1)
    return angle.cos(), angle.sin()


def rotate(
    x: Float[Tensor, "batch heads time head"],
    cos: Float[Tensor, "time head"],
    sin: Float[Tensor, "time head"],
) -> Float[Tensor, "batch heads time head"]:
    """Turn each pair (x_i, x_{i + head/2}) by its angle."""
    first, second = x.chunk(2, dim=-1)
    return (x * cos + torch.cat((-second, first), dim=-1) * sin).to(x.dtype)
