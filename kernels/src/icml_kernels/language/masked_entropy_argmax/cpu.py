"""Scores of chosen rows on the CPU: a thread owns its rows and reads each once, a run of it at a time.

Sums are kept relative to the largest logit so far and rescaled where a run brings a larger one (Milakov and
Gimelshein, arXiv 1805.02867), so that a run is read from memory once and from the first-level cache again.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from typing import Any

import numpy as np
import torch
from torch import Tensor

from icml_kernels.language import rows_cpu
from icml_kernels.language.head import arithmetic
from icml_kernels.language.row_blocks import BUFFER
from icml_kernels.language.rows_cpu import RUN, _exp, _number, _rank
from icml_kernels.njit import njit, prange, threads

# Numbers below which starting threads takes longer than the loop does.
SERIAL = 2**18


def forward(
    logits: Tensor, rows: Tensor, temperature: float, exclude: int
) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """See ``reference.forward``."""
    _check_rows(logits, rows)
    dtype = arithmetic(logits.dtype)
    neg_entropy, maxprob, lse = (logits.new_empty(len(rows), dtype=dtype) for _ in range(3))
    argmax = torch.empty(len(rows), dtype=torch.int64)
    results = (neg_entropy, maxprob, lse, argmax)
    # Two runs of tokens, before and behind the excluded one.
    cut = (exclude, exclude + 1) if exclude >= 0 else (logits.shape[1],) * 2
    options = (lse.numpy().dtype.type(1 / temperature), *cut)
    if logits.dtype == dtype and logits.stride(1) == 1:
        _run(logits, rows, options, results)
        return neg_entropy, maxprob, argmax, lse
    for part in _parts(logits, rows):
        x = logits[rows[part]].to(dtype).contiguous()
        _run(x, torch.arange(len(x)), options, tuple(result[part] for result in results))
    return neg_entropy, maxprob, argmax, lse


def backward(
    g_entropy: Tensor,
    g_max: Tensor,
    g_lse: Tensor,
    logits: Tensor,
    rows: Tensor,
    neg_entropy: Tensor,
    maxprob: Tensor,
    argmax: Tensor,
    lse: Tensor,
    temperature: float,
    exclude: int,
) -> Tensor:
    """See ``reference.backward``; the softmax's loop works on one block of rows at a time."""
    _check_rows(logits, rows)
    by = torch.zeros_like(logits, dtype=lse.dtype, memory_format=torch.contiguous_format)
    peak = g_max * maxprob
    constant = g_lse - peak
    for part in _parts(logits, rows):
        x = logits[rows[part]].to(lse.dtype).contiguous()
        if temperature != 1:
            x /= temperature
        if exclude >= 0:
            x[:, exclude] = -torch.inf
        polynomial = (constant[part], g_entropy[part], torch.zeros_like(constant[part]))
        stats = (argmax[part], lse[part], -neg_entropy[part])
        rows_cpu.gradient_(x, *stats, polynomial, peak[part], 1 / temperature, 0.0)
        by.index_add_(0, rows[part], x)
    return by


def _check_rows(logits: Tensor, rows: Tensor) -> None:
    if not len(rows):
        return
    least, most = (int(t) for t in torch.aminmax(rows))
    if least < 0 or most >= len(logits):
        raise ValueError(f"rows holds {least} to {most}, but logits has the rows 0 to {len(logits) - 1}")


def _parts(logits: Tensor, rows: Tensor) -> Iterator[slice]:
    size = max(1, BUFFER // logits.shape[1])
    for begin in range(0, len(rows), size):
        yield slice(begin, min(begin + size, len(rows)))


def shares_of(rows: int, numbers: int) -> int:
    """In how many runs rows that hold so many numbers are shared out among threads."""
    return 1 if numbers < SERIAL else max(1, min(threads(), rows))


def _run(x: Tensor, rows: Tensor, options: tuple[Any, ...], results: tuple[Tensor, ...]) -> None:
    arguments = (x.numpy(), rows.contiguous().numpy(), *options, *(r.numpy() for r in results))
    shares = shares_of(len(rows), len(rows) * x.shape[1])
    if shares == 1:
        _scores(0, len(rows), *arguments)
    else:
        _scores_shares(np.linspace(0, len(rows), shares + 1).astype(np.int64), *arguments)


@njit
def _scores(begin, end, x, rows, inverse, before, behind, neg_entropy, maxprob, lse, argmax):
    number = x.dtype.type
    low = number(-87.0 if x.itemsize == 4 else -708.0)
    for i in range(begin, end):
        row = x[rows[i]]
        highest, place, top = np.int64(-(2**63)), 0, -np.inf
        e_sum, s_sum = 0.0, 0.0
        runs = (before + RUN - 1) // RUN
        for number_of_run in range(runs + (len(row) - behind + RUN - 1) // RUN):
            if number_of_run < runs:
                run = number_of_run * RUN
                stop = min(run + RUN, before)
            else:
                run = behind + (number_of_run - runs) * RUN
                stop = min(run + RUN, len(row))
            # The largest of integers makes vectors; that of floats would not, for the sake of NaN.
            best = _rank(row[run])
            for v in range(run, stop):
                rank = _rank(row[v])
                best = rank if rank > best else best
            if _number(best) == -np.inf:
                continue
            if best > highest:
                if e_sum > 0.0:
                    delta = (np.float64(_number(best)) - top) * np.float64(inverse)
                    factor = math.exp(-delta)
                    s_sum = factor * (s_sum - delta * e_sum) if factor > 0.0 else 0.0
                    e_sum *= factor
                highest, place, top = np.int64(best), run, np.float64(_number(best))
            shift = number(top)
            e_run, s_run = number(0), number(0)
            for v in range(run, stop):
                s = (row[v] - shift) * inverse
                # 0 log 0 = 0: what underflows, and tokens that are ruled out by -inf, count for nothing.
                s = low if s < low else s
                e = number(0) if s == low else _exp(s)
                e_run += e
                s_run += e * s
            e_sum += np.float64(e_run)
            s_sum += np.float64(s_run)
        if top == -np.inf:
            neg_entropy[i], maxprob[i], lse[i], argmax[i] = np.nan, np.nan, -np.inf, 0
            continue
        while place < len(row) - 1 and np.int64(_rank(row[place])) != highest:
            place += 1
        log_sum = math.log(e_sum)
        neg_entropy[i] = s_sum / e_sum - log_sum
        maxprob[i] = 1.0 / e_sum
        lse[i] = top * np.float64(inverse) + log_sum
        argmax[i] = place


@njit(parallel=True)
def _scores_shares(bounds, x, rows, inverse, before, behind, neg_entropy, maxprob, lse, argmax):
    for s in prange(len(bounds) - 1):
        _scores(bounds[s], bounds[s + 1], x, rows, inverse, before, behind, neg_entropy, maxprob, lse, argmax)
