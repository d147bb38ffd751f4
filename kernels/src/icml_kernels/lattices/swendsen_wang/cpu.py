"""Swendsen-Wang sweeps on the CPU: union-find with the least index as root, a thread owns its lattices."""

from __future__ import annotations

import numpy as np
import torch
from torch import Tensor

from icml_kernels.lattices.words import threshold
from icml_kernels.njit import njit, prange, threads


def sweeps(
    spins: Tensor, p: float, q: int, n_sweeps: int, seed: int, ghost: float, ghost_state: int
) -> tuple[Tensor, Tensor, Tensor]:
    """See ``reference.sweeps``."""
    out = spins.clone(memory_format=torch.contiguous_format)
    chains = out.shape[0]
    clusters, squares = (torch.zeros(chains, dtype=torch.int64) for _ in range(2))
    if out.numel():
        shares = max(1, min(threads(), chains))
        bounds = np.linspace(0, chains, shares + 1).astype(np.int64)
        limits = (np.uint64(threshold(p)), np.uint64(threshold(ghost)))
        key = np.uint64(seed % (1 << 64))
        arrays = (out.numpy().reshape(chains, -1), clusters.numpy(), squares.numpy())
        run = _lattices if shares == 1 else _lattices_shares
        run(bounds, out.shape[1], out.shape[2], *limits, ghost_state, q, n_sweeps, key, *arrays)
    return out, clusters, squares


@njit
def _mix(value):
    z = value + np.uint64(0x9E3779B97F4A7C15)
    z = (z ^ (z >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    z = (z ^ (z >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    return z ^ (z >> np.uint64(31))


@njit
def _root(parent, i):
    while parent[i] != i:
        parent[i] = parent[parent[i]]
        i = parent[i]
    return i


@njit
def _join(parent, i, j):
    a, b = _root(parent, i), _root(parent, j)
    if a < b:
        parent[b] = a
    else:
        parent[a] = b


@njit
def _sweep(state, rows, cols, limit, ghost_limit, ghost_state, q, key, parent, size, held):
    """One sweep; the numbers of clusters and of pairs of sites within them."""
    n = np.uint32(rows * cols)
    half, shift, one = np.uint64(0xFFFFFFFF), np.uint64(32), np.uint32(1)
    bonds, states, ghosts = _mix(key), _mix(key + np.uint64(1)), _mix(key + np.uint64(2))
    for i in range(n):
        parent[i] = i
    i = np.uint32(0)
    for r in range(rows):
        below = np.uint32(cols) if r < rows - 1 else np.uint32(0)
        for c in range(cols):
            right = i + one if c < cols - 1 else i - np.uint32(cols - 1)
            down = i + below if below else np.uint32(c)
            word = _mix(bonds + np.uint64(i))
            own = state[i]
            if own == state[right] and (word & half) < limit:
                _join(parent, i, right)
            if own == state[down] and (word >> shift) < limit:
                _join(parent, i, down)
            i += one
    clusters, squares = np.int64(0), np.int64(0)
    if ghost_limit:
        for i in range(n):
            held[i] = 0
        for i in range(n):
            parent[i] = parent[parent[i]]
            if state[i] == ghost_state and (_mix(ghosts + np.uint64(i)) & half) < ghost_limit:
                held[parent[i]] = 1
    for i in range(n):
        # The root has the least index, so that it comes first, and the parent's parent is it.
        root = parent[parent[i]]
        parent[i] = root
        if root == i:
            clusters += 1
            size[i] = 1
            squares += 1
            if not (ghost_limit and held[i]):
                state[i] = ((_mix(states + np.uint64(i)) >> shift) * np.uint64(q)) >> shift
        else:
            squares += 2 * size[root] + 1
            size[root] += 1
            state[i] = state[root]
    return clusters, squares


@njit
def _lattice(state, rows, cols, limit, ghost_limit, ghost_state, q, n_sweeps, key):
    n = rows * cols
    parent = np.empty(n, dtype=np.uint32)
    size = np.empty(n, dtype=np.int64)
    held = np.empty(n, dtype=np.uint8)
    clusters, squares = np.int64(0), np.int64(0)
    for sweep in range(n_sweeps):
        mixed = _mix(key + np.uint64(sweep))
        c, s = _sweep(state, rows, cols, limit, ghost_limit, ghost_state, q, mixed, parent, size, held)
        clusters += c
        squares += s
    return clusters, squares


@njit
def _lattices(
    bounds, rows, cols, limit, ghost_limit, ghost_state, q, n_sweeps, seed, states, clusters, squares
):
    start = _mix(seed)
    for b in range(bounds[0], bounds[-1]):
        key = _mix(start + np.uint64(b))
        clusters[b], squares[b] = _lattice(
            states[b], rows, cols, limit, ghost_limit, ghost_state, q, n_sweeps, key
        )


@njit(parallel=True)
def _lattices_shares(
    bounds, rows, cols, limit, ghost_limit, ghost_state, q, n_sweeps, seed, states, clusters, squares
):
    start = _mix(seed)
    for s in prange(len(bounds) - 1):
        for b in range(bounds[s], bounds[s + 1]):
            key = _mix(start + np.uint64(b))
            clusters[b], squares[b] = _lattice(
                states[b], rows, cols, limit, ghost_limit, ghost_state, q, n_sweeps, key
            )
