"""A transformer layer whose projections are fused: q, k, v in one weight, gate and up in another.

The smallest model on which a retraction of copies, of fused shapes or of the wrong blocks would show.
"""

from __future__ import annotations

from typing import Any

import torch
from jaxtyping import Float
from torch import Tensor, nn

from icml_sso.atoms import Atomic, Layout
from icml_sso.param_groups import build_param_groups

WIDTH, HEADS, KEY_HEADS, HEAD_DIM, HIDDEN, TOKENS = 32, 4, 2, 8, 48, 12


class FusedAttention(nn.Module):
    """Grouped-query attention with one weight for q, k and v.

    Args:
        generator: of the initial weights.
    """

    num_heads, num_key_value_heads, head_dim = HEADS, KEY_HEADS, HEAD_DIM

    def __init__(self, generator: torch.Generator) -> None:
        super().__init__()
        self.qkv_proj = _linear(WIDTH, (HEADS + 2 * KEY_HEADS) * HEAD_DIM, generator)
        self.o_proj = _linear(HEADS * HEAD_DIM, WIDTH, generator)

    def forward(self, x: Float[Tensor, "batch tokens width"]) -> Float[Tensor, "batch tokens width"]:
        """Causal attention."""
        sizes = [HEADS * HEAD_DIM, KEY_HEADS * HEAD_DIM, KEY_HEADS * HEAD_DIM]
        q, k, v = (
            t.unflatten(-1, (-1, HEAD_DIM)).transpose(1, 2) for t in self.qkv_proj(x).split(sizes, dim=-1)
        )
        mixed = nn.functional.scaled_dot_product_attention(q, k, v, is_causal=True, enable_gqa=True)
        return self.o_proj(mixed.transpose(1, 2).flatten(2))


class FusedLayer(nn.Module):
    """Attention and a gated feed-forward layer, fitted to random targets.

    Args:
        seed: of weights, inputs and targets.
    """

    def __init__(self, seed: int) -> None:
        super().__init__()
        generator = torch.Generator().manual_seed(seed)
        self.attention = FusedAttention(generator)
        self.gate_up_proj = _linear(WIDTH, 2 * HIDDEN, generator)
        self.down_proj = _linear(HIDDEN, WIDTH, generator)
        self.inputs = torch.randn(8, TOKENS, WIDTH, generator=generator)
        self.targets = torch.randn(8, TOKENS, WIDTH, generator=generator)

    def forward(self, x: Float[Tensor, "batch tokens width"]) -> Float[Tensor, "batch tokens width"]:
        """Residual attention, then a residual gated layer."""
        x = x + self.attention(x)
        gate, up = self.gate_up_proj(x).chunk(2, dim=-1)
        return x + self.down_proj(nn.functional.silu(gate) * up)

    @staticmethod
    def interleaved(name: str, parameter: Tensor, module: nn.Module) -> Atomic | None:
        """A rule: blocks of q, k and v alternate in the fused weight, and each component is one matrix."""
        if not name.endswith("qkv_proj.weight"):
            return None
        shared = HEADS // KEY_HEADS
        blocks = (shared * HEAD_DIM, HEAD_DIM, HEAD_DIM) * KEY_HEADS
        return Atomic(blocks=blocks, labels=(0, 1, 2) * KEY_HEADS, role="qkv")

    def groups(self, rule: Any = None) -> list[dict[str, Any]]:
        """Parameter groups, under a rule."""
        return build_param_groups(self, rule=rule)

    def descend(self, optimizer: torch.optim.Optimizer, step: int) -> None:
        """One step on a random batch of the step."""
        rows = torch.randperm(8, generator=torch.Generator().manual_seed(step))[:4]
        optimizer.zero_grad()
        (self(self.inputs[rows]) - self.targets[rows]).square().mean().backward()
        optimizer.step()

    @torch.no_grad()
    def norm_ratios(self, optimizer: Any) -> list[float]:
        """sigma/R of every atomic matrix, by SVD of the blocks cut out by hand from the parameter."""
        found = []
        for p in optimizer.param_groups[0]["params"]:
            layout: Layout = optimizer.layout(p)
            blocks = layout.atomic.blocks or (p.shape[0],)
            labels = layout.atomic.labels or tuple(range(len(blocks)))
            rows = p.detach().split(blocks)
            for label in dict.fromkeys(labels):
                matrix = torch.cat([r for r, other in zip(rows, labels, strict=True) if other == label])
                radius = (matrix.shape[0] / matrix.shape[1]) ** 0.5
                found.append(float(torch.linalg.matrix_norm(matrix.double(), ord=2)) / radius)
        return found


def _linear(inputs: int, outputs: int, generator: torch.Generator) -> nn.Linear:
    layer = torch.nn.utils.skip_init(nn.Linear, inputs, outputs, bias=False)
    with torch.no_grad():
        layer.weight.normal_(0.0, 0.02, generator=generator)
    return layer
