"""Symmetric matrices that are easy and awkward, and how wrong their eigenvalues and eigenvectors are."""

from __future__ import annotations

import torch

SIZES = (1, 2, 7, 8, 16, 31, 32)
EPSILON = {torch.float32: 1.2e-7, torch.float64: 2.3e-16}


def random(*shape: int, seed: int = 0) -> torch.Tensor:
    """Normal numbers in float64."""
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


def with_values(values: torch.Tensor, seed: int = 0) -> torch.Tensor:
    """A symmetric matrix of random eigenvectors and given eigenvalues."""
    basis, _ = torch.linalg.qr(random(len(values), len(values), seed=seed))
    made = (basis * values) @ basis.T
    return (made + made.T) / 2


def matrices(size: int) -> dict[str, torch.Tensor]:
    """What is easy and what is awkward, by name."""
    even = torch.linspace(-1.0, 1.0, size, dtype=torch.float64)
    cluster = torch.where(even > 0, 1.0 + 1e-9 * even, even.round())  # -1, 0 and nearly 1, each many times
    of_low_rank = random(size, max(1, size // 3), seed=size)
    dense = random(size, size, seed=size + 1)
    return {
        "zero": torch.zeros(size, size, dtype=torch.float64),
        "identity": torch.eye(size, dtype=torch.float64),
        "diagonal": torch.diag(random(size, seed=size + 2)),
        "dense": dense + dense.T,
        "clusters": with_values(cluster, seed=size + 3),
        "one value": with_values(torch.full((size,), 0.7, dtype=torch.float64), seed=size + 4),
        "of low rank": of_low_rank @ of_low_rank.T,
        "ones": torch.ones(size, size, dtype=torch.float64),
        "graded": with_values(torch.logspace(0, -14, size, dtype=torch.float64), seed=size + 5),
        "tiny": 1e-20 * (dense @ dense.T),
        "huge": 1e20 * (dense + dense.T),
    }


def worst_error(a: torch.Tensor, values: torch.Tensor, vectors: torch.Tensor) -> float:
    """The largest error of values, A V = V diag(values) and V^T V = 1, in units of rounding times size.

    Infinite where the values do not ascend, or are no numbers.
    """
    size, unit = a.shape[1], EPSILON[a.dtype] * a.shape[1]
    a, found, basis = a.double(), values.double(), vectors.double()
    if not bool((found[:, 1:] >= found[:, :-1]).all() & basis.isfinite().all() & found.isfinite().all()):
        return float("inf")
    scale = a.abs().amax((1, 2)).clamp_min(1e-300)
    wrong = (found - torch.linalg.eigvalsh(a)).abs() / scale[:, None]
    left = (a @ basis - basis * found[:, None]).abs() / scale[:, None, None]
    turned = (basis.mT @ basis - torch.eye(size, dtype=torch.float64)).abs()
    return float(max(wrong.max(), left.max(), turned.max())) / unit
