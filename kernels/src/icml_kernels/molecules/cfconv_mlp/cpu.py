"""The filter-network convolution on the CPU: tiles of pairs, matrix products by torch, the rest by numba.

A tile is small enough for the second-level cache, so that no tensor of all pairs times filters exists.
Inside a tile each thread owns a slice of the features; rows receive their partners in rising order.
"""

from __future__ import annotations

import numpy as np
import torch
from torch import Tensor

from icml_kernels.molecules.cfconv_mlp import reference
from icml_kernels.molecules.neighbors import pair_rows
from icml_kernels.njit import njit, prange, threads

TILE = 512
# A thread's slice of the features is at least one cache line of float32 wide.
SLICE = 16


def forward(
    x: Tensor,
    r: Tensor,
    ptr: Tensor,
    idx: Tensor,
    ptr_t: Tensor,
    idx_t: Tensor,
    pair_t: Tensor,
    w1: Tensor,
    b1: Tensor,
    w2: Tensor,
    b2: Tensor,
    centers: Tensor,
    widths: Tensor,
    cutoff: float,
    basis: str,
    alpha: float,
    origin: float,
    activation: str,
    basis_envelope: bool,
    filter_envelope: bool,
) -> Tensor:
    """See ``reference.forward``."""
    out = torch.zeros_like(x, memory_format=torch.contiguous_format)
    weights = (w1, b1, w2, b2, centers, widths)
    options = (cutoff, basis, alpha, origin, activation, basis_envelope, filter_envelope)
    i, j, kept = _ends(r, ptr, idx, cutoff)
    features, bounds = x.contiguous().numpy(), _slices(x.shape[1])
    for begin in range(0, len(kept), TILE):
        tile = kept[begin : begin + TILE]
        w = reference.filters(r[tile], *weights, *options)
        _accumulate(bounds, i[tile].numpy(), j[tile].numpy(), w.numpy(), features, out.numpy())
    return out


def backward(
    g: Tensor,
    x: Tensor,
    r: Tensor,
    ptr: Tensor,
    idx: Tensor,
    ptr_t: Tensor,
    idx_t: Tensor,
    pair_t: Tensor,
    w1: Tensor,
    b1: Tensor,
    w2: Tensor,
    b2: Tensor,
    centers: Tensor,
    widths: Tensor,
    cutoff: float,
    basis: str,
    alpha: float,
    origin: float,
    activation: str,
    basis_envelope: bool,
    filter_envelope: bool,
    by_weights: bool,
) -> tuple[Tensor, Tensor, Tensor, Tensor, Tensor, Tensor, Tensor, Tensor]:
    """See ``reference.backward``."""
    gx, gr = torch.zeros_like(x, memory_format=torch.contiguous_format), torch.zeros_like(r)
    weights = (w1, b1, w2, b2, centers, widths)
    by = [torch.zeros_like(w) for w in weights]
    options = (cutoff, basis, alpha, origin, activation, basis_envelope, filter_envelope)
    i, j, kept = _ends(r, ptr, idx, cutoff)
    gradients, features, bounds = g.contiguous().numpy(), x.contiguous().numpy(), _slices(x.shape[1])
    for begin in range(0, len(kept), TILE):
        tile = kept[begin : begin + TILE]
        first, second = i[tile].numpy(), j[tile].numpy()
        by_filter = torch.empty(len(tile), x.shape[1], dtype=x.dtype)
        _products(bounds, first, second, gradients, features, by_filter.numpy())
        w, gr[tile], by_tile = reference.network_backward(by_filter, r[tile], *weights, *options, by_weights)
        _accumulate(bounds, first, second, w.numpy(), gradients, gx.numpy())
        for total, part in zip(by, by_tile, strict=False):
            total += part
    return gx, gr, *by


def _ends(r: Tensor, ptr: Tensor, idx: Tensor, cutoff: float) -> tuple[Tensor, Tensor, Tensor]:
    """Both atoms of every place, and the places whose pair is within the cutoff (NaN counts as within)."""
    i, valid = pair_rows(ptr, idx)
    return i, idx, torch.nonzero(valid & ~(r >= cutoff))[:, 0]


def _slices(filters: int) -> np.ndarray:
    shares = max(1, min(threads(), filters // SLICE))
    width = -(-filters // (shares * SLICE)) * SLICE
    return np.minimum(np.arange(shares + 1) * width, filters)


def _accumulate(bounds, i, j, w, v, out) -> None:
    if len(bounds) == 2:
        _accumulate_slice(0, v.shape[1], i, j, w, v, out)
    else:
        _accumulate_shares(bounds, i, j, w, v, out)


def _products(bounds, i, j, g, x, out) -> None:
    if len(bounds) == 2:
        _products_slice(0, x.shape[1], i, j, g, x, out)
    else:
        _products_shares(bounds, i, j, g, x, out)


@njit
def _accumulate_slice(begin, end, i, j, w, v, out):
    for p in range(len(i)):
        a, b = i[p], j[p]
        for f in range(begin, end):
            out[a, f] += w[p, f] * v[b, f]
            out[b, f] += w[p, f] * v[a, f]


@njit(parallel=True)
def _accumulate_shares(bounds, i, j, w, v, out):
    for s in prange(len(bounds) - 1):
        _accumulate_slice(bounds[s], bounds[s + 1], i, j, w, v, out)


@njit
def _products_slice(begin, end, i, j, g, x, out):
    for p in range(len(i)):
        a, b = i[p], j[p]
        for f in range(begin, end):
            out[p, f] = g[a, f] * x[b, f] + g[b, f] * x[a, f]


@njit(parallel=True)
def _products_shares(bounds, i, j, g, x, out):
    for s in prange(len(bounds) - 1):
        _products_slice(bounds[s], bounds[s + 1], i, j, g, x, out)
