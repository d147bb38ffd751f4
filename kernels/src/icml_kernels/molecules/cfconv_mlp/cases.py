"""Inputs on which every route of the filter-network convolution is compared."""

from __future__ import annotations

from typing import Any

import torch

from icml_kernels.molecules.cases import clusters, distances, random
from icml_kernels.molecules.neighbors import half_list
from icml_kernels.testing import Case

CUTOFF = 4.0


def arguments(
    sizes: tuple[int, ...] = (9, 5),
    filters: int = 8,
    *,
    hidden: int = 6,
    n_basis: int = 7,
    spare: int = 0,
) -> tuple[Any, ...]:
    """x, distances, pairs, w1, b1, w2, b2, centers, widths."""
    positions, pairs = clusters(sizes, CUTOFF, spare=spare)
    weights = (
        random(hidden, n_basis, seed=2) / n_basis**0.5,
        random(hidden, seed=3),
        random(filters, hidden, seed=4) / hidden**0.5,
        random(filters, seed=5),
        torch.linspace(0, CUTOFF, n_basis, dtype=torch.float64),
        torch.linspace(0.8, 1.4, n_basis, dtype=torch.float64),
    )
    return random(sum(sizes), filters), distances(positions, pairs), pairs, *weights


def _no_pairs() -> tuple[Any, ...]:
    none = torch.zeros(0, dtype=torch.int64)
    return random(3, 8), random(0), half_list(none, none, 3), *arguments()[3:]


EXPNORM = (("basis", "expnorm"), ("alpha", -0.6), ("origin", 0.3))

CASES = (
    *(
        # Three pairs where it is wide: Triton's interpreter takes seconds for each.
        Case(
            f"width {f}, hidden {h}",
            lambda f=f, h=h: arguments((4, 2) if f <= 128 else (3,), f, hidden=h, n_basis=20),
        )
        for f, h in ((8, 8), (96, 96), (128, 128), (200, 200), (256, 64))
    ),
    Case("softplus", arguments, (("activation", "ssp"),)),
    Case("expnorm", arguments, EXPNORM),
    Case("no envelope in the basis", arguments, (("basis_envelope", False),)),
    Case("no envelope on the filter", arguments, (("filter_envelope", False), ("activation", "ssp"))),
    Case("no envelope at all", arguments, (("basis_envelope", False), ("filter_envelope", False), *EXPNORM)),
    Case("one large cluster", lambda: arguments((40,), 16), large=True),
    Case("spare places", lambda: arguments(spare=13)),
    Case("no pairs", _no_pairs),
)
