"""The contraction factor of one refinement step, measured: the norm of its Jacobian, and ratios of steps.

By Theorem 3.1 of arXiv 2605.24041, |e_{k+1}| <= q |e_k| + c |e_k|^2 + alpha |b| with e_k = y - h_k, b =
Phi(x, y) and q = |I + alpha dPhi/dh|; so errors fall like q^k to the floor alpha |b| / (1 - q). What is
measured holds locally on the samples at hand, and nowhere else.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from itertools import pairwise

import torch
from jaxtyping import Float
from torch import Tensor


def jacobian_norm(
    step: Callable[[Tensor], Tensor], h: Float[Tensor, "batch ..."], iters: int = 20, seed: int = 0
) -> Float[Tensor, " batch"]:
    """|J| of each sample, J the Jacobian of ``step`` at h, by power iteration on J^T J; from below.

    Args:
        step: maps a batch to a batch, each sample by itself.
        h: where.
        iters: steps; each costs a product with J and one with its transpose.
        seed: of the first vectors.

    Raises:
        ValueError: iters below 1.

    Example:
        >>> jacobian_norm(lambda h: 0.5 * h, torch.ones(1, 3))
        tensor([0.5000])
    """
    if iters < 1:
        raise ValueError(f"iters={iters}; expected at least 1")
    h = h.detach()
    generator = torch.Generator().manual_seed(seed)
    v = torch.randn(h.shape[1:], generator=generator, dtype=torch.float64).to(h).expand_as(h)
    norms = torch.zeros(h.shape[0], dtype=h.dtype, device=h.device)
    with torch.no_grad():  # of the weights; the transforms below have their own
        _, transposed = torch.func.vjp(step, h)
        for _ in range(iters):
            v = _unit(v)[0]
            _, moved = torch.func.jvp(step, (h,), (v,))
            direction, norms = _unit(moved)
            (v,) = transposed(direction)
    return norms


def step_ratios(iterates: Sequence[Float[Tensor, "batch ..."]]) -> Float[Tensor, "steps batch"]:
    """|h_{k+1} - h_k| / |h_k - h_{k-1}| for k = 1, 2, ...: the contraction on the segments that were walked.

    Raises:
        ValueError: fewer than three iterates.
    """
    if len(iterates) < 3:
        raise ValueError(f"{len(iterates)} iterates have no ratio of steps; three are needed")
    lengths = torch.stack([(b - a).flatten(1).norm(dim=1) for a, b in pairwise(iterates)])
    return lengths[1:] / lengths[:-1].clamp_min(torch.finfo(lengths.dtype).tiny)


def error_bound(
    error: Float[Tensor, " batch"],
    bias: Float[Tensor, " batch"],
    q: Float[Tensor, " batch"],
    alpha: float,
    k: int,
) -> Float[Tensor, " batch"]:
    """q^k |e_0| + alpha |b| (1 - q^k) / (1 - q): what |e_k| may be at most if q bounds every step towards y.

    Args:
        error: |e_0|.
        bias: |Phi(x, y)|.
        q: contraction factor; may exceed 1.
        alpha: step size.
        k: number of steps.
    """
    steps = torch.stack([q**j for j in range(k)]).sum(0) if k else torch.zeros_like(q)
    return q**k * error + alpha * bias * steps


def _unit(v: Tensor) -> tuple[Tensor, Tensor]:
    norms = v.flatten(1).norm(dim=1)
    wide = norms.view(-1, *[1] * (v.dim() - 1))
    return v / wide.clamp_min(torch.finfo(v.dtype).tiny), norms
