"""The geometric mixture on the CPU: entropies by the family's loops, the nucleus by counting and sorting.

A row's numbers are counted by their distance from the largest; from the counts follows a distance within
which the nucleus lies, and only the tokens within it are sorted.
"""

from __future__ import annotations

import math

import numpy as np
import torch
from torch import Tensor

from icml_kernels.language import rows_cpu
from icml_kernels.language.geometric_mix_sample.reference import require_numbers, shares
from icml_kernels.language.head import arithmetic
from icml_kernels.njit import njit, prange, threads

# Counters of a row, and how many of them a nat takes: what is more than 64 nats away falls into the last.
BINS = 512
PER_NAT = 8.0
# Reassociation would make a + part (b - a) of the mixture, which is NaN at -inf.
STRICT = {"fastmath": {"contract", "nsz"}, "error_model": "numpy"}


def forward(
    logp: Tensor,
    logq: Tensor,
    uniform: Tensor,
    share: Tensor,
    beta: float,
    mode: str,
    log_vocabulary: float,
    top_p: float,
    temperature: float,
) -> tuple[Tensor, Tensor, Tensor, Tensor, Tensor]:
    """See ``reference.forward``."""
    dtype = arithmetic(logp.dtype)
    p, q = (t.to(dtype).contiguous() for t in (logp, logq))
    rows = p.shape[0]
    first = torch.zeros(rows, dtype=torch.int64)
    _, of_p, _, norm_p = rows_cpu.statistics(p, first)
    _, of_q, _, norm_q = rows_cpu.statistics(q, first)
    require_numbers(of_p, of_q)
    lam = torch.where(torch.isnan(share), shares(of_p / log_vocabulary, beta, mode), share)
    mixture = torch.empty_like(p)
    tops = torch.empty_like(lam)
    _over_rows(_mix, _mix_shares, rows, *map(_array, (p, q, norm_p, norm_q, lam, mixture, tops)))
    _, _, _, norm = rows_cpu.statistics(mixture, first)
    token = torch.empty(rows, dtype=torch.int64)
    arrays = map(_array, (mixture, tops, norm, uniform.contiguous(), token))
    _over_rows(_draw, _draw_shares, rows, *arrays, top_p, temperature)
    chosen = q.gather(1, token[:, None])[:, 0] - norm_q
    return token, lam, chosen, of_q.clone(), of_p.clone()


def _array(t: Tensor) -> np.ndarray:
    return t.contiguous().numpy() if not t.is_contiguous() else t.numpy()


def _over_rows(alone, shared, rows, *arguments):  # type: ignore[no-untyped-def]
    count = max(1, min(threads(), rows))
    if count == 1:
        alone(0, rows, *arguments)
    else:
        shared(np.linspace(0, rows, count + 1).astype(np.int64), *arguments)


@njit(**STRICT)
def _mix(begin, end, p, q, norm_p, norm_q, lam, mixture, tops):
    minus_infinity = p.dtype.type(-np.inf)
    for i in range(begin, end):
        top = minus_infinity
        part = lam[i]
        rest = p.dtype.type(1) - part
        for v in range(p.shape[1]):
            a, b = p[i, v] - norm_p[i], q[i, v] - norm_q[i]
            # 0 times -inf is 0 here.
            x = a if part == 0 else (b if part == 1 else rest * a + part * b)
            mixture[i, v] = x
            top = x if x > top else top
        if top == minus_infinity:
            # p and q exclude each other: p is followed.
            lam[i] = 0
            for v in range(p.shape[1]):
                x = p[i, v] - norm_p[i]
                mixture[i, v] = x
                top = x if x > top else top
        tops[i] = top


@njit(parallel=True, **STRICT)
def _mix_shares(bounds, p, q, norm_p, norm_q, lam, mixture, tops):
    for s in prange(len(bounds) - 1):
        _mix(bounds[s], bounds[s + 1], p, q, norm_p, norm_q, lam, mixture, tops)


@njit
def _within(row, top, wanted, counts):
    """A distance from the largest number within which at least ``wanted`` of the sum of exponentials lies."""
    counts[:] = 0
    for v in range(len(row)):
        distance = (top - row[v]) * PER_NAT
        place = BINS - 1 if not distance < BINS - 1 else int(distance)
        counts[place] += 1
    least = 0.0
    for place in range(BINS - 1):
        least += counts[place] * math.exp(-(place + 1) / PER_NAT)
        if least >= wanted:
            return (place + 1) / PER_NAT
    return np.inf


@njit
def _draw(begin, end, mixture, tops, norm, uniform, token, top_p, temperature):
    counts = np.empty(BINS, dtype=np.int64)
    for i in range(begin, end):
        row, top = mixture[i], tops[i]
        if temperature == 0:
            token[i] = np.argmax(row)
            continue
        if top_p >= 1:
            whole = 0.0
            for v in range(len(row)):
                whole += math.exp((row[v] - top) / temperature)
            threshold, found, cumulated = uniform[i] * whole, -1, 0.0
            for v in range(len(row)):
                e = math.exp((row[v] - top) / temperature)
                cumulated += e
                # Where rounding leaves the sum below the threshold, the last possible token stands.
                if e > 0:
                    found = v
                if cumulated > threshold:
                    break
            token[i] = found
            continue
        wanted = top_p * math.exp(norm[i] - top)
        distance = _within(row, top, wanted, counts)
        size = 0
        for v in range(len(row)):
            size += top - row[v] <= distance
        values, places = np.empty(size, dtype=np.float64), np.empty(size, dtype=np.int64)
        size = 0
        for v in range(len(row)):
            if top - row[v] <= distance:
                values[size], places[size] = top - row[v], v
                size += 1
        order = np.argsort(values, kind="mergesort")
        kept, before, whole = 0, 0.0, 0.0
        while kept < size and before < wanted and values[order[kept]] < np.inf:
            before += math.exp(-values[order[kept]])
            whole += math.exp(-values[order[kept]] / temperature)
            kept += 1
        threshold, cumulated, place = uniform[i] * whole, 0.0, 0
        while True:
            cumulated += math.exp(-values[order[place]] / temperature)
            if cumulated > threshold or place + 1 == kept:
                break
            place += 1
        token[i] = places[order[place]]


@njit(parallel=True)
def _draw_shares(bounds, mixture, tops, norm, uniform, token, top_p, temperature):
    for s in prange(len(bounds) - 1):
        _draw(bounds[s], bounds[s + 1], mixture, tops, norm, uniform, token, top_p, temperature)
