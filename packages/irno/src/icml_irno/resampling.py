"""Fields on another grid of the same domain, through their Fourier coefficients."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from jaxtyping import Float
from torch import Tensor


def spectral_resample(
    x: Float[Tensor, "batch channels *space"], shape: Sequence[int], modes: Sequence[str] | None = None
) -> Float[Tensor, "batch channels *new"]:
    """The trigonometric interpolant of x on a grid of ``shape``; frequencies that it lacks are dropped.

    On an axis with walls x is mirrored first; its points are then taken as centres of cells. The Nyquist
    coefficient of an even size is shared between both its frequencies when the grid grows, and when it
    shrinks their sum is kept, which is what sampling the interpolant gives. A field without that frequency
    comes back up to rounding.

    Args:
        x: a real field.
        shape: the new sizes.
        modes: ``"circular"`` (all axes by default), ``"reflect"`` or ``"zeros"`` for each axis.

    Raises:
        ValueError: another number of sizes than axes, or one below 1.
        TypeError: a field that is not real and floating.

    Example:
        >>> spectral_resample(torch.tensor([[[1.0, 0.0, -1.0, 0.0]]]), (2,))
        tensor([[[ 1., -1.]]])
    """
    if len(shape) != x.dim() - 2 or min(shape) < 1:
        raise ValueError(
            f"shape={tuple(shape)}; expected {x.dim() - 2} positive sizes for a field {list(x.shape)}"
        )
    if not x.is_floating_point():
        raise TypeError(f"the field has dtype {x.dtype}; expected a real floating one")
    natural = torch.float64 if x.dtype == torch.float64 else torch.float32
    result = x.to(natural)
    for axis, size in enumerate(shape):
        mode = "circular" if modes is None else modes[axis]
        result = _along(result, 2 + axis, size, mode)
    return result.to(x.dtype)


def _along(x: Tensor, axis: int, size: int, mode: str) -> Tensor:
    n = x.shape[axis]
    if n == size:
        return x
    if mode == "circular":
        return _periodic(x, axis, size)
    # Mirrored about the edge of the last cell: centres (i + 1/2) / n of the half turn into those of the
    # new grid by a shift of half a cell of each grid.
    doubled = torch.cat([x, x.flip(axis)], axis)
    shift = 0.5 / (2 * size) - 0.5 / (2 * n)
    return _periodic(doubled, axis, 2 * size, shift).narrow(axis, 0, size)


def _periodic(x: Tensor, axis: int, size: int, shift: float = 0.0) -> Tensor:
    """New points at j / size + shift of the period."""
    n = x.shape[axis]
    spectrum = torch.fft.rfft(x, dim=axis, norm="forward")
    least = min(n, size)
    kept = spectrum.narrow(axis, 0, least // 2 + 1).clone()
    if shift:
        frequency = torch.arange(least // 2 + 1, device=x.device, dtype=x.dtype)
        angle = 2 * torch.pi * shift * frequency
        turn = torch.complex(torch.cos(angle), torch.sin(angle))
        kept = kept * turn.view(*(-1 if a == axis else 1 for a in range(x.dim())))
    if least % 2 == 0:
        last = kept.narrow(axis, least // 2, 1)
        if size > n:
            last.mul_(0.5)  # one real cosine becomes a pair of frequencies
        elif size < n:
            last.copy_(2 * last.real)  # and a pair, seen from the new points, becomes one
    return torch.fft.irfft(kept, n=size, dim=axis, norm="forward")
