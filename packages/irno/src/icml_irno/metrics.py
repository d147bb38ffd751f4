"""Errors of fields as the Well reports them: VRMSE, and squared errors in bands of wave number.

Definitions follow the package the-well (``VRMSE``, ``binned_spectral_mse``); channels are second here.
"""

from __future__ import annotations

import math
from functools import lru_cache

import torch
from jaxtyping import Bool, Float
from torch import Tensor

EPS = 1e-7
BANDS = ("low", "mid", "high")


def vrmse(
    pred: Float[Tensor, "batch channels *space"],
    target: Float[Tensor, "batch channels *space"],
    eps: float = EPS,
    reduction: str = "none",
) -> Tensor:
    """sqrt(mean (pred - target)^2 / (var target + eps)) over space; 1 is as good as the mean of the target.

    The variance has the divisor n - 1. With ``reduction="mean"`` the root is taken first, then the mean over
    channels, then over samples: a mean of ratios, in which each sample counts alike.

    Args:
        pred, target: of one shape.
        eps: keeps a constant target finite; see :func:`constant_channels`.
        reduction: ``"none"`` for [batch, channels], ``"mean"`` for one number.

    Raises:
        ValueError: shapes that differ, or another reduction.

    Example:
        >>> target = torch.tensor([[[-1.0, 0.0, 1.0]]])
        >>> vrmse(target + 1, target)
        tensor([[1.0000]])
    """
    _require_alike(pred, target)
    check_reduction(reduction)
    difference = (pred - target).flatten(2).square().mean(2)
    values = torch.sqrt(difference / (target.flatten(2).var(2) + eps))
    return values if reduction == "none" else values.mean(1).mean(0)


def varying(
    target: Float[Tensor, "batch channels *space"], eps: float = EPS
) -> Bool[Tensor, "batch channels"]:
    """Where a channel of a sample varies (variance from eps on), so that its VRMSE says something."""
    return target.flatten(2).var(2) >= eps


def mean_over_varying(
    values: Float[Tensor, "batch channels"], varies: Bool[Tensor, "batch channels"]
) -> Float[Tensor, " batch"]:
    """Mean of each sample over the channels that vary in all samples; NaN where none does."""
    return values[:, varies.all(0)].mean(1)


def constant_channels(target: Float[Tensor, "batch channels *space"], eps: float = EPS) -> list[int]:
    """Channels in which some sample is constant (variance below eps): their VRMSE says nothing."""
    return (~varying(target, eps)).any(0).nonzero().flatten().tolist()


def mean_vrmse(pred: Tensor, target: Tensor, eps: float = EPS) -> float:
    """Mean VRMSE over samples and the channels that vary; NaN where none does."""
    return float(mean_over_varying(vrmse(pred, target, eps), varying(target, eps)).mean())


def band_edges(shape: tuple[int, ...]) -> Float[Tensor, " 4"]:
    """Edges of the three bands in radians a sample: 0, then logarithmic from 2 pi / N up to pi sqrt(d).

    The last edge lies just beyond the corner of d axes, so that every frequency has a band.
    """
    top = math.pi * math.sqrt(len(shape)) + 1e-6
    edges = torch.logspace(math.log10(2 * math.pi / max(shape)), math.log10(top), 4)
    edges[0] = 0.0
    return edges


def band_mse(
    pred: Float[Tensor, "batch channels *space"],
    target: Float[Tensor, "batch channels *space"],
    edges: Float[Tensor, " edges"] | None = None,
) -> Float[Tensor, "batch channels bands"]:
    """Mean squared error within each band of radial wave number; all bands add up to the whole (Parseval).

    Frequencies from the last edge on belong to no band.

    Raises:
        ValueError: shapes that differ.
    """
    _require_alike(pred, target)
    return band_energy(pred - target, edges)


def band_energy(
    field: Float[Tensor, "batch channels *space"], edges: Float[Tensor, " edges"] | None = None
) -> Float[Tensor, "batch channels bands"]:
    """Mean square of the field within each band."""
    shape = tuple(field.shape[2:])
    natural = torch.float64 if field.dtype == torch.float64 else torch.float32
    power = torch.fft.fftn(field.to(natural), dim=tuple(range(2, field.dim()))).abs().square().flatten(2)
    edges = band_edges(shape) if edges is None else edges
    member = _membership(shape, tuple(edges.tolist())).to(power)
    return power @ member / math.prod(shape) ** 2


@lru_cache(maxsize=64)
def _membership(shape: tuple[int, ...], edges: tuple[float, ...]) -> Tensor:
    """[points, bands] of 0 and 1; in float32, as the Well bins."""
    with torch.inference_mode(False):  # what is kept must serve a backward pass later
        total = torch.zeros(shape)
        for axis, n in enumerate(shape):
            wave = (2 * math.pi * torch.fft.fftfreq(n)).view(-1, *[1] * (len(shape) - 1 - axis))
            total = total + wave**2
        place = torch.bucketize(torch.sqrt(total).flatten(), torch.tensor(edges), right=True) - 1
        return torch.nn.functional.one_hot(place, len(edges))[:, :-1].float()


def check_reduction(reduction: str) -> None:
    """Refuse another reduction than the two.

    Raises:
        ValueError: names them.
    """
    if reduction not in ("mean", "none"):
        raise ValueError(f"reduction={reduction!r}; expected 'mean' or 'none'")


def _require_alike(pred: Tensor, target: Tensor) -> None:
    if pred.shape != target.shape or pred.dim() < 3:
        raise ValueError(
            f"prediction of shape {list(pred.shape)} and target of shape {list(target.shape)}; expected both "
            "[batch, channels, *space]"
        )
