"""The corrector Phi of arXiv 2605.24041: a small U-Net that reads the input and the current estimate.

Level i has c 2^i channels: two times convolution of width 3, norm, GELU; then the maximum of pairs. The
output layer starts near 0, so that refinement starts near the identity map.
"""

from __future__ import annotations

import math
import warnings
from collections.abc import Sequence
from typing import Any

import torch
import torch.nn.functional as F
from icml_core.randomness import seeded
from jaxtyping import Float
from torch import Tensor, nn

from icml_irno.boundaries import pad, pad_axis, per_axis, upsample

NORMS = ("layer", "group", "batch")
OUTPUT_GAIN = 0.1  # of Xavier's initialisation of the last layer
CONVOLUTIONS = {1: nn.Conv1d, 2: nn.Conv2d, 3: nn.Conv3d}
_POOLS = {1: F.max_pool1d, 2: F.max_pool2d, 3: F.max_pool3d}


class Refiner(nn.Module):
    """U-Net [batch, in + out, *space] -> [batch, out, *space] for one to three spatial axes.

    Sizes that 2^depth does not divide are padded by the axis's own rule, and cropped afterwards.

    Args:
        in_channels: of the operator's input x.
        out_channels: of its output h.
        base_channels: c, of the first level.
        depth: number of halvings.
        padding: ``"circular"``, ``"zeros"``, ``"reflect"``, or one of these for each axis.
        norm: ``"layer"`` over channels at each point (the paper's), ``"group"``, or ``"batch"``, whose
            statistics mix iterates.
        dims: spatial axes.
        upsampling: ``"bilinear"`` with aligned corners, as published, or ``"periodic"``, which keeps shifts
            along circular axes.
        seed: of the initial weights.

    Raises:
        ValueError: an option out of range; at a call, channels that differ or a size below 2^depth.

    Example:
        >>> Refiner(1, 1, base_channels=4, depth=2, dims=1)(torch.zeros(2, 2, 16)).shape
        torch.Size([2, 1, 16])
    """

    def __init__(
        self,
        in_channels: int,
        out_channels: int,
        base_channels: int = 16,
        depth: int = 4,
        padding: str | Sequence[str] = "circular",
        norm: str = "layer",
        dims: int = 2,
        upsampling: str = "bilinear",
        seed: int = 0,
    ) -> None:
        super().__init__()
        check_refiner_options(in_channels, out_channels, base_channels, depth, dims)
        if norm not in NORMS:
            raise ValueError(f"norm={norm!r}; expected one of {', '.join(NORMS)}")
        if upsampling not in ("bilinear", "periodic"):
            raise ValueError(f"upsampling={upsampling!r}; expected 'bilinear' or 'periodic'")
        if norm == "batch":
            warnings.warn(
                "norm='batch' mixes the statistics of different iterates, which share their weights; "
                "the paper's norm is 'layer'",
                stacklevel=2,
            )
        self.in_channels, self.out_channels = in_channels, out_channels
        self.depth, self.dims, self.upsampling = depth, dims, upsampling
        self.padding = per_axis(padding, dims)
        self.config: dict[str, Any] = {
            "kind": "unet", "in_channels": in_channels, "out_channels": out_channels,
            "base_channels": base_channels, "depth": depth, "padding": list(self.padding), "norm": norm,
            "dims": dims, "upsampling": upsampling,
        }  # fmt: skip
        convolution = CONVOLUTIONS[dims]

        def block(inner: int, outer: int) -> DoubleBlock:
            return DoubleBlock(inner, outer, self.padding, norm, dims)

        widths = [base_channels * 2**i for i in range(depth + 1)]
        with seeded(seed):
            first = in_channels + out_channels
            self.encoder = nn.ModuleList(
                block(a, b) for a, b in zip([first, *widths], widths[:-1], strict=False)
            )
            self.bottleneck = block(widths[-2] if depth else first, widths[-1])
            self.halvings = nn.ModuleList(convolution(2 * w, w, 3) for w in reversed(widths[:-1]))
            self.decoder = nn.ModuleList(block(2 * w, w) for w in reversed(widths[:-1]))
            self.output = small_output(widths[0], out_channels, dims)

    def forward(self, xh: Float[Tensor, "batch in_out *space"]) -> Float[Tensor, "batch out *space"]:
        """The correction of h, from [x, h] side by side."""
        check_refiner_input(xh, self.in_channels + self.out_channels, self.dims)
        size, unit = xh.shape[2:], 2**self.depth
        if min(size) < unit:
            raise ValueError(
                f"fields of {list(size)} points are smaller than 2^depth = {unit}; lower depth={self.depth}"
            )
        missing = [-n % unit for n in size]
        for axis, lacking in enumerate(missing):
            xh = pad_axis(xh, axis, 0, lacking, self.padding[axis])
        skips = []
        for block in self.encoder:
            xh = block(xh)
            skips.append(xh)
            xh = _POOLS[self.dims](xh, 2)
        xh = self.bottleneck(xh)
        ones = [1] * self.dims
        for halving, block, skip in zip(self.halvings, self.decoder, reversed(skips), strict=True):
            xh = upsample(xh, self.padding, self.upsampling == "periodic")
            xh = block(torch.cat([halving(pad(xh, ones, self.padding)), skip], 1))
        xh = self.output(xh)
        return xh[(..., *(slice(0, n) for n in size))] if any(missing) else xh


class DoubleBlock(nn.Module):
    """Twice: convolution of width 3, norm, GELU.

    Where the norm acts at each point alone, circular axes are padded once by two for both convolutions
    instead of twice by one: the halo of the second is then computed, which is the same, and one copy is
    saved.
    """

    def __init__(self, inner: int, outer: int, padding: Sequence[str], norm: str, dims: int) -> None:
        super().__init__()
        self.padding = tuple(padding)
        once = [mode == "circular" and norm == "layer" for mode in padding]
        self.first_widths = [2 if o else 1 for o in once]
        self.second_widths = [0 if o else 1 for o in once]
        convolution = CONVOLUTIONS[dims]
        self.first, self.second = convolution(inner, outer, 3), convolution(outer, outer, 3)
        self.first_norm, self.second_norm = make_norm(norm, outer, dims), make_norm(norm, outer, dims)

    def forward(self, x: Float[Tensor, "batch inner *space"]) -> Float[Tensor, "batch outer *space"]:
        """The features of a level."""
        x = F.gelu(self.first_norm(self.first(pad(x, self.first_widths, self.padding))))
        return F.gelu(self.second_norm(self.second(pad(x, self.second_widths, self.padding))))


class ChannelLayerNorm(nn.Module):
    """LayerNorm over the channels at each point."""

    def __init__(self, channels: int) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.ones(channels))
        self.bias = nn.Parameter(torch.zeros(channels))

    def forward(self, x: Float[Tensor, "batch channels *space"]) -> Float[Tensor, "batch channels *space"]:
        """Zero mean and unit variance over channels, then scale and shift."""
        last = F.layer_norm(x.movedim(1, -1), self.weight.shape, self.weight, self.bias)
        return last.movedim(-1, 1)


def make_norm(norm: str, channels: int, dims: int) -> nn.Module:
    """The norm of that name."""
    if norm == "layer":
        return ChannelLayerNorm(channels)
    if norm == "group":
        return nn.GroupNorm(math.gcd(8, channels), channels)
    return {1: nn.BatchNorm1d, 2: nn.BatchNorm2d, 3: nn.BatchNorm3d}[dims](channels)


def small_output(inner: int, outer: int, dims: int) -> nn.Module:
    """The last layer, of width 1: Xavier-uniform weights times 0.1, no bias to begin with."""
    layer = CONVOLUTIONS[dims](inner, outer, 1)
    nn.init.xavier_uniform_(layer.weight, gain=OUTPUT_GAIN)
    nn.init.zeros_(layer.bias)
    return layer


def check_refiner_options(
    in_channels: int, out_channels: int, base_channels: int, depth: int, dims: int
) -> None:
    """Refuse sizes that make no network.

    Raises:
        ValueError: with the sizes.
    """
    if dims not in CONVOLUTIONS:
        raise ValueError(f"dims={dims}; expected 1, 2 or 3 spatial axes")
    if min(in_channels, out_channels, base_channels) < 1 or depth < 0:
        raise ValueError(
            f"in_channels={in_channels}, out_channels={out_channels}, base_channels={base_channels} must be "
            f"positive, and depth={depth} at least 0"
        )


def check_refiner_input(xh: Tensor, channels: int, dims: int) -> None:
    """Refuse another number of channels or axes.

    Raises:
        ValueError: with both shapes.
    """
    if xh.dim() != 2 + dims or xh.shape[1] != channels:
        raise ValueError(
            f"the refiner got {list(xh.shape)}; expected [batch, {channels} channels of x and h, *space] "
            f"with {dims} spatial axes"
        )
