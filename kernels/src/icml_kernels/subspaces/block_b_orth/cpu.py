"""Orthogonalise a block against a basis on the CPU, and on any device: whole blocks inside BLAS.

Two products with the basis a pass. A compiled loop over columns reads the basis once a column.
"""

from __future__ import annotations

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
    mix, r = factors((rows.conj() @ images.T), before, cut)
    return (mix.T @ rows).T, c, r


def _products(w: Tensor, bw: Tensor) -> Tensor:
    """w_j^H B w_j of every column."""
    if w.is_complex():
        return torch.linalg.vecdot(w, bw, dim=0).real.clamp_min(0.0)
    return torch.linalg.vecdot(w, bw, dim=0).clamp_min(0.0)
