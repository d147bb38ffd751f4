"""A small vision transformer, pre-trained without class labels on scikit-learn's digits: rotations and
denoising.

Six blocks of width 96 on 2 x 2 patches of 8 x 8 images, with a class token. A turn by 0, 90, 180 or 270
degrees is told from the class token's state, and noise is removed from the patches'. Built once, kept in the
user's cache.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import torch
from icml_core.randomness import seeded
from jaxtyping import Float
from torch import Tensor, nn

RECIPE = 2
"""Version of the training: another number trains anew."""
SIDE, PATCH = 8, 2
NOISE = 0.5
"""Standard deviation of the noise, in standard deviations of the pixels."""


class Block(nn.Module):
    """Pre-norm attention and MLP."""

    def __init__(self, dim: int, heads: int) -> None:
        super().__init__()
        self.heads = heads
        self.norm1, self.norm2 = nn.LayerNorm(dim), nn.LayerNorm(dim)
        self.qkv, self.out = nn.Linear(dim, 3 * dim), nn.Linear(dim, dim)
        self.mlp = nn.Sequential(nn.Linear(dim, 4 * dim), nn.GELU(), nn.Linear(4 * dim, dim))

    def forward(self, x: Float[Tensor, "batch tokens dim"]) -> Float[Tensor, "batch tokens dim"]:
        """One block."""
        q, k, v = self.qkv(self.norm1(x)).unflatten(-1, (3, self.heads, -1)).permute(2, 0, 3, 1, 4)
        attended = nn.functional.scaled_dot_product_attention(q, k, v)
        x = x + self.out(attended.transpose(1, 2).flatten(2))
        moved: Tensor = x + self.mlp(self.norm2(x))
        return moved


class DigitsViT(nn.Module):
    """The network.

    Args:
        dim: width.
        depth: number of blocks.
        heads: of the attention.
        seed: of the first weights.
    """

    num_prefix_tokens = 1

    def __init__(self, dim: int = 96, depth: int = 6, heads: int = 4, *, seed: int = 0) -> None:
        super().__init__()
        places = (SIDE // PATCH) ** 2
        with seeded(seed):
            self.embed = nn.Linear(PATCH * PATCH, dim)
            self.cls_token = nn.Parameter(0.02 * torch.randn(1, 1, dim))
            self.positions = nn.Parameter(0.02 * torch.randn(1, places + 1, dim))
            self.blocks = nn.ModuleList(Block(dim, heads) for _ in range(depth))
            self.norm = nn.LayerNorm(dim)

    def forward(self, images: Float[Tensor, "batch 8 8"]) -> Float[Tensor, "batch tokens dim"]:
        """States after the final norm, the class token's first."""
        x = torch.cat([self.cls_token.expand(len(images), -1, -1), self.embed(patches(images))], 1)
        x = x + self.positions
        for block in self.blocks:
            x = block(x)
        states: Tensor = self.norm(x)
        return states


def patches(images: Float[Tensor, "batch 8 8"]) -> Float[Tensor, "batch 16 4"]:
    """Non-overlapping squares of 2 x 2 pixels."""
    cut = images.unfold(1, PATCH, PATCH).unfold(2, PATCH, PATCH)
    return cut.flatten(1, 2).flatten(2)


def digits() -> tuple[Float[Tensor, "n 8 8"], np.ndarray]:
    """Images, standardised as a whole, and digits."""
    from sklearn.datasets import load_digits

    pixels, labels = load_digits(return_X_y=True)
    images = torch.tensor(pixels, dtype=torch.float32).reshape(-1, SIDE, SIDE)
    return (images - images.mean()) / images.std(), labels


def pretrain(
    model: DigitsViT, images: Tensor, *, steps: int, seed: int, batch: int = 64, lr: float = 1e-3
) -> None:
    """Rotations and denoising, in place; no label is used."""
    with seeded(seed):
        turn = nn.Linear(model.norm.normalized_shape[0], 4)
        clean = nn.Linear(model.norm.normalized_shape[0], PATCH * PATCH)
    parameters = [*model.parameters(), *turn.parameters(), *clean.parameters()]
    optimizer = torch.optim.AdamW(parameters, lr=lr, weight_decay=0.05)
    generator = torch.Generator().manual_seed(seed)
    turned = torch.stack([torch.rot90(images, turns, (1, 2)) for turns in range(4)])
    model.train()
    for step in range(steps):
        rate = lr * min(1.0, (step + 1) / (0.1 * steps), 2 * (1 - step / steps))
        for group in optimizer.param_groups:
            group["lr"] = rate
        rows = torch.randint(len(images), (batch,), generator=generator)
        turns = torch.randint(4, (batch,), generator=generator)
        seen = turned[turns, rows]
        noisy = seen + NOISE * torch.randn(seen.shape, generator=generator)
        states = model(noisy)
        loss = nn.functional.cross_entropy(turn(states[:, 0]), turns)
        loss = loss + nn.functional.mse_loss(clean(states[:, 1:]), patches(seen))
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    model.eval()


def pretrained_vit(steps: int = 300) -> DigitsViT:
    """The network, trained on first use and kept in the cache where icml-lm is installed.

    Args:
        steps: of the pre-training; 300 take about 40 s on one core.
    """
    model = DigitsViT()
    try:
        from icml_lm.artefacts import artefact
    except ImportError:
        pretrain(model, digits()[0], steps=steps, seed=0)
        return model

    def build(folder: Path) -> None:
        from safetensors.torch import save_file

        fresh = DigitsViT()
        pretrain(fresh, digits()[0], steps=steps, seed=0)
        save_file(fresh.state_dict(), folder / "model.safetensors")

    from safetensors.torch import load_file

    state: dict[str, Any] = load_file(
        artefact("loes-digits-vit", f"{RECIPE}-{steps}", build) / "model.safetensors"
    )
    model.load_state_dict(state)
    return model.eval()


def digit_states(model: DigitsViT, images: Tensor) -> Float[Tensor, "n layers dim"]:
    """The class token after each block."""
    from icml_loes.collector import collect_states

    return collect_states(model, images.split(256), pooling="cls").stacked()
