"""Isotropy of a layer: mean over standard deviation of its covariance's eigenvalues, without computing them.

    iso(X) = mean(ev) / (std(ev) + 1e-6),   mean(ev) = tr C / r,   std(ev)^2 = ||C||_F^2 / r - (tr C / r)^2

over r eigenvalues of C = X^T X / n, X centred (arXiv 2605.23033).
"""

from __future__ import annotations

import torch
from jaxtyping import Float
from torch import Tensor

EPSILON = 1e-6
"""Added to the standard deviation, as in the paper's code."""
FULL_SPECTRUM = 512
"""Up to this width the paper's code takes all D eigenvalues, beyond it min(n, D) squared singular values."""
DEFINITIONS = ("paper", "dimension")


def eigenvalue_count(n: int, dim: int, definition: str = "paper") -> int:
    """r: how many eigenvalues the mean and deviation are of.

    Args:
        n: examples.
        dim: width of the layer.
        definition: ``"paper"`` (D up to 512, else min(n, D)) or ``"dimension"`` (always D, and the
            1e-6 is in units of the mean eigenvalue, so that scale does not matter).

    Raises:
        ValueError: another definition.
    """
    if definition not in DEFINITIONS:
        raise ValueError(f"isotropy={definition!r} is not one of {', '.join(DEFINITIONS)}")
    return dim if definition == "dimension" or dim <= FULL_SPECTRUM else min(n, dim)


def isotropy_of_moments(trace: float, square: float, count: int, definition: str = "paper") -> float:
    """iso from tr C, ||C||_F^2 and the number of eigenvalues; at most 1e6, of a white layer, times the
    mean."""
    mean = trace / count
    deviation = max(square / count - mean * mean, 0.0) ** 0.5
    if definition == "dimension":
        return 1 / (deviation / mean + EPSILON) if mean > 0 else 0.0
    return mean / (deviation + EPSILON)


def isotropy(x: Float[Tensor, "n dim"], definition: str = "paper") -> float:
    """iso of one layer, in float64.

    Raises:
        ValueError: not two dimensions; an unknown definition.

    Example:
        >>> round(isotropy(torch.tensor([[1.0, 0.0], [-1.0, 0.0], [0.0, 2.0], [0.0, -2.0]])), 3)
        1.667
    """
    from icml_kernels import spectrum_moments

    if x.dim() != 2:
        raise ValueError(f"a layer has shape {list(x.shape)}; expected [examples, dim]")
    found = spectrum_moments(x.detach().to(torch.float64), correction=0)
    count = eigenvalue_count(len(x), x.shape[1], definition)
    return isotropy_of_moments(float(found.trace), float(found.square), count, definition)
