"""Products of complex matrices, one a mode, on the CPU: rows of modes are multiplied and summed in place.

The weights of a spectral convolution are read once, in the order in which they are stored, and each row
serves the whole batch while it is in the cache; a batched product of matrices would permute them first.
"""

from __future__ import annotations

import numpy as np
import torch
from torch import Tensor

from icml_kernels.njit import njit, prange, threads

BLOCK = 256  # modes whose sums stay in the first cache for a batch of eight


def mode_product(a: Tensor, b: Tensor, conj_a: bool, conj_b: bool) -> Tensor:
    """See ``reference.mode_product``."""
    p, q, modes = a.shape[:3]
    r = b.shape[1]
    out = torch.zeros(p, r, modes, 2, dtype=a.dtype)
    if out.numel() == 0 or q == 0:
        return out
    (flat_a, *steps_a), (flat_b, *steps_b) = _flat(a), _flat(b)
    sizes = np.array([p, q, r, modes, *steps_a, *steps_b], dtype=np.int64)
    signs = np.array([-1.0 if conj_a else 1.0, -1.0 if conj_b else 1.0], dtype=flat_a.dtype)
    (_shares if threads() > 1 else _serial)(flat_a, flat_b, out.view(-1).numpy(), sizes, signs)
    return out


def _flat(t: Tensor) -> tuple[np.ndarray, int, int]:
    """Memory of rows that are contiguous, and the steps between rows along the first two axes."""
    if (t.stride()[2:] != (2, 1) and t.shape[2] > 1) or t.stride(3) != 1:
        t = t.contiguous()
    extent = sum((n - 1) * s for n, s in zip(t.shape[:2], t.stride()[:2], strict=True)) + 2 * t.shape[2]
    return t.as_strided((extent,), (1,)).numpy(), t.stride(0), t.stride(1)


@njit
def _accumulate(c, a, b, sign_a, sign_b):
    for k in range(len(c)):
        a_re, a_im = a[k, 0], sign_a * a[k, 1]
        b_re, b_im = b[k, 0], sign_b * b[k, 1]
        c[k, 0] += a_re * b_re - a_im * b_im
        c[k, 1] += a_re * b_im + a_im * b_re


@njit
def _task(job, a, b, c, sizes, signs):
    """One column of results and one block of modes."""
    p, q, r, modes = sizes[0], sizes[1], sizes[2], sizes[3]
    column, begin = job % r, (job // r) * BLOCK
    count = min(BLOCK, modes - begin)
    for k in range(q):
        at_b = k * sizes[6] + column * sizes[7] + 2 * begin
        b_row = b[at_b : at_b + 2 * count].reshape(count, 2)
        for i in range(p):
            at_a = i * sizes[4] + k * sizes[5] + 2 * begin
            at_c = 2 * ((i * r + column) * modes + begin)
            a_row = a[at_a : at_a + 2 * count].reshape(count, 2)
            _accumulate(c[at_c : at_c + 2 * count].reshape(count, 2), a_row, b_row, signs[0], signs[1])


@njit
def _serial(a, b, c, sizes, signs):
    for job in range(sizes[2] * ((sizes[3] + BLOCK - 1) // BLOCK)):
        _task(job, a, b, c, sizes, signs)


@njit(parallel=True)
def _shares(a, b, c, sizes, signs):
    for job in prange(sizes[2] * ((sizes[3] + BLOCK - 1) // BLOCK)):
        _task(job, a, b, c, sizes, signs)
