"""Spectral convolution: a truncated Fourier transform, a matrix of channels a mode, and the way back.

Fourier neural operators (arXiv 2010.08895) keep few modes. So the transforms are products with the few rows
of the Fourier matrix that are kept, axis by axis: they run at the speed of BLAS, need no sizes that are
powers of two, and neither a full spectrum nor one filled with zeros is ever written. Where many modes are
kept, fast transforms take their place. Everything is real: complex numbers are pairs in a last axis.
"""

from __future__ import annotations

import math
from functools import lru_cache

import torch
from jaxtyping import Float
from torch import Tensor

from icml_kernels.spectral.mode_product import mode_product

FAST_FROM = 6.0  # times log2 of the size: modes from which a fast transform is taken


def spectral_conv(
    spectrum: Tensor,
    weight: Float[Tensor, "in out *modes 2"],
    corners: tuple[int, ...] | None = None,
) -> Float[Tensor, "batch out *modes 2"]:
    """The kept modes of a convolution: y[b, o, k] = sum_i x[b, i, k] w[i, o, k].

    Args:
        spectrum: [batch, in, *half] complex, as ``torch.fft.rfftn`` gives it, with ``corners``; or the kept
            modes alone [batch, in, *modes, 2], as :func:`truncated_rfft` gives them.
        weight: of each mode, in the order of the kept ones: along every axis but the last from the most
            negative frequency on, along the last from 0 on.
        corners: sizes of the axes of the full transform's field, where ``spectrum`` is one; what is kept of
            it is gathered from its corners.

    Returns:
        the kept modes alone.

    Raises:
        TypeError: for dtypes other than float32, float64 and their complex ones.
        ValueError: for shapes that do not fit together.

    Example:
        >>> x = torch.randn(1, 2, 8, 8)
        >>> y = spectral_conv(truncated_rfft(x, (3, 2)), torch.randn(2, 5, 3, 2, 2))
        >>> truncated_irfft(y, (8, 8)).shape
        torch.Size([1, 5, 8, 8])
    """
    modes = tuple(weight.shape[2:-1])
    if corners is not None:
        spectrum = corner_modes(spectrum, corners, modes)
    if tuple(spectrum.shape[2:]) != (*modes, 2):
        raise ValueError(
            f"spectrum has shape {list(spectrum.shape)}; expected [batch, in, {', '.join(map(str, modes))}, "
            f"2] for weights of shape {list(weight.shape)}, or a full transform and corners="
        )
    product = mode_product(spectrum.flatten(2, -2), weight.flatten(2, -2))
    return product.view(product.shape[0], product.shape[1], *modes, 2)


def corner_modes(
    spectrum: Tensor, shape: tuple[int, ...], modes: tuple[int, ...]
) -> Float[Tensor, "batch channels *modes 2"]:
    """The kept modes of a full real transform, as pairs.

    Raises:
        TypeError: the spectrum is not complex.
        ValueError: more modes are kept than there are, or the spectrum is not that of fields of this shape.
    """
    half = (*shape[:-1], shape[-1] // 2 + 1)
    if not spectrum.is_complex():
        raise TypeError(
            f"spectrum has dtype {spectrum.dtype}; expected a complex one, as torch.fft.rfftn gives"
        )
    if tuple(spectrum.shape[2:]) != half:
        raise ValueError(
            f"spectrum has shape {list(spectrum.shape)}; expected [batch, channels, *{list(half)}]"
        )
    check_modes(shape, modes)
    pairs = torch.view_as_real(spectrum)
    for axis, kept in enumerate(modes[:-1]):
        low = kept // 2
        parts = (pairs.narrow(2 + axis, shape[axis] - low, low), pairs.narrow(2 + axis, 0, kept - low))
        pairs = torch.cat(parts, 2 + axis)
    return pairs.narrow(1 + len(modes), 0, modes[-1])


def truncated_rfft(
    x: Float[Tensor, "batch channels *space"], modes: tuple[int, ...]
) -> Float[Tensor, "batch channels *modes 2"]:
    """The kept modes of a real transform, divided by the number of points (``norm="forward"``).

    Raises:
        TypeError: x is not float32 or float64.
        ValueError: other numbers of axes, or more modes than there are.
    """
    shape = tuple(x.shape[2:])
    if x.dtype not in (torch.float32, torch.float64):
        raise TypeError(f"x has dtype {x.dtype}; expected float32 or float64")
    check_modes(shape, modes)
    if not _by_products(shape, modes):
        axes = tuple(range(2, x.dim()))
        return corner_modes(torch.fft.rfftn(x, dim=axes, norm="forward"), shape, modes)
    with torch.autocast(x.device.type, enabled=False):
        found = x @ _last_forward(shape[-1], modes[-1], x.dtype, x.device)  # pairs along the last axis
        for axis in range(len(shape) - 2, -1, -1):
            found = _along(found, axis, _complex_forward(shape[axis], modes[axis], x.dtype, x.device))
    return found.view(*found.shape[:-1], modes[-1], 2)


def truncated_irfft(
    pairs: Float[Tensor, "batch channels *modes 2"], shape: tuple[int, ...]
) -> Float[Tensor, "batch channels *space"]:
    """The field of kept modes, all others being 0 (``norm="forward"``: no division).

    As in a real transform, the imaginary part of columns that stand for one counts for nothing.

    Raises:
        TypeError: pairs are not float32 or float64.
        ValueError: other numbers of axes, or more modes than the shape has.
    """
    modes = tuple(pairs.shape[2:-1])
    if pairs.dtype not in (torch.float32, torch.float64):
        raise TypeError(f"pairs has dtype {pairs.dtype}; expected float32 or float64")
    check_modes(shape, modes)
    if not _by_products(shape, modes):
        return _irfft_filled(pairs, shape, modes)
    with torch.autocast(pairs.device.type, enabled=False):
        found = pairs.flatten(-2)
        for axis in range(len(shape) - 1):
            found = _along(
                found, axis, _complex_backward(shape[axis], modes[axis], pairs.dtype, pairs.device)
            )
        return found @ _last_backward(shape[-1], modes[-1], pairs.dtype, pairs.device)


def check_modes(shape: tuple[int, ...], modes: tuple[int, ...]) -> None:
    """Refuse more modes than a field of this shape has.

    Raises:
        ValueError: with both.
    """
    half = (*shape[:-1], shape[-1] // 2 + 1) if shape else ()
    if len(shape) != len(modes) or any(m < 1 or m > n for m, n in zip(modes, half, strict=True)):
        raise ValueError(f"modes={tuple(modes)} cannot be kept of fields {tuple(shape)}, which have {half}")


def _by_products(shape: tuple[int, ...], modes: tuple[int, ...]) -> bool:
    return all(m <= FAST_FROM * max(1.0, math.log2(n)) for n, m in zip(shape, modes, strict=True))


def _along(found: Tensor, axis: int, matrix: Tensor) -> Tensor:
    """Multiply by a complex matrix [2, kept, size] along a spatial axis; pairs lie along the last one."""
    moved = found.movedim(2 + axis, -2)  # [..., size, pairs]
    kept = matrix.shape[1]
    both = matrix.flatten(0, 1) @ moved
    re, im = both[..., :kept, :], both[..., kept:, :].unflatten(-1, (-1, 2))
    turned = torch.stack([-im[..., 1], im[..., 0]], -1).flatten(-2)
    return (re + turned).movedim(-2, 2 + axis)


def _irfft_filled(pairs: Tensor, shape: tuple[int, ...], modes: tuple[int, ...]) -> Tensor:
    full = pairs
    for axis, kept in enumerate(modes[:-1]):
        low = kept // 2
        negative, positive = full.narrow(2 + axis, 0, low), full.narrow(2 + axis, low, kept - low)
        gap = list(full.shape)
        gap[2 + axis] = shape[axis] - kept
        full = torch.cat([positive, full.new_zeros(gap), negative], 2 + axis)
    spectrum = torch.view_as_complex(full.contiguous())
    return torch.fft.irfftn(spectrum, s=shape, dim=tuple(range(2, 2 + len(shape))), norm="forward")


@lru_cache(maxsize=256)
def _last_forward(size: int, kept: int, dtype: torch.dtype, device: torch.device) -> Tensor:
    """[size, 2 kept]: cosines and negative sines side by side, over the size."""
    with torch.inference_mode(False):  # what is kept must serve a backward pass later
        angle = _angles(torch.arange(size), torch.arange(kept), size)
        return (torch.stack([angle.cos(), -angle.sin()], -1).flatten(-2) / size).to(device, dtype)


@lru_cache(maxsize=256)
def _last_backward(size: int, kept: int, dtype: torch.dtype, device: torch.device) -> Tensor:
    """[2 kept, size]: a column that stands for two counts twice."""
    with torch.inference_mode(False):
        mode = torch.arange(kept)
        times = torch.where((mode == 0) | (2 * mode == size), 1.0, 2.0).double()[:, None]
        angle = _angles(mode, torch.arange(size), size)
        sine = torch.where(((mode == 0) | (2 * mode == size))[:, None], 0.0, -angle.sin())
        return (torch.stack([times * angle.cos(), times * sine], 1).flatten(0, 1)).to(device, dtype)


@lru_cache(maxsize=256)
def _complex_forward(size: int, kept: int, dtype: torch.dtype, device: torch.device) -> Tensor:
    """[2, kept, size]: real and imaginary parts of exp(-2 pi i k s / size) / size."""
    with torch.inference_mode(False):
        angle = _angles(_centred(kept), torch.arange(size), size)
        return (torch.stack([angle.cos(), -angle.sin()]) / size).to(device, dtype)


@lru_cache(maxsize=256)
def _complex_backward(size: int, kept: int, dtype: torch.dtype, device: torch.device) -> Tensor:
    """[2, size, kept]: of exp(2 pi i k s / size)."""
    with torch.inference_mode(False):
        angle = _angles(torch.arange(size), _centred(kept), size)
        return torch.stack([angle.cos(), angle.sin()]).to(device, dtype)


def _centred(kept: int) -> Tensor:
    return torch.arange(kept) - kept // 2


def _angles(rows: Tensor, columns: Tensor, size: int) -> Tensor:
    """2 pi r c / size in float64, with the product reduced first, so that no digit is lost."""
    return ((rows[:, None] * columns[None, :]) % size).double() * (2 * math.pi / size)
