"""The geometric mixture on the CPU: entropies by the family's loops, nucleus and draw by selection.

A row's numbers are counted by their distance from the largest; from the counts follows a distance within
which the nucleus lies. The tokens within it are put into bins by distance, with the sums of their weights, so
that the two places that are asked for, the end of the nucleus and the token drawn, are each known up to a
bin, and only that bin's tokens are sorted.
"""

from __future__ import annotations

import math

import numpy as np
import torch
from torch import Tensor

from icml_kernels.language import rows_cpu
from icml_kernels.language.geometric_mix_sample.reference import require_numbers, shares
from icml_kernels.language.head import arithmetic
from icml_kernels.language.rows_cpu import _exp
from icml_kernels.njit import njit, prange, threads

# Counters of a row, and how many of them a nat takes: what is more than 64 nats away falls into the last.
BINS = 512
PER_NAT = 8.0
# Bins of the numbers near the largest.
SELECT = 256
# Share of the sum of exponentials that rounding may cost.
SLACK = 1e-4
# Where e^x leaves the normal numbers.
LOW = -708.0
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
def _within(row, top, spare, counts):
    """A distance from the largest number beyond which at most ``spare`` of the sum of exponentials lies."""
    counts[:] = 0
    for v in range(len(row)):
        distance = (top - row[v]) * PER_NAT
        place = BINS - 1 if not distance < BINS - 1 else int(distance)
        counts[place] += 1
    beyond = 0.0
    for place in range(BINS - 1, 0, -1):
        # Each is at least so far away; the last counter holds what is ruled out, too.
        if counts[place]:
            beyond += counts[place] * math.exp(-place / PER_NAT)
        if beyond > spare:
            return (place + 1) / PER_NAT if place < BINS - 1 else np.inf
    return 1 / PER_NAT


@njit(**STRICT)
def _weights(values, temperature, weights):
    """exp(-value / temperature)."""
    for j in range(len(values)):
        x = -values[j] / temperature
        x = LOW if x < LOW else x
        weights[j] = 0.0 if x == LOW else _exp(x)


@njit
def _sorted_bin(values, bins, wanted):
    """The places of a bin's values, rising, equal ones in their order."""
    size = 0
    for j in range(len(values)):
        size += bins[j] == wanted
    places, inside = np.empty(size, dtype=np.int64), np.empty(size, dtype=np.float64)
    size, level = 0, True
    for j in range(len(values)):
        if bins[j] == wanted:
            places[size], inside[size] = j, values[j]
            level = level and inside[size] == inside[0]
            size += 1
    return places if level else places[np.argsort(inside, kind="mergesort")]


@njit
def _selected(values, weights, wanted, temperature):
    """The place to draw: among the least values, as many as have ``wanted[0]`` of the weights, the one at
    which the tempered weights reach the share ``wanted[1]`` of theirs."""
    farthest = 0.0
    for j in range(len(values)):
        farthest = max(farthest, values[j])
    scale = SELECT / farthest if farthest > 0 else 0.0
    final = min(int(farthest * scale), SELECT - 1)
    bins = np.empty(len(values), dtype=np.int32)
    sums, tempered_sums = np.zeros(SELECT), np.zeros(SELECT)
    tempered = weights
    if temperature != 1:
        tempered = np.empty_like(weights)
        _weights(values, temperature, tempered)
    for j in range(len(values)):
        place = min(int(values[j] * scale), SELECT - 1)
        bins[j] = place
        sums[place] += weights[j]
        tempered_sums[place] += tempered[j]
    # The bin in which the nucleus ends, and what of it is kept.
    last, before, whole = 0, 0.0, 0.0
    while last < final and before + sums[last] < wanted[0]:
        before += sums[last]
        whole += tempered_sums[last]
        last += 1
    order = _sorted_bin(values, bins, last)
    kept = 0
    while kept < len(order) and before < wanted[0]:
        before += weights[order[kept]]
        whole += tempered[order[kept]]
        kept += 1
    threshold, cumulated, place = wanted[1] * whole, 0.0, 0
    while place < last and not cumulated + tempered_sums[place] > threshold:
        cumulated += tempered_sums[place]
        place += 1
    if place < last:
        order = _sorted_bin(values, bins, place)
        kept = len(order)
    j = 0
    while j < kept - 1:
        cumulated += tempered[order[j]]
        if cumulated > threshold:
            break
        j += 1
    return order[j]


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
        every = math.exp(norm[i] - top)
        distance = _within(row, top, (1 - top_p - SLACK) * every, counts)
        size = 0
        for v in range(len(row)):
            size += (top - row[v] <= distance) & (top - row[v] < np.inf)
        values, places = np.empty(size, dtype=np.float64), np.empty(size, dtype=np.int64)
        size = 0
        for v in range(len(row)):
            if top - row[v] <= distance and top - row[v] < np.inf:
                values[size], places[size] = top - row[v], v
                size += 1
        weights = np.empty(size)
        _weights(values, 1.0, weights)
        token[i] = places[_selected(values, weights, (top_p * every, uniform[i]), temperature)]


@njit(parallel=True)
def _draw_shares(bounds, mixture, tops, norm, uniform, token, top_p, temperature):
    for s in prange(len(bounds) - 1):
        _draw(bounds[s], bounds[s + 1], mixture, tops, norm, uniform, token, top_p, temperature)
