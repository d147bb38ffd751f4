"""A small latent generative model of images: product-quantised autoencoder, autoregressive prior, linear
classifier.

An encoder maps an image to a few codes, each the nearest of its own codebook (van den Oord, Vinyals and
Kavukcuoglu, Neural discrete representation learning, NeurIPS 2017); the prior is categorical and
autoregressive in raster order. It is what the data-free posterior is tried on: 6 codes of 8 have 262,144
latents, which can be enumerated.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from icml_core.randomness import seeded
from jaxtyping import Float, Int64
from torch import Tensor, nn

from icml_discrete_samplers.masked import Path, path_log_prob
from icml_discrete_samplers.networks import MaskedMLP

Report = Callable[[int, float], None]
COMMITMENT = 0.25  # weight of the encoder's distance to its code
MOST_CLASSES = 10_000
WARM = 0.3  # share of the steps before codes are quantised


class ProductVAE(nn.Module):
    """Encoder, one codebook a site, decoder.

    Args:
        pixels: of an image.
        codes: latent sites D.
        codebook: symbols V.
        width: of a code's vector.
        hidden: of encoder and decoder.
        seed: of the initial weights.
    """

    def __init__(
        self, pixels: int, codes: int = 6, codebook: int = 8, width: int = 4, hidden: int = 128, seed: int = 0
    ) -> None:
        super().__init__()
        self.codes, self.codebook, self.width = codes, codebook, width
        with seeded(seed):
            self.encoder = nn.Sequential(
                nn.Linear(pixels, hidden),
                nn.SELU(),
                nn.Linear(hidden, hidden),
                nn.SELU(),
                nn.Linear(hidden, codes * width),
            )
            self.decoder = nn.Sequential(
                nn.Linear(codes * width, hidden),
                nn.SELU(),
                nn.Linear(hidden, hidden),
                nn.SELU(),
                nn.Linear(hidden, pixels),
            )
            self.book = nn.Parameter(torch.randn(codes, codebook, width))

    def vectors(self, images: Float[Tensor, "n pixels"]) -> Float[Tensor, "n codes width"]:
        """The encoder's output, a vector a site."""
        return self.encoder(images).view(-1, self.codes, self.width)

    def nearest(self, vectors: Float[Tensor, "n codes width"]) -> Int64[Tensor, "n codes"]:
        """The nearest code of each site."""
        return (vectors[:, :, None] - self.book).square().sum(-1).argmin(-1)

    def encode(self, images: Float[Tensor, "n pixels"]) -> Int64[Tensor, "n codes"]:
        """Latents of images."""
        return self.nearest(self.vectors(images))

    def decode(self, z: Int64[Tensor, "n codes"]) -> Float[Tensor, "n pixels"]:
        """Images of latents, pixels in 0..1."""
        chosen = self.book[torch.arange(self.codes, device=z.device), z]
        return self.decoder(chosen.flatten(1)).sigmoid()


@dataclass
class LatentImages:
    """A frozen latent model.

    Attributes:
        vae: encoder and decoder.
        prior: autoregressive network in raster order.
        weight, bias: of the linear classifier of images.
        error: mean squared error of a pixel after encoding and decoding.
    """

    vae: ProductVAE
    prior: MaskedMLP
    weight: Float[Tensor, "classes pixels"]
    bias: Float[Tensor, " classes"]
    error: float

    @torch.no_grad()
    def prior_logprob(self, z: Int64[Tensor, "n D"]) -> Float[Tensor, " n"]:
        """log p(z) = sum over sites in raster order of log p(z_i | z_<i)."""
        return (
            torch.cat([path_log_prob(self.prior, _raster(part)) for part in z.split(8192)])
            if len(z)
            else z.sum(1)
        )

    @torch.no_grad()
    def decode(self, z: Int64[Tensor, "n D"]) -> Float[Tensor, "n pixels"]:
        """Images of latents."""
        return self.vae.decode(z)

    def to(self, device: str | torch.device) -> LatentImages:
        """Move everything to a device."""
        self.vae, self.prior = self.vae.to(device), self.prior.to(device)
        self.weight, self.bias = self.weight.to(device), self.bias.to(device)
        return self

    def classify(self, images: Float[Tensor, "n pixels"]) -> Float[Tensor, "n classes"]:
        """Logits of classes."""
        return images @ self.weight.T + self.bias


def train_latent_images(
    images: Float[Tensor, "n pixels"],
    labels: Int64[Tensor, " n"],
    *,
    codes: int = 6,
    codebook: int = 8,
    steps: int = 600,
    batch: int = 256,
    seed: int = 0,
    callback: Callable[[int, float], None] | None = None,
) -> LatentImages:
    """Train autoencoder, prior and classifier on images with pixels in 0..1.

    Args:
        images: a row each.
        labels: class numbers; those that are missing below the largest are classes that are never found.
        codes: latent sites.
        codebook: symbols of each.
        steps: updates of the autoencoder and of the prior.
        batch: images an update.
        seed: of everything random.
        callback: called after every update of either with its number and loss.

    Raises:
        ValueError: images and labels that do not match, pixels or labels out of range, or one class alone.
    """
    if images.ndim != 2 or len(images) != len(labels) or not len(images):
        raise ValueError(f"images {list(images.shape)} and labels {list(labels.shape)} do not match")
    if not bool(torch.isfinite(images).all()) or float(images.min()) < 0 or float(images.max()) > 1:
        raise ValueError("pixels must be numbers from 0 to 1")
    if int(labels.min()) < 0 or int(labels.max()) >= MOST_CLASSES or len(labels.unique()) < 2:
        raise ValueError(
            f"labels {labels.unique().tolist()[:5]} must be two or more class numbers from 0 to "
            f"{MOST_CLASSES - 1}"
        )
    g = torch.Generator().manual_seed(seed)
    vae = ProductVAE(images.shape[1], codes, codebook, seed=seed)
    report = callback or (lambda step, loss: None)
    _train_vae(vae, images, steps, batch, g, report)
    with torch.no_grad():
        z = vae.encode(images)
        error = float((vae.decode(z) - images).square().mean())
    prior = MaskedMLP(codes, codebook, hidden=128, layers=2, seed=seed + 1)
    _train_prior(prior, z, max(steps, 1), batch, g, lambda step, loss: report(steps + step, loss))
    weight, bias = _classifier(images, labels)
    for module in (vae, prior):
        module.requires_grad_(False)
    return LatentImages(vae, prior, weight, bias, error)


def digits() -> tuple[Float[Tensor, "n 64"], Int64[Tensor, " n"]]:
    """The 1797 digits of 8 x 8 pixels that scikit-learn carries."""
    from sklearn.datasets import load_digits

    found: Any = load_digits()
    return torch.tensor(found.data / 16.0, dtype=torch.float32), torch.tensor(found.target)


def _train_vae(
    vae: ProductVAE, images: Tensor, steps: int, batch: int, g: torch.Generator, report: Report
) -> None:
    optimizer = torch.optim.Adam(vae.parameters(), lr=2e-3)
    warm = int(WARM * steps)
    for step in range(steps):
        x = images[torch.randint(0, len(images), (batch,), generator=g)]
        if step == warm:
            with torch.no_grad():
                start = vae.vectors(images[torch.randperm(len(images), generator=g)[: vae.codebook]])
                vae.book[:, : len(start)] = start.transpose(0, 1)
        e = vae.vectors(x)
        quantised, extra = e, 0.0
        if step >= warm:
            chosen = vae.book[torch.arange(vae.codes), vae.nearest(e)]
            quantised = e + (chosen - e).detach()  # straight through
            extra = (chosen - e.detach()).square().mean() + COMMITMENT * (e - chosen.detach()).square().mean()
        logits = vae.decoder(quantised.flatten(1))
        loss = nn.functional.binary_cross_entropy_with_logits(logits, x) + extra
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        report(step + 1, float(loss.detach()))


def _train_prior(
    prior: MaskedMLP, z: Tensor, steps: int, batch: int, g: torch.Generator, report: Report
) -> None:
    optimizer = torch.optim.AdamW(prior.parameters(), lr=2e-3, weight_decay=0.05)
    for step in range(steps):
        part = z[torch.randint(0, len(z), (batch,), generator=g)]
        loss = -path_log_prob(prior, _raster(part)).mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        report(step + 1, float(loss.detach()))


def _raster(z: Tensor) -> Path:
    sites = torch.arange(z.shape[1], device=z.device)
    return Path(z, sites.expand_as(z).contiguous(), sites)


def _classifier(images: Tensor, labels: Tensor) -> tuple[Tensor, Tensor]:
    from sklearn.linear_model import LogisticRegression

    fitted = LogisticRegression(max_iter=300).fit(images.numpy(), labels.numpy())
    weight = torch.tensor(fitted.coef_, dtype=torch.float32)
    bias = torch.tensor(fitted.intercept_, dtype=torch.float32)
    if len(weight) == 1:  # two classes share one row of coefficients
        weight, bias = torch.cat([-weight, weight]) / 2, torch.cat([-bias, bias]) / 2
    # A row for each label up to the largest: column c is class c, and what has no images is never found.
    known = torch.tensor(fitted.classes_).long()
    count = int(known.max()) + 1
    every = torch.zeros(count, images.shape[1]).index_copy_(0, known, weight)
    return every, torch.full((count,), -torch.inf).index_copy_(0, known, bias)


def side(pixels: int) -> int:
    """The side of a square image.

    Raises:
        ValueError: it is not square.
    """
    found = math.isqrt(pixels)
    if found * found != pixels:
        raise ValueError(f"{pixels} pixels make no square image")
    return found
