"""Other correctors with the U-Net's signature: ResNet, ConvNeXt, FNO (arXiv 2605.24041 tries each)."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch.nn.functional as F
from icml_core.randomness import seeded
from jaxtyping import Float
from torch import Tensor, nn

from icml_irno.boundaries import pad, per_axis
from icml_irno.fno import FNO
from icml_irno.refiner import (
    CONVOLUTIONS,
    OUTPUT_GAIN,
    ChannelLayerNorm,
    DoubleBlock,
    Refiner,
    check_refiner_input,
    check_refiner_options,
    small_output,
)


class ResNetRefiner(nn.Module):
    """``depth`` residual double blocks at full resolution.

    Args:
        in_channels, out_channels, base_channels, depth, padding, norm, dims, seed: as of ``Refiner``.
    """

    def __init__(
        self,
        in_channels: int,
        out_channels: int,
        base_channels: int = 32,
        depth: int = 4,
        padding: str | Sequence[str] = "circular",
        norm: str = "layer",
        dims: int = 2,
        seed: int = 0,
    ) -> None:
        super().__init__()
        check_refiner_options(in_channels, out_channels, base_channels, depth, dims)
        self.in_channels, self.out_channels, self.dims = in_channels, out_channels, dims
        self.padding = per_axis(padding, dims)
        self.config: dict[str, Any] = {
            "kind": "resnet", "in_channels": in_channels, "out_channels": out_channels,
            "base_channels": base_channels, "depth": depth, "padding": list(self.padding), "norm": norm,
            "dims": dims,
        }  # fmt: skip
        with seeded(seed):
            self.input = CONVOLUTIONS[dims](in_channels + out_channels, base_channels, 1)
            self.blocks = nn.ModuleList(
                DoubleBlock(base_channels, base_channels, self.padding, norm, dims) for _ in range(depth)
            )
            self.output = small_output(base_channels, out_channels, dims)

    def forward(self, xh: Float[Tensor, "batch in_out *space"]) -> Float[Tensor, "batch out *space"]:
        """The correction of h, from [x, h] side by side."""
        check_refiner_input(xh, self.in_channels + self.out_channels, self.dims)
        x = self.input(xh)
        for block in self.blocks:
            x = x + block(x)
        return self.output(x)


class ConvNeXtRefiner(nn.Module):
    """``depth`` blocks of a depthwise convolution of width 7, norm, and a wide layer at each point.

    Args:
        in_channels, out_channels, base_channels, depth, padding, dims, seed: as of ``Refiner``.
    """

    WIDTH, EXPANSION = 7, 4

    def __init__(
        self,
        in_channels: int,
        out_channels: int,
        base_channels: int = 32,
        depth: int = 4,
        padding: str | Sequence[str] = "circular",
        dims: int = 2,
        seed: int = 0,
    ) -> None:
        super().__init__()
        check_refiner_options(in_channels, out_channels, base_channels, depth, dims)
        self.in_channels, self.out_channels, self.dims = in_channels, out_channels, dims
        self.padding = per_axis(padding, dims)
        self.config: dict[str, Any] = {
            "kind": "convnext", "in_channels": in_channels, "out_channels": out_channels,
            "base_channels": base_channels, "depth": depth, "padding": list(self.padding), "dims": dims,
        }  # fmt: skip
        convolution, c = CONVOLUTIONS[dims], base_channels
        with seeded(seed):
            self.input = convolution(in_channels + out_channels, c, 1)
            self.depthwise = nn.ModuleList(convolution(c, c, self.WIDTH, groups=c) for _ in range(depth))
            self.norms = nn.ModuleList(ChannelLayerNorm(c) for _ in range(depth))
            self.expand = nn.ModuleList(convolution(c, self.EXPANSION * c, 1) for _ in range(depth))
            self.contract = nn.ModuleList(convolution(self.EXPANSION * c, c, 1) for _ in range(depth))
            self.output = small_output(c, out_channels, dims)

    def forward(self, xh: Float[Tensor, "batch in_out *space"]) -> Float[Tensor, "batch out *space"]:
        """The correction of h, from [x, h] side by side."""
        check_refiner_input(xh, self.in_channels + self.out_channels, self.dims)
        x = self.input(xh)
        widths = [self.WIDTH // 2] * self.dims
        layers = zip(self.depthwise, self.norms, self.expand, self.contract, strict=True)
        for depthwise, norm, expand, contract in layers:
            x = x + contract(F.gelu(expand(norm(depthwise(pad(x, widths, self.padding))))))
        return self.output(x)


class FNORefiner(nn.Module):
    """A Fourier neural operator as corrector; periodic along every axis.

    Args:
        in_channels, out_channels, base_channels, dims, seed: as of ``Refiner``.
        modes: kept along each axis.
        depth: Fourier layers.
    """

    def __init__(
        self,
        in_channels: int,
        out_channels: int,
        base_channels: int = 24,
        depth: int = 4,
        modes: int = 16,
        dims: int = 2,
        seed: int = 0,
    ) -> None:
        super().__init__()
        check_refiner_options(in_channels, out_channels, base_channels, depth, dims)
        self.in_channels, self.out_channels, self.dims = in_channels, out_channels, dims
        self.config: dict[str, Any] = {
            "kind": "fno", "in_channels": in_channels, "out_channels": out_channels,
            "base_channels": base_channels, "depth": depth, "modes": modes, "dims": dims,
        }  # fmt: skip
        self.network = FNO(
            (modes,) * dims, in_channels + out_channels, out_channels, base_channels, depth,
            positional_embedding=None, seed=seed,
        )  # fmt: skip
        with seeded(seed):
            last = self.network.projection[-1]
            nn.init.xavier_uniform_(last.weight, gain=OUTPUT_GAIN)
            nn.init.zeros_(last.bias)

    def forward(self, xh: Float[Tensor, "batch in_out *space"]) -> Float[Tensor, "batch out *space"]:
        """The correction of h, from [x, h] side by side."""
        check_refiner_input(xh, self.in_channels + self.out_channels, self.dims)
        return self.network(xh)


BACKBONES = {"unet": Refiner, "resnet": ResNetRefiner, "convnext": ConvNeXtRefiner, "fno": FNORefiner}


def make_refiner(kind: str, in_channels: int, out_channels: int, **options: Any) -> nn.Module:
    """The corrector of that kind.

    Raises:
        ValueError: another kind than ``unet``, ``resnet``, ``convnext``, ``fno``.
        TypeError: options that it does not take.
    """
    if kind not in BACKBONES:
        raise ValueError(f"refiner={kind!r}; expected one of {', '.join(BACKBONES)}, or a module")
    return BACKBONES[kind](in_channels, out_channels, **options)
