"""Products of complex matrices, one a mode, in plain torch: the definition."""

from __future__ import annotations

import torch
from torch import Tensor


def mode_product(a: Tensor, b: Tensor, conj_a: bool, conj_b: bool) -> Tensor:
    """c[p, r, m] = sum_q a[p, q, m] b[q, r, m]; complex numbers are pairs in the last axis."""
    a_re, a_im = a[..., 0], -a[..., 1] if conj_a else a[..., 1]
    b_re, b_im = b[..., 0], -b[..., 1] if conj_b else b[..., 1]

    def product(x: Tensor, y: Tensor) -> Tensor:
        return torch.einsum("pqm,qrm->prm", x, y)

    re = product(a_re, b_re) - product(a_im, b_im)
    im = product(a_re, b_im) + product(a_im, b_re)
    return torch.stack([re, im], -1)
