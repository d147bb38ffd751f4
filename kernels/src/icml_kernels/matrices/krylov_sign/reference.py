"""An entry of the matrix sign on a Krylov space, and where it vanishes, in plain torch: the definition."""

from __future__ import annotations

import torch
from torch import Tensor

from icml_kernels.matrices.small_eigh import small_eigh

GRID = 14  # points of the first search for a change of sign, between the bound and its 1e-5th part
GRID_RATIO = 2.5
ROOT_ITERATIONS = 12  # where the host may not look at results
MOST_ITERATIONS = 80
SETTLED = 1e-10  # of |h|, or of the bracket
EPSILON = 1e-7  # that the matrix sign adds to the norm


def sign_entry(
    t: Tensor, a: Tensor, b: Tensor, overlap: Tensor, square: Tensor, coefficients: Tensor, lam: Tensor
) -> Tensor:
    """h at several multipliers of each matrix."""
    at = lam[:, :, None, None]
    mixed = a[:, :, None] * b[:, None, :]
    matrix = (
        t[:, None] + at * (mixed + mixed.mT)[:, None] + at.square() * (a[:, :, None] * a[:, None])[:, None]
    )
    squares, vectors = (x.unflatten(0, lam.shape) for x in small_eigh(matrix.flatten(0, 1)))
    norm = (square[:, None] + 2 * lam * overlap[:, None] + lam.square()).clamp_min(0.0).sqrt()
    inverse = 1.0 / (norm + EPSILON)
    y2 = squares.clamp_min(0.0) * inverse.square()[:, :, None]
    ratio = inverse[:, :, None].expand_as(y2)
    for first, third, fifth in coefficients:
        factor = (fifth * y2 + third) * y2 + first
        ratio = ratio * factor
        y2 = y2 * factor.square()
    left = torch.einsum("bpij,bi->bpj", vectors, a)
    right = torch.einsum("bpij,bpi->bpj", vectors, b[:, None] + lam[:, :, None] * a[:, None])
    return (left * ratio * right).sum(2)


def sign_root(
    t: Tensor,
    a: Tensor,
    b: Tensor,
    overlap: Tensor,
    square: Tensor,
    coefficients: Tensor,
    largest: float,
    adaptive: bool,
) -> Tensor:
    """The multiplier within +- ``largest`` at which h changes sign."""
    given = (t, a, b, overlap, square, coefficients)
    zero = torch.zeros_like(overlap)
    exponents = torch.arange(GRID - 1, -1, -1, device=zero.device, dtype=torch.float64)
    steps = largest * GRID_RATIO**-exponents
    grid = torch.cat([zero[:, None], steps.expand(len(zero), -1)], dim=1)
    # h rises with lambda: where h(0) is positive the root is negative.
    start = sign_entry(*given, zero[:, None])
    side = torch.where(start > 0, -1.0, 1.0)
    grid = grid * side
    values = torch.cat([start, sign_entry(*given, grid[:, 1:])], dim=1)
    crossed = ((values * side) >= 0.0)[:, 1:]
    first = torch.where(crossed.any(1), crossed.to(torch.int8).argmax(1), GRID - 1)[:, None]
    low, high = grid.gather(1, first)[:, 0], grid.gather(1, first + 1)[:, 0]
    f_low, f_high = values.gather(1, first)[:, 0], values.gather(1, first + 1)[:, 0]
    found = _bracketed(given, low, high, f_low, f_high, zero, zero, zero, adaptive)
    return torch.where(start[:, 0] == 0.0, zero, found)


def sign_root_near(
    t: Tensor,
    a: Tensor,
    b: Tensor,
    overlap: Tensor,
    square: Tensor,
    coefficients: Tensor,
    center: Tensor,
    shift: Tensor,
    tilt: Tensor,
    reach: Tensor,
    largest: float,
    adaptive: bool,
) -> Tensor:
    """The root of h(lambda) + shift + tilt (lambda - center) within ``reach`` of the center."""
    given = (t, a, b, overlap, square, coefficients)
    low = (center - reach).clamp(-largest, largest)
    high = (center + reach).clamp(-largest, largest)
    values = sign_entry(*given, torch.stack([low, high], dim=1))
    f_low = values[:, 0] + shift + tilt * (low - center)
    f_high = values[:, 1] + shift + tilt * (high - center)
    return _bracketed(given, low, high, f_low, f_high, center, shift, tilt, adaptive)


def _bracketed(
    given: tuple[Tensor, ...],
    low: Tensor,
    high: Tensor,
    f_low: Tensor,
    f_high: Tensor,
    center: Tensor,
    shift: Tensor,
    tilt: Tensor,
    adaptive: bool,
) -> Tensor:
    """Regula falsi with Illinois' halving, every third point the middle: h may be all but a step.

    Without a change of sign the end that is nearer to one.
    """
    best = torch.where(f_low.abs() < f_high.abs(), low, high)
    usable = (f_low * f_high) <= 0.0
    for iteration in range(MOST_ITERATIONS if adaptive else ROOT_ITERATIONS):
        width = f_high - f_low
        secant = torch.where(width.abs() > 1e-300, high - f_high * (high - low) / width, high)
        middle = (low + high) / 2 if iteration % 3 == 2 else secant
        value = sign_entry(*given, middle[:, None])[:, 0] + shift + tilt * (middle - center)
        same = value * f_high > 0.0
        low, f_low = torch.where(same, low, high), torch.where(same, f_low / 2, f_high)
        high, f_high = middle, value
        if adaptive:
            open_ends = usable & (value.abs() > SETTLED) & ((high - low).abs() > SETTLED)
            if not bool(open_ends.any()):
                break
    return torch.where(usable, high, best)
