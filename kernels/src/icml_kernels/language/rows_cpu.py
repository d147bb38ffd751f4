"""Softmax statistics and gradients of rows of logits on the CPU: a thread owns its rows.

A row is read twice, for its maximum and for its sums, and stays in the second-level cache between. The
exponential is written out, because a call of the C library's keeps the loop from becoming vectors.
"""

from __future__ import annotations

import math

import numpy as np
import torch
from numba import types
from numba.extending import overload
from torch import Tensor

from icml_kernels.njit import njit, prange, threads

# Terms that are summed in the array's precision before the sum goes into a float64.
RUN = 512
# Numbers of a row of which the largest decides whether any of them is looked at.
STRIDE = 64
# Reassociation would undo the two-step reduction of the argument.
STRICT = {"fastmath": {"contract", "nsz"}, "error_model": "numpy"}


def statistics(x: Tensor, targets: Tensor) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """log p of the targets, entropy, varentropy and log-sum-exp of rows of logits, each [rows].

    Args:
        x: logits, [rows, vocabulary], contiguous.
        targets: a token a row, int64.
    """
    results = x.new_empty(4, x.shape[0])
    arguments = (x.numpy(), targets.contiguous().numpy(), results.numpy())
    shares = _shares(x)
    if len(shares) == 2:
        _statistics(0, x.shape[0], *arguments)
    else:
        _statistics_shares(shares, *arguments)
    logp, entropy, varentropy, lse = results
    return logp, entropy, varentropy, lse


def gradient_(
    x: Tensor,
    targets: Tensor,
    lse: Tensor,
    entropy: Tensor,
    polynomial: tuple[Tensor, Tensor, Tensor],
    peak: Tensor,
    gain: float,
    reach: float,
) -> None:
    """x_v becomes (p_v (k0 + k1 phi_v + k2 phi_v^2) + peak [v = target]) dx/dz, phi_v = log p_v + entropy.

    dx/dz = gain, or gain reach (1 - (x / reach)^2) where there is a soft cap; reach 0 stands for none.
    """
    scale = gain * reach if reach else gain
    coefficients = (torch.stack([*polynomial, peak]) * scale).contiguous()
    rows = (lse.contiguous().numpy(), entropy.contiguous().numpy(), coefficients.numpy())
    inverse = x.numpy().dtype.type(1 / reach if reach else 0)
    arguments = (x.numpy(), targets.contiguous().numpy(), *rows, inverse)
    shares = _shares(x)
    if len(shares) == 2:
        _gradient(0, x.shape[0], *arguments)
    else:
        _gradient_shares(shares, *arguments)


def topk(x: Tensor, k: int) -> tuple[Tensor, Tensor]:
    """The k largest numbers of every row, falling, and where they are. Where NaN comes is not defined."""
    values, idx = x.new_empty(x.shape[0], k), x.new_empty(x.shape[0], k, dtype=torch.int64)
    arguments = (x.numpy(), values.numpy(), idx.numpy())
    shares = _shares(x)
    if len(shares) == 2:
        _topk(0, x.shape[0], *arguments)
    else:
        _topk_shares(shares, *arguments)
    return values, idx


def _shares(x: Tensor) -> np.ndarray:
    count = max(1, min(threads(), x.shape[0]))
    return np.linspace(0, x.shape[0], count + 1).astype(np.int64)


def _exp(x):
    """e^x for x between the smallest normal number's logarithm and 0; NaN stays NaN."""
    return math.exp(x)


@overload(_exp, jit_options=STRICT)
def _exp_by_precision(x):
    if x == types.float32:

        def single(x):
            # Cephes' expf: x = n log 2 + r, with log 2 in two parts, and a polynomial for e^r.
            n = np.floor(x * np.float32(1.44269504088896341) + np.float32(0.5))
            r = x - n * np.float32(0.693359375)
            r = r - n * np.float32(-2.12194440e-4)
            p = np.float32(1.9875691500e-4)
            p = p * r + np.float32(1.3981999507e-3)
            p = p * r + np.float32(8.3334519073e-3)
            p = p * r + np.float32(4.1665795894e-2)
            p = p * r + np.float32(1.6666665459e-1)
            p = p * r + np.float32(5.0000001201e-1)
            p = p * (r * r) + r + np.float32(1)
            return p * np.int32((np.int32(n) + np.int32(127)) << np.int32(23)).view(np.float32)

        return single

    def double(x):
        # The same with Taylor's polynomial: |r| <= log(2) / 2, hence the 14th term is below 1e-17.
        n = np.floor(x * 1.44269504088896341 + 0.5)
        r = x - n * 6.93145751953125e-1
        r = r - n * 1.42860682030941723212e-6
        p = 1.0 / 6227020800.0
        p = p * r + 1.0 / 479001600.0
        p = p * r + 1.0 / 39916800.0
        p = p * r + 1.0 / 3628800.0
        p = p * r + 1.0 / 362880.0
        p = p * r + 1.0 / 40320.0
        p = p * r + 1.0 / 5040.0
        p = p * r + 1.0 / 720.0
        p = p * r + 1.0 / 120.0
        p = p * r + 1.0 / 24.0
        p = p * r + 1.0 / 6.0
        p = p * r + 0.5
        p = p * (r * r) + r + 1.0
        return p * np.int64((np.int64(np.int32(n)) + 1023) << 52).view(np.float64)

    return double


def _rank(x):
    """An integer that grows with the number: its bits, those of a negative one turned over."""
    return x


def _number(rank):
    """The number of a rank."""
    return rank


@overload(_rank)
def _rank_by_precision(x):
    if x == types.float32:

        def single(x):
            # Every step is brought back to 32 bits, which numba would leave.
            bits = np.float32(x).view(np.int32)
            return np.int32(bits ^ np.int32(np.int32(bits >> np.int32(31)) & np.int32(0x7FFFFFFF)))

        return single

    def double(x):
        bits = np.float64(x).view(np.int64)
        return bits ^ ((bits >> np.int64(63)) & np.int64(0x7FFFFFFFFFFFFFFF))

    return double


@overload(_number)
def _number_by_precision(rank):
    if rank == types.int32:

        def single(rank):
            mask = np.int32(np.int32(rank >> np.int32(31)) & np.int32(0x7FFFFFFF))
            return np.int32(rank ^ mask).view(np.float32)

        return single

    def double(rank):
        return np.int64(rank ^ ((rank >> np.int64(63)) & np.int64(0x7FFFFFFFFFFFFFFF))).view(np.float64)

    return double


@njit
def _statistics(begin, end, x, targets, results):
    number = x.dtype.type
    low = number(-87.0 if x.itemsize == 4 else -708.0)
    for i in range(begin, end):
        row = x[i]
        # The largest of integers makes vectors; that of floats would not, for the sake of NaN.
        highest = _rank(row[0])
        for v in range(len(row)):
            rank = _rank(row[v])
            highest = rank if rank > highest else highest
        top = _number(highest)
        if top == -np.inf:
            results[:, i] = np.nan
            results[3, i] = top
            continue
        e_sum, s_sum, ss_sum = 0.0, 0.0, 0.0
        for run in range(0, len(row), RUN):
            e_run, s_run, ss_run = number(0), number(0), number(0)
            for v in range(run, min(run + RUN, len(row))):
                s = row[v] - top
                # 0 log 0 = 0: what underflows, and tokens that are ruled out by -inf, count for nothing.
                s = low if s < low else s
                e = number(0) if s == low else _exp(s)
                e_run += e
                s_run += e * s
                ss_run += e * s * s
            e_sum += e_run
            s_sum += s_run
            ss_sum += ss_run
        log_sum, mean = math.log(e_sum), s_sum / e_sum
        results[0, i] = row[targets[i]] - top - log_sum
        results[1, i] = log_sum - mean
        results[2, i] = max(ss_sum / e_sum - mean * mean, 0.0)
        results[3, i] = top + log_sum


@njit(parallel=True)
def _statistics_shares(bounds, x, targets, results):
    for s in prange(len(bounds) - 1):
        _statistics(bounds[s], bounds[s + 1], x, targets, results)


@njit
def _gradient(begin, end, x, targets, lse, entropy, coefficients, inverse):
    number = x.dtype.type
    low = number(-87.0 if x.itemsize == 4 else -708.0)
    for i in range(begin, end):
        row = x[i]
        k0, k1, k2, peak = coefficients[0, i], coefficients[1, i], coefficients[2, i], coefficients[3, i]
        bend = row[targets[i]] * inverse if inverse != number(0) else number(0)
        extra = peak * (number(1) - bend * bend)
        for v in range(len(row)):
            bend = row[v] * inverse if inverse != number(0) else number(0)
            s = row[v] - lse[i]
            s = low if s < low else s
            e = number(0) if s == low else _exp(s)
            phi = s + entropy[i]
            row[v] = e * (k0 + phi * (k1 + phi * k2)) * (number(1) - bend * bend)
        row[targets[i]] += extra


@njit(parallel=True)
def _gradient_shares(bounds, x, targets, lse, entropy, coefficients, inverse):
    for s in prange(len(bounds) - 1):
        _gradient(bounds[s], bounds[s + 1], x, targets, lse, entropy, coefficients, inverse)


@njit
def _sift(values, idx, place, size):
    """Move the entry down a heap whose smallest number is on top until none below it is smaller."""
    value, where = values[place], idx[place]
    while 2 * place + 1 < size:
        child = 2 * place + 1
        if child + 1 < size and values[child + 1] < values[child]:
            child += 1
        if not values[child] < value:
            break
        values[place], idx[place] = values[child], idx[child]
        place = child
    values[place], idx[place] = value, where


@njit
def _topk(begin, end, x, values, idx):
    k, strides = values.shape[1], x.shape[1] // STRIDE
    highest = np.empty(strides + 1, dtype=np.int64)
    for i in range(begin, end):
        row, heap, places = x[i], values[i], idx[i]
        for s in range(strides):
            top = _rank(row[s * STRIDE])
            for j in range(STRIDE):
                rank = _rank(row[s * STRIDE + j])
                top = rank if rank > top else top
            highest[s] = top
        # k strides have a number of at least this rank each, so that smaller ones are out of question.
        least = np.int64(-(2**63))
        if strides >= k:
            least = np.partition(highest[:strides], strides - k)[strides - k]
        highest[strides] = np.int64(2**63 - 1)
        found = 0
        for s in range(strides + 1):
            if highest[s] < least:
                continue
            for v in range(s * STRIDE, min((s + 1) * STRIDE, len(row))):
                if found < k:
                    if _rank(row[v]) >= least:
                        heap[found], places[found] = row[v], v
                        found += 1
                        if found == k:
                            for place in range(k // 2 - 1, -1, -1):
                                _sift(heap, places, place, k)
                elif row[v] > heap[0]:
                    heap[0], places[0] = row[v], v
                    _sift(heap, places, 0, k)
        for last in range(k - 1, 0, -1):
            heap[0], heap[last] = heap[last], heap[0]
            places[0], places[last] = places[last], places[0]
            _sift(heap, places, 0, last)


@njit(parallel=True)
def _topk_shares(bounds, x, values, idx):
    for s in prange(len(bounds) - 1):
        _topk(bounds[s], bounds[s + 1], x, values, idx)
