"""Inputs on which every route of the radial spectral loss is compared."""

from __future__ import annotations

import torch
from torch import Tensor

from icml_kernels.spectral.radial_spectral_loss import spectral_amplitude
from icml_kernels.testing import Case


def fields(*shape: int, seed: int = 0) -> tuple[Tensor, Tensor]:
    """A field, and the amplitudes of another, in float64."""
    generator = torch.Generator().manual_seed(seed)
    pred = torch.randn(*shape, generator=generator, dtype=torch.float64)
    return pred, spectral_amplitude(torch.randn(*shape, generator=generator, dtype=torch.float64))


CASES = (
    Case("line", lambda: fields(3, 2, 16), (("lam", 1.0),)),
    Case("odd line", lambda: fields(2, 1, 9), (("lam", 2.0), ("hermitian", True))),
    Case("plane", lambda: fields(2, 3, 8, 8), (("lam", 1.5),)),
    Case("plane of two sizes", lambda: fields(1, 2, 6, 9), (("lam", 1.25), ("hermitian", True))),
    Case("volume", lambda: fields(2, 1, 4, 6, 8), (("lam", 0.5),)),
    Case("one point", lambda: fields(2, 2, 1), (("lam", 1.0),)),
    Case("equal weights", lambda: fields(1, 1, 5, 4), (("lam", 0.0),)),
    Case("many bins", lambda: fields(2, 1, 64, 66), (("lam", 1.5),), large=True),
)
