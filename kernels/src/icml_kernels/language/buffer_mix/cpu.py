"""Mixtures of stored distributions on the CPU: a thread owns its groups and stays with a run of tokens."""

from __future__ import annotations

import numpy as np
import torch
from numba import types
from numba.extending import overload
from torch import Tensor

from icml_kernels.language.masked_entropy_argmax.cpu import shares_of
from icml_kernels.language.rows_cpu import RUN, STRICT, _exp
from icml_kernels.njit import njit, prange


def forward(rows_logp: Tensor, weights: Tensor, index: Tensor) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """See ``reference.forward``."""
    if index.numel() and int(index.max()) >= len(rows_logp):
        raise ValueError(
            f"index holds {int(index.max())}, but rows_logp has the rows 0 to {len(rows_logp) - 1}"
        )
    if weights.numel() and float(weights.min()) < 0:
        group = int((weights < 0).any(1).nonzero()[0])
        raise ValueError(f"weights of group {group} are not all of one sign; weights must not be negative")
    groups = len(index)
    entropy, divergence, top = (rows_logp.new_empty(groups) for _ in range(3))
    argmax = torch.empty(groups, dtype=torch.int64)
    given = (rows_logp, weights, index)
    results = (entropy, argmax, divergence, top)
    arguments = (*(t.contiguous().numpy() for t in given), *(r.numpy() for r in results))
    shares = shares_of(groups, index.numel() * rows_logp.shape[1])
    if shares == 1:
        _mix(0, groups, *arguments)
    else:
        _mix_shares(np.linspace(0, groups, shares + 1).astype(np.int64), *arguments)
    return results


def _log(x):
    """log x of a positive normal number."""
    return np.log(x)


@overload(_log, jit_options=STRICT)
def _log_by_precision(x):
    # x = 2^n f with f in [0.71, 1.42), and log f = 2 artanh z, z = (f - 1) / (f + 1), |z| < 0.172.
    if x == types.float32:

        def single(x):
            bits = np.float32(x).view(np.int32)
            # Rounds n so that f lies about 1: the bits of the square root of 1/2 are taken off first.
            n = np.int32(np.int32(bits - np.int32(0x3F3504F3)) >> np.int32(23))
            f = np.int32(bits - np.int32(n << np.int32(23))).view(np.float32)
            z = (f - np.float32(1)) / (f + np.float32(1))
            w = z * z
            s = np.float32(2 / 9) * w + np.float32(2 / 7)
            s = s * w + np.float32(2 / 5)
            s = s * w + np.float32(2 / 3)
            s = s * w + np.float32(2)
            return s * z + np.float32(n) * np.float32(0.6931471805599453)

        return single

    def double(x):
        bits = np.float64(x).view(np.int64)
        n = (bits - np.int64(0x3FE6A09E667F3BCD)) >> np.int64(52)
        f = np.int64(bits - (n << np.int64(52))).view(np.float64)
        z = (f - 1.0) / (f + 1.0)
        w = z * z
        s = 2 / 21
        s = s * w + 2 / 19
        s = s * w + 2 / 17
        s = s * w + 2 / 15
        s = s * w + 2 / 13
        s = s * w + 2 / 11
        s = s * w + 2 / 9
        s = s * w + 2 / 7
        s = s * w + 2 / 5
        s = s * w + 2 / 3
        s = s * w + 2.0
        return s * z + np.float64(n) * 0.6931471805599453

    return double


@njit
def _mix(begin, end, rows_logp, weights, index, entropies, argmax, divergences, tops):
    number = rows_logp.dtype.type
    low = number(-87.0 if rows_logp.itemsize == 4 else -708.0)
    vocabulary = rows_logp.shape[1]
    mean, term = np.empty(RUN, rows_logp.dtype), np.empty(RUN, rows_logp.dtype)
    for g in range(begin, end):
        entropy, divergence = 0.0, 0.0
        top, place, members = -1.0, 0, 0
        for k in range(index.shape[1]):
            members += index[g, k] >= 0
        for run in range(0, vocabulary, RUN):
            count = min(RUN, vocabulary - run)
            mean[:count] = number(0)
            term[:count] = number(0)
            for k in range(index.shape[1]):
                if index[g, k] < 0:
                    continue
                row, w = rows_logp[index[g, k]], weights[g, k]
                for v in range(count):
                    s = row[run + v]
                    s = low if s < low else s
                    share = number(0) if s == low else w * _exp(s)
                    mean[v] += share
                    term[v] += share * s
            e_run, d_run, highest = number(0), number(0), number(-1)
            for v in range(count):
                m = mean[v]
                t = m * _log(m) if m > number(0) else m
                e_run -= t
                d_run += term[v] - t
                highest = m if m > highest else highest
            entropy += np.float64(e_run)
            divergence += np.float64(d_run)
            if highest > top:
                top = np.float64(highest)
                for v in range(count):
                    if mean[v] == highest:
                        place = run + v
                        break
        if np.isnan(entropy) or members == 0:
            entropy = divergence = top = np.nan
        entropies[g], argmax[g], divergences[g], tops[g] = entropy, place, divergence, top


@njit(parallel=True)
def _mix_shares(bounds, rows_logp, weights, index, entropies, argmax, divergences, tops):
    for s in prange(len(bounds) - 1):
        _mix(bounds[s], bounds[s + 1], rows_logp, weights, index, entropies, argmax, divergences, tops)
