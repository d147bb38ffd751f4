"""Slow and plain: TWED in Python loops, and soft TWED whose derivative forgets the previous match."""

from __future__ import annotations

import math

import numpy as np
import torch
from jaxtyping import Float
from torch import Tensor


def hard_twed(
    x: Float[np.ndarray, "n channels"], u: Float[np.ndarray, "m channels"], nu: float, lam: float
) -> float:
    """TWED with times 1, 2, …, by the recurrence as it is printed (Marteau, IEEE TPAMI 31 (2009) 306-318)."""
    a, b = np.vstack([np.zeros_like(x[:1]), x]), np.vstack([np.zeros_like(u[:1]), u])
    table = np.full((len(a), len(b)), math.inf)
    table[0, 0] = 0.0
    for i in range(1, len(a)):
        for j in range(1, len(b)):
            gap = abs(i - j) + abs((i - 1) - (j - 1))
            match = (
                table[i - 1, j - 1]
                + np.linalg.norm(a[i] - b[j])
                + np.linalg.norm(a[i - 1] - b[j - 1])
                + nu * gap
            )
            up = table[i - 1, j] + np.linalg.norm(a[i] - a[i - 1]) + nu + lam
            left = table[i, j - 1] + np.linalg.norm(b[j] - b[j - 1]) + nu + lam
            table[i, j] = min(match, up, left)
    return float(table[-1, -1])


def forgetful_gradient(
    x: Float[Tensor, "n channels"],
    u: Float[Tensor, "m channels"],
    gamma: float,
    nu: float,
    lam: float,
    smoothing: float,
) -> Float[Tensor, "m channels"]:
    """The gradient by u of soft TWED where the previous pair of a match counts for the value alone."""
    leaf = u.clone().requires_grad_()

    def norm(v: Tensor) -> Tensor:
        return (v @ v + smoothing**2).sqrt()

    zero, far = leaf.new_zeros(()), leaf.new_tensor(1e15)
    above = [zero] + [far] * len(u)
    for i in range(len(x)):
        row = [far]
        for j in range(len(u)):
            previous = norm(x[i - 1] - leaf[j - 1]).detach() + nu * abs(i - j) if i and j else zero
            match = above[j] + norm(x[i] - leaf[j]) + nu * abs(i - j) + previous
            up = above[j + 1] + (norm(x[i] - x[i - 1]) if i else zero) + nu + lam
            left = row[j] + (norm(leaf[j] - leaf[j - 1]) if j else zero) + nu + lam
            row.append(-gamma * torch.logsumexp(-torch.stack([match, up, left]) / gamma, 0))
        above = row
    return torch.autograd.grad(above[-1], leaf)[0]
