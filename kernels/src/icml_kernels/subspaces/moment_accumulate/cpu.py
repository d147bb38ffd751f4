"""Contour moments on the CPU: each value of Y is read once for all moments."""

from __future__ import annotations

import numpy as np
import torch
from torch import Tensor

from icml_kernels.njit import njit, prange
from icml_kernels.subspaces.moment_accumulate.reference import powers


def add(s: Tensor, y: Tensor, zr: float, zi: float, wr: float, wi: float) -> Tensor:
    """See ``reference.add``."""
    out = s.contiguous().clone()
    add_in_place(out, y, zr, zi, wr, wi)
    return out


def add_in_place(s: Tensor, y: Tensor, zr: float, zi: float, wr: float, wi: float) -> None:
    """The same into ``s``, which is contiguous."""
    re, im = _coefficients(s, zr, zi, wr, wi)
    _add(s.numpy().reshape(s.shape[0], -1), y.contiguous().numpy().reshape(-1, 2), re, im)


def gather(g: Tensor, zr: float, zi: float, wr: float, wi: float) -> Tensor:
    """See ``reference.gather``."""
    out = torch.empty((*g.shape[1:], 2), dtype=g.dtype)
    re, im = _coefficients(g, zr, zi, wr, wi)
    _gather(g.contiguous().numpy().reshape(g.shape[0], -1), out.numpy().reshape(-1, 2), re, im)
    return out


def _coefficients(s: Tensor, zr: float, zi: float, wr: float, wi: float) -> tuple[np.ndarray, np.ndarray]:
    found = np.array(powers(s.shape[0], zr, zi, wr, wi))
    kind = np.float32 if s.dtype == torch.float32 else np.float64
    return found.real.astype(kind), found.imag.astype(kind)


@njit(parallel=True)
def _add(s, y, re, im):
    for i in prange(y.shape[0]):
        a, b = y[i, 0], y[i, 1]
        for k in range(len(re)):
            s[k, i] += re[k] * a - im[k] * b


@njit(parallel=True)
def _gather(g, out, re, im):
    for i in prange(out.shape[0]):
        a = g.dtype.type(0)
        b = g.dtype.type(0)
        for k in range(len(re)):
            a += re[k] * g[k, i]
            b -= im[k] * g[k, i]
        out[i, 0] = a
        out[i, 1] = b
