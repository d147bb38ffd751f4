"""Orthogonalise a block against a basis in the inner product of B, column by column: the definition."""

from __future__ import annotations

import torch
from torch import Tensor


def block_b_orth(
    q: Tensor, bq: Tensor, w: Tensor, bw: Tensor, passes: int, cut: float
) -> tuple[Tensor, Tensor, Tensor]:
    """C with W - Q C orthogonal to Q, and W - Q C = W' R with W'^H B W' = I, zeros where dependent."""
    before = (w.conj() * bw).sum(0).real.clamp_min(0.0).sqrt()
    c = w.new_zeros(q.shape[1], w.shape[1])
    w, bw = w.clone(), bw.clone()
    for _ in range(passes):
        for j in range(w.shape[1]):
            step = (bq.conj() * w[:, j : j + 1]).sum(0)
            c[:, j] += step
            w[:, j] -= (q * step).sum(1)
            bw[:, j] -= (bq * step).sum(1)
    gram = torch.stack([(w.conj() * bw[:, j : j + 1]).sum(0) for j in range(w.shape[1])], dim=1)
    mix, r = factors(gram, before, cut)
    return (mix.T @ w.T).T, c, r


def factors(gram: Tensor, before: Tensor, cut: float) -> tuple[Tensor, Tensor]:
    """M and R with (W M)^H B (W M) = I on the kept directions and W = (W M) R, from G = W^H B W.

    The Gram matrix is scaled to the lengths of the columns before they were projected, so that an eigenvalue
    below cut^2 is a direction of which rounding is left. Kept directions come first, the strongest leading.
    """
    length = torch.where(before > 0, before, torch.ones_like(before))
    scaled = gram / (length[:, None] * length)
    values, vectors = torch.linalg.eigh((scaled + scaled.mH) / 2)
    values, vectors = values.flip(0), vectors.flip(1)
    root = values.clamp_min(0.0).sqrt()
    # Squared lengths are known to rounding of the largest: below a few eps nothing is left of a direction.
    kept = (root > cut) & (values > 8 * torch.finfo(values.dtype).eps * values[:1].clamp_min(0.0))
    inverse = torch.where(kept, 1.0 / torch.where(kept, root, 1.0), 0.0)
    mix = vectors / length[:, None].to(vectors.dtype) * inverse.to(vectors.dtype)
    r = (torch.where(kept, root, 0.0).to(vectors.dtype) * vectors).mH * length.to(vectors.dtype)
    return mix, r.contiguous()
