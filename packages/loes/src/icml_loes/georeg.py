"""GeoReg: a loss that flattens the spectrum of a batch's features and spreads its class centroids.

    L = w ( Var(ev(cov(Z) + 1e-4 I)) - log(area(c_a, c_b, c_c) + 1e-6) )

with cov and Var unbiased and one random triple of distinct class centroids a batch (arXiv 2605.23033). The
variance needs no eigenvalues: Var(ev) = (||C||_F^2 - (tr C)^2 / D) / (D - 1), which the shift by 1e-4 I does
not change. In a batch of B < D it costs O(B^2 D) instead of O(D^3), and its gradient is finite where
eigenvalues coincide, as those of a covariance of B < D rows do: all but B - 1 are zero.
"""

from __future__ import annotations

from typing import Any

import torch
from icml_kernels import spectrum_moments
from jaxtyping import Float, Int
from torch import Tensor, nn

from icml_loes.triangles import draw_triples, triangle_areas

SHIFT = 1e-4
"""Added to the covariance by the paper's code."""
LEAST_EIGENVALUE = 1e-6
LEAST_AREA = 1e-6
"""Under the logarithm, and below the square root of the squared double area."""


class GeoRegLoss(nn.Module):
    """The regulariser, to be added to a cross-entropy. It has no parameters.

    Args:
        weight: w.
        triangles: ``"one"`` random triple a call, or ``"all"``: the mean over every triple, which is the
            expectation of the former (an extension).
        spectrum: ``"gram"``, or ``"eigh"`` for the paper's eigen-decomposition.
        isotropy, spread: whether to use the first and the second term.
        seed: of the triples, where no generator is given.

    Raises:
        ValueError: an unknown option, or a weight that is negative or not finite.

    Example:
        >>> z = torch.randn(12, 5, generator=torch.Generator().manual_seed(0))
        >>> GeoRegLoss(triangles="all")(z, torch.arange(12) % 3).shape
        torch.Size([])
    """

    def __init__(
        self,
        weight: float = 0.1,
        triangles: str = "one",
        spectrum: str = "gram",
        *,
        isotropy: bool = True,
        spread: bool = True,
        seed: int = 0,
    ) -> None:
        super().__init__()
        if triangles not in ("one", "all") or spectrum not in ("gram", "eigh"):
            raise ValueError(
                f"triangles={triangles!r}, spectrum={spectrum!r}; expected 'one' or 'all', and 'gram' or "
                "'eigh'"
            )
        if not 0 <= weight < float("inf"):
            raise ValueError(f"weight={weight}; expected a number from 0 on")
        self.weight, self.triangles, self.spectrum = weight, triangles, spectrum
        self.isotropy, self.spread = isotropy, spread
        self._generator = torch.Generator().manual_seed(seed)

    def forward(
        self,
        features: Float[Tensor, "batch dim"],
        labels: Int[Tensor, " batch"],
        generator: torch.Generator | None = None,
    ) -> Float[Tensor, ""]:
        """The loss; 0 where the batch has fewer than three classes.

        Args:
            features: Z.
            labels: class of each row.
            generator: of the triple, on the CPU.

        Raises:
            TypeError: features that are not floating, or labels that are.
            ValueError: shapes that do not fit together, fewer than two columns.
        """
        _check(features, labels)
        classes, numbers = labels.unique(return_inverse=True)
        if len(classes) < 3:
            return features.sum() * 0.0
        total = features.new_zeros(())
        if self.isotropy:
            total = total + spectrum_variance(features, self.spectrum)
        if self.spread:
            areas = self._areas(features, numbers, len(classes), generator or self._generator)
            total = total - (areas + LEAST_AREA).log().mean()
        return self.weight * total

    def _areas(
        self, z: Tensor, numbers: Tensor, count: int, generator: torch.Generator
    ) -> Float[Tensor, " triples"]:
        if self.triangles == "all":
            triples = draw_triples(count, "all")
        else:
            triples = torch.randperm(count, generator=generator)[None, :3]
        indicator = torch.nn.functional.one_hot(numbers, count).to(z.dtype)
        means = (indicator.T @ z) / indicator.sum(0)[:, None]
        # Areas do not depend on the origin; at the middle of the centroids least is lost to rounding.
        means = means - means.mean(0)
        return triangle_areas(means @ means.T, triples, LEAST_AREA)

    def extra_repr(self) -> str:
        """Shown by ``repr``."""
        return f"weight={self.weight}, triangles={self.triangles!r}, spectrum={self.spectrum!r}"


def georeg(
    features: Float[Tensor, "batch dim"], labels: Int[Tensor, " batch"], **options: Any
) -> Float[Tensor, ""]:
    """``GeoRegLoss(**options)(features, labels)``."""
    loss: Tensor = GeoRegLoss(**options)(features, labels)
    return loss


def spectrum_variance(features: Float[Tensor, "batch dim"], spectrum: str = "gram") -> Float[Tensor, ""]:
    """Unbiased variance of the D eigenvalues of cov(Z) + 1e-4 I.

    Args:
        features: Z, at least two rows and columns.
        spectrum: ``"gram"`` or ``"eigh"``.
    """
    dim = features.shape[1]
    if spectrum == "gram":
        return spectrum_moments(features).variance(dim, 1)
    centred = features - features.mean(0)
    covariance = centred.T @ centred / (len(features) - 1)
    shifted = covariance + SHIFT * torch.eye(dim, dtype=features.dtype, device=features.device)
    return torch.linalg.eigvalsh(shifted).clamp_min(LEAST_EIGENVALUE).var()


def _check(features: Tensor, labels: Tensor) -> None:
    if not isinstance(features, Tensor) or not features.is_floating_point():
        raise TypeError(
            f"features must be a floating tensor, got {getattr(features, 'dtype', type(features))}"
        )
    if not isinstance(labels, Tensor) or labels.is_floating_point() or labels.is_complex():
        raise TypeError(f"labels must be whole numbers, got {getattr(labels, 'dtype', type(labels))}")
    if features.dim() != 2 or tuple(labels.shape) != (len(features),) or features.shape[1] < 2:
        raise ValueError(
            f"features have shape {list(features.shape)} and labels {list(labels.shape)}; expected [batch, "
            "dim] with "
            "two columns or more, and [batch]"
        )
    if len(features) < 2:
        raise ValueError("a batch of one example has no covariance; give two or more")
