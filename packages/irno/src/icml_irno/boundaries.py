"""What lies beyond the border of a field, axis by axis: padding, upsampling, extension for a transform.

An axis is ``circular`` (periodic), ``reflect`` (a wall that mirrors) or ``zeros``.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
import torch.nn.functional as F
from torch import Tensor

MODES = ("circular", "zeros", "reflect")
_TORCH_MODE = {"circular": "circular", "reflect": "reflect", "zeros": "constant"}
_INTERPOLATION = {1: "linear", 2: "bilinear", 3: "trilinear"}


def per_axis(padding: str | Sequence[str], dims: int) -> tuple[str, ...]:
    """One mode an axis.

    Raises:
        ValueError: an unknown mode, or another number of them than axes.
    """
    modes = (padding,) * dims if isinstance(padding, str) else tuple(padding)
    if len(modes) != dims or any(m not in MODES for m in modes):
        raise ValueError(
            f"padding={padding!r}; expected one of {', '.join(MODES)}, or {dims} of them, one an axis"
        )
    return modes


def pad(x: Tensor, widths: Sequence[int], modes: Sequence[str]) -> Tensor:
    """Pad both ends of each spatial axis by its width."""
    if len(set(modes)) == 1 and all(
        _torch_can(n, w, modes[0]) for n, w in zip(x.shape[2:], widths, strict=True)
    ):
        flat = [w for width in reversed(widths) for w in (width, width)]
        return F.pad(x, flat, _TORCH_MODE[modes[0]]) if any(widths) else x
    for axis, (width, mode) in enumerate(zip(widths, modes, strict=True)):
        x = pad_axis(x, axis, width, width, mode)
    return x


def pad_axis(x: Tensor, axis: int, before: int, after: int, mode: str) -> Tensor:
    """Pad one spatial axis; any width of any mode, also beyond the size."""
    if before == after == 0:
        return x
    n = x.shape[2 + axis]
    if mode == "zeros":
        return F.pad(x, [0] * (2 * (x.dim() - 3 - axis)) + [before, after])
    place = torch.arange(-before, n + after, device=x.device)
    if mode == "circular":
        place = place % n
    else:
        period = max(1, 2 * (n - 1))
        place = place % period
        place = torch.where(place >= n, period - place, place)
    return x.index_select(2 + axis, place)


def upsample(x: Tensor, modes: Sequence[str], periodic: bool) -> Tensor:
    """Twice the size along each axis, by linear interpolation.

    With ``periodic`` an axis that is circular takes 3/4 of the nearest cell and 1/4 of the next, around the
    border, so that a shift of the input is a shift by twice as much of the output. Otherwise, and along other
    axes, the first and last points stay where they are (``align_corners=True``, as published), which breaks
    that.
    """
    dims = x.dim() - 2
    if not periodic or "circular" not in modes:
        return F.interpolate(x, scale_factor=2, mode=_INTERPOLATION[dims], align_corners=True)
    for axis, mode in enumerate(modes):
        if mode == "circular":
            at = 2 + axis
            mixed = [0.75 * x + 0.25 * x.roll(shift, at) for shift in (1, -1)]
            x = torch.stack(mixed, at + 1).flatten(at, at + 1)
        else:
            size = list(x.shape[2:])
            size[axis] *= 2
            x = F.interpolate(x, size=size, mode=_INTERPOLATION[dims], align_corners=True)
    return x


def extend(x: Tensor, modes: Sequence[str] | None) -> Tensor:
    """Make a field periodic along axes with walls: the mirror image follows it. Periodic axes stay."""
    for axis, mode in enumerate(modes or ()):
        if mode != "circular":
            x = torch.cat([x, x.flip(2 + axis)], 2 + axis)
    return x


def _torch_can(size: int, width: int, mode: str) -> bool:
    return width <= size if mode == "circular" else width < size or mode == "zeros"
