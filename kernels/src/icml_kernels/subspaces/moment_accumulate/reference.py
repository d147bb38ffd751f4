"""Contour moments, one node at a time, in plain torch: the definition. Complex as pairs of numbers."""

from __future__ import annotations

import torch
from torch import Tensor


def powers(moments: int, zr: float, zi: float, wr: float, wi: float) -> list[complex]:
    """w z^k for k from 0."""
    found, power = [], complex(wr, wi)
    for _ in range(moments):
        found.append(power)
        power *= complex(zr, zi)
    return found


def add(s: Tensor, y: Tensor, zr: float, zi: float, wr: float, wi: float) -> Tensor:
    """S_k + Re(w z^k Y); y is [n, columns, 2], its real and imaginary parts."""
    coefficients = powers(s.shape[0], zr, zi, wr, wi)
    return torch.stack([s[k] + c.real * y[..., 0] - c.imag * y[..., 1] for k, c in enumerate(coefficients)])


def gather(g: Tensor, zr: float, zi: float, wr: float, wi: float) -> Tensor:
    """The adjoint: sum over k of conj(w z^k) g_k, [n, columns, 2]."""
    coefficients = powers(g.shape[0], zr, zi, wr, wi)
    real = sum((c.real * g[k] for k, c in enumerate(coefficients)), torch.zeros_like(g[0]))
    imaginary = sum((-c.imag * g[k] for k, c in enumerate(coefficients)), torch.zeros_like(g[0]))
    return torch.stack([real, imaginary], dim=-1)
