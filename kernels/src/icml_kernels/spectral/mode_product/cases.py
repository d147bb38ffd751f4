"""Inputs on which every route of the mode product is compared."""

from __future__ import annotations

import torch
from torch import Tensor

from icml_kernels.testing import Case


def factors(p: int, q: int, r: int, modes: int, seed: int = 0) -> tuple[Tensor, Tensor]:
    """Two factors in float64."""
    generator = torch.Generator().manual_seed(seed)
    shapes = ((p, q, modes, 2), (q, r, modes, 2))
    a, b = (torch.randn(s, generator=generator, dtype=torch.float64) for s in shapes)
    return a, b


CASES = (
    Case("small", lambda: factors(2, 3, 4, 5)),
    Case("one of each", lambda: factors(1, 1, 1, 1)),
    Case("conjugated left", lambda: factors(3, 2, 2, 7), (("conj_a", True),)),
    Case("conjugated right", lambda: factors(3, 2, 2, 7), (("conj_b", True),)),
    Case("both conjugated", lambda: factors(2, 5, 3, 33), (("conj_a", True), ("conj_b", True))),
    Case("nothing to sum", lambda: factors(2, 0, 3, 4)),
    Case("no row", lambda: factors(0, 2, 3, 4)),
    Case("more modes than a block", lambda: factors(2, 2, 3, 600), large=True),
)
