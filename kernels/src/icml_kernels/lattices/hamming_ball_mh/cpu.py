"""Metropolis-Hastings by Hamming balls on the CPU: a change costs the terms of its site, a thread owns its
chains.
"""

from __future__ import annotations

import numpy as np
import torch
from torch import Tensor

from icml_kernels.njit import njit, prange, threads

# A difference of energies must not depend on how sums are regrouped.
STRICT = {"fastmath": {"contract"}, "error_model": "numpy"}


def chains(
    x: Tensor,
    beta: Tensor,
    term_ptr: Tensor,
    term_sites: Tensor,
    coefficients: Tensor,
    site_ptr: Tensor,
    site_terms: Tensor,
    values: Tensor,
    equal: bool,
    radius: int,
    n_steps: int,
    seed: int,
) -> tuple[Tensor, Tensor, Tensor]:
    """See ``reference.chains``."""
    out = x.clone(memory_format=torch.contiguous_format)
    n = out.shape[0]
    gained, moved = torch.zeros(n, dtype=torch.float64), torch.zeros(n, dtype=torch.int64)
    if out.numel():
        shares = max(1, min(threads(), n))
        bounds = np.linspace(0, n, shares + 1).astype(np.int64)
        lists = (term_ptr, term_sites, coefficients, site_ptr, site_terms, values)
        energy = tuple(t.contiguous().numpy() for t in lists)
        results = (out.numpy(), gained.numpy(), moved.numpy())
        run = _chains if shares == 1 else _chains_shares
        key = np.uint64(seed % (1 << 64))
        run(bounds, energy, beta.contiguous().numpy(), equal, radius, n_steps, key, *results)
    return out, gained, moved


@njit
def _mix(value):
    z = value + np.uint64(0x9E3779B97F4A7C15)
    z = (z ^ (z >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    z = (z ^ (z >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    return z ^ (z >> np.uint64(31))


@njit(**STRICT)
def _difference(x, site, new, energy, equal):
    """log density after the site has become ``new``, minus that before."""
    term_ptr, term_sites, coefficients, site_ptr, site_terms, values = energy
    old = x[site]
    total = 0.0
    step = values[new] - values[old]
    for k in range(site_ptr[site], site_ptr[site + 1]):
        t = site_terms[k]
        if equal:
            common, agree = np.int64(-1), True
            for j in range(term_ptr[t], term_ptr[t + 1]):
                s = term_sites[j]
                if s != site:
                    agree = agree and (common < 0 or x[s] == common)
                    common = x[s]
            if agree:
                total += coefficients[t] * ((1.0 if common == new else 0.0) - (1.0 if common == old else 0.0))
        else:
            product = coefficients[t] * step
            for j in range(term_ptr[t], term_ptr[t + 1]):
                s = term_sites[j]
                if s != site:
                    product *= values[x[s]]
            total += product
    return total


@njit(**STRICT)
def _chain(x, energy, beta, equal, radius, n_steps, chain_key, changed, before):
    sites, symbols = np.uint64(len(x)), np.int64(len(energy[5]))
    half, shift = np.uint64(0xFFFFFFFF), np.uint64(32)
    gained, moved = 0.0, np.int64(0)
    for step in range(n_steps):
        key = _mix(chain_key + np.uint64(step))
        delta = 0.0
        for j in range(radius):
            word = _mix(key + np.uint64(j))
            site = np.int64(((word >> shift) * sites) >> shift)
            by = 1 + np.int64(((word & half) * np.uint64(symbols - 1)) >> shift)
            new = (x[site] + by) % symbols
            delta += _difference(x, site, new, energy, equal)
            changed[j], before[j] = site, x[site]
            x[site] = new
        scaled = beta * delta
        accept = scaled >= 0.0
        if not accept:
            draw = np.float64(_mix(key + np.uint64(radius)) >> np.uint64(11)) * 2.0**-53
            accept = draw < np.exp(scaled)
        if accept:
            gained += delta
            real = False
            for j in range(radius):
                first = True
                for i in range(j):
                    first = first and changed[i] != changed[j]
                real = real or (first and x[changed[j]] != before[j])
            moved += real
        else:
            for j in range(radius):
                x[changed[radius - 1 - j]] = before[radius - 1 - j]
    return gained, moved


@njit(**STRICT)
def _chains(bounds, energy, beta, equal, radius, n_steps, seed, states, gained, moved):
    start = _mix(seed)
    changed, before = np.empty(radius, dtype=np.int64), np.empty(radius, dtype=np.int64)
    for b in range(bounds[0], bounds[-1]):
        key = _mix(start + np.uint64(b))
        gained[b], moved[b] = _chain(states[b], energy, beta[b], equal, radius, n_steps, key, changed, before)


@njit(parallel=True, **STRICT)
def _chains_shares(bounds, energy, beta, equal, radius, n_steps, seed, states, gained, moved):
    start = _mix(seed)
    for s in prange(len(bounds) - 1):
        changed, before = np.empty(radius, dtype=np.int64), np.empty(radius, dtype=np.int64)
        for b in range(bounds[s], bounds[s + 1]):
            key = _mix(start + np.uint64(b))
            gained[b], moved[b] = _chain(
                states[b], energy, beta[b], equal, radius, n_steps, key, changed, before
            )
