"""Energies on which every route of the chains is compared."""

from __future__ import annotations

from typing import Any

import torch

from icml_kernels.lattices.hamming_ball_mh import SparseTerms, sparse_terms
from icml_kernels.testing import Case


def random_terms(sites: int, symbols: int, terms: int, order: int, *, equal: bool = False) -> SparseTerms:
    """Terms of up to ``order`` random sites with normal coefficients."""
    g = torch.Generator().manual_seed(sites + terms)
    least = 2 if equal else 1
    chosen = []
    for _ in range(terms):
        width = int(torch.randint(least, order + 1, (), generator=g))
        chosen.append(torch.randperm(sites, generator=g)[:width].tolist())
    coefficients = torch.randn(terms, generator=g, dtype=torch.float64)
    values = torch.linspace(-1, 1, symbols, dtype=torch.float64)
    return sparse_terms(sites, chosen, coefficients, values, equal=equal)


def arguments(chains: int, terms: SparseTerms, radius: int, steps: int, seed: int = 5) -> tuple[Any, ...]:
    """x, beta, terms, radius, n_steps and seed."""
    g = torch.Generator().manual_seed(chains)
    sites, symbols = terms.site_ptr.shape[0] - 1, terms.values.shape[0]
    x = torch.randint(0, symbols, (chains, sites), generator=g)
    return x, torch.linspace(0.5, 1.0, chains, dtype=torch.float64), terms, radius, steps, seed


CASES = (
    Case("pairs and fields", lambda: arguments(5, random_terms(6, 2, 9, 2), 1, 20)),
    Case("a ball of five", lambda: arguments(40, random_terms(8, 2, 12, 3), 5, 15)),
    Case("three symbols", lambda: arguments(6, random_terms(5, 3, 8, 2), 2, 15)),
    Case("equal symbols", lambda: arguments(6, random_terms(6, 3, 8, 3, equal=True), 2, 15)),
    Case("no terms", lambda: arguments(4, random_terms(5, 2, 0, 2), 2, 5)),
    Case("no steps", lambda: arguments(4, random_terms(5, 2, 4, 2), 2, 0)),
    Case("no chains", lambda: arguments(0, random_terms(5, 2, 4, 2), 2, 3)),
    Case("one site", lambda: arguments(4, random_terms(1, 2, 1, 1), 3, 6)),
)
