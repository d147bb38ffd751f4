"""A denoising baseline after PDE-Refiner (Lippe et al. 2023, arXiv 2308.05732), with the same U-Net.

The network sees [x, level, u] with u the target under Gaussian noise of scale sigma_k, and predicts the
noise; at level 0 it sees the base's output and predicts the target's residual. sigma_k falls geometrically.
"""

from __future__ import annotations

import torch
from jaxtyping import Float
from torch import Tensor, nn

from icml_irno.refiner import Refiner


class DenoisingRefiner(nn.Module):
    """``levels`` denoising steps after the base's own prediction.

    Args:
        base: frozen.
        in_channels, out_channels: of the base.
        levels: noise levels.
        least_noise: sigma of the last level, in units of the normalised target.
        options: of the U-Net.
    """

    def __init__(
        self,
        base: nn.Module,
        in_channels: int,
        out_channels: int,
        levels: int = 4,
        least_noise: float = 1e-2,
        **options: object,
    ) -> None:
        super().__init__()
        self.base = base.eval().requires_grad_(False)
        self.levels = levels
        self.sigmas = [least_noise ** (k / levels) for k in range(1, levels + 1)]
        self.network = Refiner(in_channels + 1, out_channels, **options)  # type: ignore[arg-type]

    def loss(
        self,
        x: Float[Tensor, "batch in *space"],
        y: Float[Tensor, "batch out *space"],
        generator: torch.Generator,
    ) -> Tensor:
        """Mean squared error of one level, drawn at random."""
        k = int(torch.randint(self.levels + 1, (), generator=generator))
        with torch.no_grad():
            first = self.base(x)
        if k == 0:
            return (self._call(x, first, 0) - (y - first)).square().mean()
        noise = torch.randn(y.shape, generator=generator, dtype=y.dtype).to(y.device)
        return (self._call(x, y + self.sigmas[k - 1] * noise, k) - noise).square().mean()

    @torch.no_grad()
    def predict(
        self, x: Float[Tensor, "batch in *space"], seed: int = 0
    ) -> Float[Tensor, "batch out *space"]:
        """The base, its correction, then noise added and taken away at every level."""
        generator = torch.Generator().manual_seed(seed)
        u = self.base(x)
        u = u + self._call(x, u, 0)
        for k, sigma in enumerate(self.sigmas, 1):
            noisy = u + sigma * torch.randn(u.shape, generator=generator, dtype=u.dtype).to(u.device)
            u = noisy - sigma * self._call(x, noisy, k)
        return u

    def _call(self, x: Tensor, u: Tensor, k: int) -> Tensor:
        level = torch.full_like(x[:, :1], k / self.levels)
        return self.network(torch.cat([x, level, u], 1))
