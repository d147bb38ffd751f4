"""Orthogonalise a block against a basis on the CPU, and on any device: whole blocks inside BLAS.

Two products with the basis a pass. A compiled loop over columns reads the basis once a column.
"""

from __future__ import annotations

import numpy as np
import torch
from torch import Tensor

from icml_kernels.subspaces.block_b_orth.reference import factors


def block_b_orth(
    q: Tensor, bq: Tensor, w: Tensor, bw: Tensor, passes: int, cut: float
) -> tuple[Tensor, Tensor, Tensor]:
    """See ``reference.block_b_orth``."""
    before = _products(w, bw).sqrt()
    standard = bw.data_ptr() == w.data_ptr() and bw.stride() == w.stride()
    c = w.new_zeros(q.shape[1], w.shape[1])
    # Vectors are rows from here on: tall columns next to each other are what BLAS is slowest with.
    rows, images = w.T, bw.T
    for _ in range(passes if q.shape[1] else 0):
        step = rows @ bq.conj()
        c += step.T
        rows = torch.addmm(rows, step, q.T, alpha=-1.0)
        images = rows if standard else torch.addmm(images, step, bq.T, alpha=-1.0)
    gram = rows.conj() @ images.T
    mix, r = factors(gram, before, cut) if gram.is_cuda else _factors(gram, before, cut)
    return (mix.T @ rows).T, c, r


def _factors(gram: Tensor, before: Tensor, cut: float) -> tuple[Tensor, Tensor]:
    """`reference.factors` in NumPy: on a matrix of eight rows the calls cost more than the sums."""
    g, length = gram.numpy(), before.numpy()
    length = np.where(length > 0, length, 1)
    scaled = g / (length[:, None] * length)
    values, vectors = np.linalg.eigh((scaled + scaled.conj().T) / 2)
    values, vectors = values[::-1], vectors[:, ::-1]
    root = np.sqrt(np.maximum(values, 0))
    kept = (root > cut) & (values > 8 * np.finfo(values.dtype).eps * max(float(values.max(initial=0)), 0.0))
    mix = vectors / length[:, None] * np.where(kept, 1 / np.where(kept, root, 1), 0).astype(values.dtype)
    r = (np.where(kept, root, 0).astype(values.dtype) * vectors).conj().T * length
    return torch.from_numpy(np.ascontiguousarray(mix)), torch.from_numpy(np.ascontiguousarray(r))


def _products(w: Tensor, bw: Tensor) -> Tensor:
    """w_j^H B w_j of every column."""
    if w.is_complex():
        return torch.linalg.vecdot(w, bw, dim=0).real.clamp_min(0.0)
    return torch.linalg.vecdot(w, bw, dim=0).clamp_min(0.0)
