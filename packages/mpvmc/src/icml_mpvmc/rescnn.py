"""The residual convolutional wavefunction of the paper's lattice experiments."""

from __future__ import annotations

import math

import torch
from jaxtyping import Float, Shaped
from torch import Tensor, nn
from torch.nn import functional as F

from icml_mpvmc.models import is_low

BLOCK = 256
"""Rows that are evaluated at once without gradients: their fields stay in the cache."""


class PeriodicConv(nn.Module):
    """A convolution of fields [rows, height, width, channels] on a torus.

    Channels lie last, where the normalisation and the CPU's convolutions want them.
    """

    def __init__(
        self,
        channels: int,
        filters: int,
        kernel: tuple[int, int],
        generator: torch.Generator,
        dtype: torch.dtype,
    ) -> None:
        super().__init__()
        fan_in = channels * math.prod(kernel)
        shape = (filters, channels, *kernel)
        first = torch.randn(shape, generator=generator, dtype=torch.float64) / math.sqrt(fan_in)
        self.weight = nn.Parameter(first.to(dtype))
        self.bias = nn.Parameter(torch.zeros(filters, dtype=dtype))

    def forward(
        self, field: Float[Tensor, "rows height width channels"]
    ) -> Float[Tensor, "rows height width filters"]:
        """Wrap the edges, and convolve."""
        reach = self.weight.shape[2] // 2, self.weight.shape[3] // 2
        if torch.is_grad_enabled():
            field = _wrapped(_wrapped(field, 1, reach[0]), 2, reach[1])
        else:
            field = _wrapped_in_place(field, *reach)
        return F.conv2d(field.permute(0, 3, 1, 2), self.weight, self.bias).permute(0, 2, 3, 1)


class LayerNorm(nn.Module):
    """Normalises channels; statistics are float32 in low precision, the result too where it is ``wide``."""

    def __init__(self, channels: int, dtype: torch.dtype) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.ones(channels, dtype=dtype))
        self.bias = nn.Parameter(torch.zeros(channels, dtype=dtype))

    def forward(self, field: Tensor, wide: bool = False) -> Tensor:
        """(h - mean) / √(variance + 1e-6) · weight + bias, over the last axis."""
        weight, bias = self.weight, self.bias
        if wide:
            field, weight, bias = field.float(), weight.float(), bias.float()
        return F.layer_norm(field, weight.shape, weight, bias, 1e-6)


class ResidualBlock(nn.Module):
    """h + conv(GELU(conv(GELU(LayerNorm(h)))))."""

    def __init__(
        self, filters: int, kernel: tuple[int, int], generator: torch.Generator, dtype: torch.dtype
    ) -> None:
        super().__init__()
        self.norm = LayerNorm(filters, dtype)
        self.first = PeriodicConv(filters, filters, kernel, generator, dtype)
        self.second = PeriodicConv(filters, filters, kernel, generator, dtype)

    def forward(self, field: Tensor) -> Tensor:
        """The block, with its skip connection."""
        inner = self.first(F.gelu(self.norm(field), approximate="tanh"))
        return field + self.second(F.gelu(inner, approximate="tanh"))


class ResCNN(nn.Module):
    """log ψ: a convolution, residual blocks, a LayerNorm, and the sum over sites and filters.

    Args:
        shape: of the periodic lattice: (height, width), or (length,) for a chain.
        filters: channels.
        blocks: residual blocks.
        kernel: odd side of the convolutions.
        upcast_sums: in low precision keep the last normalisation and the sum over sites in float32.
        seed: of the first parameters.
        dtype: of the parameters.

    Raises:
        ValueError: a shape of other length, an even kernel, or a lattice smaller than the kernel.
    """

    def __init__(
        self,
        shape: tuple[int, ...],
        filters: int = 16,
        blocks: int = 4,
        *,
        kernel: int = 3,
        upcast_sums: bool = True,
        seed: int = 0,
        dtype: torch.dtype = torch.float64,
    ) -> None:
        super().__init__()
        if len(shape) not in (1, 2) or kernel % 2 == 0 or min(shape) < kernel:
            raise ValueError(
                f"shape={shape}, kernel={kernel}; expected one or two sides of at least the kernel, which "
                "is odd"
            )
        self.height, self.width = (1, shape[0]) if len(shape) == 1 else shape
        window = (1 if len(shape) == 1 else kernel, kernel)
        generator = torch.Generator().manual_seed(seed)
        self.upcast_sums = upcast_sums
        self.embed = PeriodicConv(1, filters, window, generator, dtype)
        self.blocks = nn.ModuleList(ResidualBlock(filters, window, generator, dtype) for _ in range(blocks))
        self.norm = LayerNorm(filters, dtype)

    def forward(self, x: Shaped[Tensor, "rows spins"]) -> Float[Tensor, " rows"]:
        """log ψ; in float32 where the parameters are of low precision and sums are upcast."""
        dtype = self.embed.weight.dtype
        if x.dim() != 2 or x.shape[1] != self.height * self.width:
            raise ValueError(f"x has shape {list(x.shape)}; expected [rows, {self.height * self.width}]")
        if len(x) > BLOCK and not torch.is_grad_enabled():
            return torch.cat([self(part) for part in x.split(BLOCK)])
        field = self.embed(x.to(dtype).reshape(-1, self.height, self.width, 1))
        for block in self.blocks:
            field = block(field)
        return self.norm(field, wide=self.upcast_sums and is_low(dtype)).sum((1, 2, 3))


def _wrapped(field: Tensor, axis: int, reach: int) -> Tensor:
    """The field with so many columns of either end repeated at the other."""
    if reach == 0:
        return field
    length = field.shape[axis]
    return torch.cat((field.narrow(axis, length - reach, reach), field, field.narrow(axis, 0, reach)), axis)


def _wrapped_in_place(field: Tensor, down: int, across: int) -> Tensor:
    """Both axes at once, with one copy of the field; not differentiable."""
    rows, height, width, channels = field.shape
    out = field.new_empty(rows, height + 2 * down, width + 2 * across, channels)
    inner = out.narrow(2, across, width)
    inner.narrow(1, down, height).copy_(field)
    if down:
        inner.narrow(1, 0, down).copy_(field.narrow(1, height - down, down))
        inner.narrow(1, down + height, down).copy_(field.narrow(1, 0, down))
    if across:
        out.narrow(2, 0, across).copy_(out.narrow(2, width, across))
        out.narrow(2, across + width, across).copy_(out.narrow(2, across, across))
    return out
