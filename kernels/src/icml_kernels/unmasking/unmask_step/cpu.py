"""One symbol a site by inverse cumulated probabilities on the CPU; one row of logits for many draws is cut
once.
"""

from __future__ import annotations

import numpy as np
import torch
from torch import Tensor

from icml_kernels.njit import njit, prange, threads

ALONE = 16384  # weights that one thread is done with before others have begun
# A NaN in a row must be seen in its sum.
STRICT = {"fastmath": {"contract"}, "error_model": "numpy"}


def forward(logits: Tensor, uniform: Tensor) -> tuple[Tensor, Tensor]:
    """See ``reference.forward``."""
    rows, sites = uniform.shape
    symbol = torch.empty((rows, sites), dtype=torch.int64, device=uniform.device)
    logp = torch.zeros(rows, dtype=torch.float64, device=uniform.device)
    given = (logits.contiguous().numpy(), uniform.contiguous().numpy(), symbol.numpy(), logp.numpy())
    if logits.shape[0] == 1 and rows > 1:
        _draw_from_one(*given)
        return symbol, logp
    shares = 1 if logits.numel() <= ALONE else max(1, min(threads(), rows))
    if shares == 1:
        _draw(0, rows, *given)
    else:
        _draw_shares(np.linspace(0, rows, shares + 1).astype(np.int64), *given)
    return symbol, logp


@njit(**STRICT)
def _cumulate(row, cumulated):
    """Cumulated weights, the largest logit, and the last symbol of positive weight."""
    top = -np.inf
    for v in range(len(row)):
        value = np.float64(row[v])
        if value > top or value != value:
            top = value
    total, last = 0.0, 0
    for v in range(len(row)):
        weight = np.exp(np.float64(row[v]) - top)
        total += weight
        cumulated[v] = total
        if weight > 0:
            last = v
    return top, last


@njit(**STRICT)
def _draw(begin, end, logits, uniform, symbol, logp):
    size = logits.shape[2]
    cumulated = np.empty(size, dtype=np.float64)
    for b in range(begin, end):
        summed = 0.0
        for j in range(uniform.shape[1]):
            top, last = _cumulate(logits[b, j], cumulated)
            threshold = uniform[b, j] * cumulated[size - 1]
            v = 0
            while v < last and cumulated[v] <= threshold:
                v += 1
            symbol[b, j] = v
            summed += np.float64(logits[b, j, v]) - top - np.log(cumulated[size - 1])
        logp[b] = summed


@njit(parallel=True, **STRICT)
def _draw_shares(bounds, logits, uniform, symbol, logp):
    for s in prange(len(bounds) - 1):
        _draw(bounds[s], bounds[s + 1], logits, uniform, symbol, logp)


@njit(**STRICT)
def _draw_from_one(logits, uniform, symbol, logp):
    size = logits.shape[2]
    cumulated = np.empty(size, dtype=np.float64)
    for j in range(uniform.shape[1]):
        top, last = _cumulate(logits[0, j], cumulated)
        total = cumulated[size - 1]
        norm = top + np.log(total)
        for b in range(uniform.shape[0]):
            v = np.searchsorted(cumulated, uniform[b, j] * total, side="right")
            v = v if v < last else last
            symbol[b, j] = v
            logp[b] += np.float64(logits[0, j, v]) - norm
