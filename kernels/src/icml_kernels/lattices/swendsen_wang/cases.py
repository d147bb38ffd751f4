"""Lattices on which every route of the sweeps is compared."""

from __future__ import annotations

from typing import Any

import torch

from icml_kernels.testing import Case


def arguments(
    chains: int, rows: int, cols: int, q: int, p: float, sweeps: int, seed: int = 3
) -> tuple[Any, ...]:
    """spins, p, q, n_sweeps and seed."""
    g = torch.Generator().manual_seed(chains + rows)
    spins = torch.randint(0, q, (chains, rows, cols), generator=g).to(torch.int8)
    return spins, p, q, sweeps, seed


CASES = (
    Case("two states", lambda: arguments(3, 6, 6, 2, 0.6, 3)),
    Case("three states", lambda: arguments(2, 5, 7, 3, 0.7, 2)),
    Case("all bonds", lambda: arguments(2, 4, 4, 2, 1.0, 2)),
    Case("no bonds", lambda: arguments(2, 4, 4, 4, 0.0, 2)),
    Case("with a ghost", lambda: arguments(3, 5, 5, 2, 0.5, 4), (("ghost", 0.1), ("ghost_state", 1))),
    Case("double bonds", lambda: arguments(3, 2, 2, 2, 0.4, 3)),
    Case("no sweeps", lambda: arguments(2, 3, 3, 2, 0.5, 0)),
    Case("no lattices", lambda: arguments(0, 3, 3, 2, 0.5, 2)),
    Case("large seed", lambda: arguments(2, 4, 4, 2, 0.5, 2, 2**62 + 11)),
    Case("many chunks", lambda: arguments(2, 40, 40, 2, 0.58, 2), large=True),
)
