"""ENO: a Fourier neural operator that reads coefficient fields and predicts the lowest eigenvalues, sorted.

    lambda_1 = lambda_ref exp(a_1),   lambda_{k+1} = lambda_k + s_k exp(a_k) softplus(b_k) / ln 2

The body is the FNO of Z. Li et al. (arXiv 2010.08895), as the first version of arXiv 2511.01927 names it;
head,
parametrisation and pooling are ours. s_k is the mean gap of the training set, so that the network learns
ratios
to the trend, and sorting holds by construction.
"""

from __future__ import annotations

import itertools
import math

import torch
from icml_core.randomness import seeded
from jaxtyping import Float
from torch import Tensor, nn

NO_RATIO = 1e-6  # of the mean gap: a first eigenvalue below is rounding, and ratios to it mean nothing
MARGIN = 3.0  # mean gaps from the lowest training eigenvalue down to the offset


class SpectralLayer(nn.Module):
    """One layer of the operator: a product with weights on the lowest Fourier modes, beside a pointwise one.

    Args:
        width: channels.
        modes: kept along each axis; fewer on a coarser grid.
    """

    def __init__(self, width: int, modes: int) -> None:
        super().__init__()
        self.modes = modes
        # Zero mean: weights of one sign make all channels alike, and training then stays at the trend.
        scale = (2 * width) ** -0.5
        self.weight = nn.Parameter(scale * torch.randn(2, width, width, modes, modes, 2))
        self.point = nn.Conv2d(width, width, 1)

    def forward(self, x: Float[Tensor, "B width H W"]) -> Float[Tensor, "B width H W"]:
        """F^-1(R F x) + W x."""
        height, breadth = x.shape[-2:]
        spectrum = torch.fft.rfft2(x)
        rows, columns = min(self.modes, height // 2), min(self.modes, breadth // 2 + 1)
        out = torch.zeros_like(spectrum)
        weight = torch.view_as_complex(self.weight)[..., :rows, :columns]
        low, high = (spectrum[..., part, :columns] for part in (slice(0, rows), slice(height - rows, height)))
        out[..., :rows, :columns] = torch.einsum("bihw,iohw->bohw", low, weight[0])
        out[..., height - rows :, :columns] = torch.einsum("bihw,iohw->bohw", high, weight[1])
        return torch.fft.irfft2(out, s=(height, breadth)) + self.point(x)


class ENO(nn.Module):
    """Predicted eigenvalues of fields, or of a vector of features.

    Args:
        channels: of the fields, or features.
        n_eigenvalues: M.
        width: channels of the body.
        modes: Fourier modes of each layer.
        layers: of the body.
        features: the input is [B, channels], read by a network of dense layers.
        seed: of the weights.

    Attributes:
        first: lambda_ref, the geometric mean of the first training eigenvalue over `offset`.
        gaps: s_k.
        offset: subtracted where eigenvalues are not all well above 0.
        mean, scale: of every channel.
    """

    def __init__(
        self,
        channels: int,
        n_eigenvalues: int,
        *,
        width: int = 32,
        modes: int = 12,
        layers: int = 4,
        features: bool = False,
        seed: int = 0,
    ) -> None:
        super().__init__()
        if min(channels, n_eigenvalues, width, modes, layers) < 1:
            raise ValueError(
                f"channels={channels}, n_eigenvalues={n_eigenvalues}, width={width}, modes={modes}, "
                f"layers={layers}: all from 1 on"
            )
        self.channels, self.n_eigenvalues, self.features = channels, n_eigenvalues, features
        with seeded(seed):
            if features:
                sizes = [channels, *[4 * width] * layers]
                self.body = nn.ModuleList(nn.Linear(a, b) for a, b in itertools.pairwise(sizes))
                pooled = 4 * width
            else:
                self.lift = nn.Conv2d(channels + 2, width, 1)
                self.body = nn.ModuleList(SpectralLayer(width, modes) for _ in range(layers))
                self.attention = nn.Conv2d(width, 1, 1)
                pooled = 2 * width
            self.head = nn.Sequential(
                nn.Linear(pooled, 4 * width), nn.GELU(), nn.Linear(4 * width, 2 * n_eigenvalues)
            )
            # Small last weights: training begins at the trend of the training set.
            self.head[-1].weight.data.mul_(0.1)
            self.head[-1].bias.data.zero_()
        self.register_buffer("first", torch.ones(()))
        self.register_buffer("gaps", torch.ones(max(n_eigenvalues - 1, 0)))
        self.register_buffer("offset", torch.zeros(()))
        self.register_buffer("mean", torch.zeros(channels))
        self.register_buffer("scale", torch.ones(channels))

    def set_trend(self, fields: Float[Tensor, "n c *grid"], eigenvalues: Float[Tensor, "n M"]) -> None:
        """Take normalisation and trend from a training set."""
        lowest = float(eigenvalues.min())
        spread = float((eigenvalues[:, -1] - eigenvalues[:, 0]).mean()) / max(eigenvalues.shape[1] - 1, 1)
        offset = 0.0
        if lowest <= NO_RATIO * spread or lowest <= 0:
            # Wide enough for instances whose first eigenvalue lies below all of the training set.
            offset = lowest - max(MARGIN * spread, 2 * float(eigenvalues[:, 0].max()) - 2 * lowest, 1e-12)
        self.offset.fill_(offset)
        self.first.copy_((eigenvalues[:, 0].double() - offset).log().mean().exp())
        if self.n_eigenvalues > 1:
            gaps = eigenvalues.double().diff(dim=1).mean(0)
            self.gaps.copy_(gaps.clamp_min(1e-9 * float(gaps.mean()) + 1e-300))
        axes = (0, *range(2, fields.dim()))
        self.mean.copy_(fields.mean(axes))
        self.scale.copy_(fields.std(axes, correction=0).clamp_min(1e-6))

    def forward(self, fields: Float[Tensor, "B c *grid"]) -> Float[Tensor, "B M"]:
        """Eigenvalues, rising.

        Raises:
            ValueError: another number of channels or dimensions.
        """
        dims = 2 if self.features else 4
        if fields.dim() != dims or fields.shape[1] != self.channels:
            wanted = f"[B, {self.channels}]" if self.features else f"[B, {self.channels}, H, W]"
            raise ValueError(f"fields have shape {list(fields.shape)}; this network reads {wanted}")
        shape = (1, -1, *[1] * (dims - 2))
        x = (fields - self.mean.view(shape)) / self.scale.view(shape)
        a, b = self.head(self._pooled(x)).view(len(x), 2, self.n_eigenvalues).unbind(1)
        first = self.first * a[:, :1].exp()
        gaps = self.gaps * a[:, 1:].exp() * nn.functional.softplus(b[:, 1:]) / math.log(2.0)
        # The first gap output would be idle: it scales the reference.
        first = first * nn.functional.softplus(b[:, :1]) / math.log(2.0)
        return self.offset + torch.cat([first, gaps], dim=1).cumsum(1)

    def _pooled(self, x: Tensor) -> Float[Tensor, "B pooled"]:
        if self.features:
            for layer in self.body:
                x = nn.functional.gelu(layer(x))
            return x
        height, breadth = x.shape[-2:]
        rows = torch.linspace(0, 1, height, dtype=x.dtype, device=x.device)
        columns = torch.linspace(0, 1, breadth, dtype=x.dtype, device=x.device)
        grid = torch.stack(torch.meshgrid(rows, columns, indexing="ij")).expand(len(x), -1, -1, -1)
        x = self.lift(torch.cat([x, grid], dim=1))
        for layer in self.body:
            x = nn.functional.gelu(layer(x))
        weight = self.attention(x).flatten(2).softmax(-1)
        return torch.cat([x.mean((2, 3)), (x.flatten(2) * weight).sum(-1)], dim=1)


def eno_loss(
    predicted: Float[Tensor, "B M"], exact: Float[Tensor, "B M"], offset: Float[Tensor, ""] | float = 0.0
) -> Float[Tensor, ""]:
    """Huber loss of log ratios + 0.1 squared gap errors + 0.1 Wasserstein distance of the spectra.

    Gap errors are in units of the mean gap at that index, the Wasserstein distance in units of the mean gap
    of
    the spectrum; of two sorted spectra it is the mean distance of the k-th values.
    """
    above = exact - offset
    # An eigenvalue below the offset has no logarithm; it counts as just above.
    least = 1e-6 * above.abs().mean() + torch.finfo(above.dtype).tiny
    ratio = (predicted - offset).clamp_min(least).log() - above.clamp_min(least).log()
    loss = nn.functional.huber_loss(ratio, torch.zeros_like(ratio), delta=0.1) * 10
    if exact.shape[1] > 1:
        mean_gap = exact.diff(dim=1).mean(0).clamp_min(1e-30)
        # Gaps of near multiplicities are small: the mean of all keeps them from ruling the sum.
        scale = torch.maximum(mean_gap, 0.2 * mean_gap.mean())
        loss = loss + 0.1 * ((predicted.diff(dim=1) - exact.diff(dim=1)) / scale).square().mean()
        loss = loss + 0.1 * ((predicted - exact).abs() / mean_gap.mean()).mean()
    return loss
