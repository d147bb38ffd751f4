"""The filter-generating network of a SchNet layer: a vector of filters as a function of a distance.

``W(r) = C(r) W2 act(W1 e(r) + b1)``, without a bias in the outer layer (arXiv 2602.13140; official code).
"""

from __future__ import annotations

from typing import Any

import torch
from jaxtyping import Float
from torch import Tensor, nn

from icml_flashschnet.activation import Activation, activate, activation_slope
from icml_flashschnet.layers import linear
from icml_flashschnet.radial import RadialBasis, cosine_cutoff, cosine_cutoff_slope


class FilterNetwork(nn.Module):
    """Filters ``W(r)`` of one layer, from a radial basis through a two-layer network.

    Args:
        basis: the radial basis.
        n_filters: width F.
        activation: ``"tanh"`` or ``"ssp"``.
        envelope: multiply the filters by ``C(r)`` once more; without it, a basis alone cannot make the
            filters vanish at the cutoff, and energies jump where a pair crosses it.
        generator: source of the initial weights (Xavier uniform, zero bias).
    """

    def __init__(
        self,
        basis: RadialBasis,
        n_filters: int,
        *,
        activation: Activation = "tanh",
        envelope: bool = True,
        generator: torch.Generator,
    ) -> None:
        super().__init__()
        self.basis, self.activation, self.envelope = basis, activation, envelope
        self.inner = linear(basis.n_rbf, n_filters, generator)
        self.outer = linear(n_filters, n_filters, generator, bias=False)

    def forward(self, r: Float[Tensor, " pairs"]) -> Float[Tensor, "pairs filters"]:
        """Filters at distances ``r`` (Å), differentiable to any order."""
        filters = self.outer(activate(self.activation, self.inner(self.basis(r))))
        return filters * self._outer_envelope(r)[:, None]

    def operands(self) -> dict[str, Tensor]:
        """The tensors of the fused operator ``cfconv_mlp``, in its order."""
        centers = self.basis.centers(self.inner.weight)
        return {
            "w1": self.inner.weight,
            "b1": self.inner.bias,
            "w2": self.outer.weight,
            "b2": self.outer.weight.new_zeros(self.outer.out_features),
            "centers": centers,
            "widths": torch.full_like(centers, abs(self.basis.gamma)),
        }

    def options(self) -> dict[str, Any]:
        """The options of the fused operator ``cfconv_mlp``, in its order."""
        return {
            "cutoff": self.basis.r_cut,
            "basis": "gaussian" if self.basis.kind == "gauss" else "expnorm",
            "alpha": -5.0 / self.basis.r_cut,  # the basis decays: see RadialBasis
            "origin": 0.0,
            "activation": self.activation,
            "basis_envelope": self.basis.envelope,
            "filter_envelope": self.envelope,
        }

    def with_slope(
        self, r: Float[Tensor, " pairs"]
    ) -> tuple[Float[Tensor, "pairs filters"], Float[Tensor, "pairs filters"]]:
        """Filters and their exact slopes ``dW/dr`` (1/Å), the derivative carried forward beside the value.

        Both are differentiable in the weights.

        The slope includes ``dC/dr`` of the outer envelope. Kernels published with the paper leave that
        term out, so that their forces are not the gradient of their energy.
        """
        basis, basis_slope = self.basis.with_slope(r)
        hidden = activate(self.activation, self.inner(basis))
        hidden_slope = (basis_slope @ self.inner.weight.T) * activation_slope(self.activation, hidden)
        filters, slopes = hidden @ self.outer.weight.T, hidden_slope @ self.outer.weight.T
        cut = self._outer_envelope(r)[:, None]
        slopes = slopes * cut
        if self.envelope:
            slopes = slopes + filters * cosine_cutoff_slope(r, self.basis.r_cut)[:, None]
        return filters * cut, slopes

    def _outer_envelope(self, r: Tensor) -> Tensor:
        """C(r); without the envelope a step, since pairs beyond the cutoff do not interact in any case."""
        return cosine_cutoff(r, self.basis.r_cut) if self.envelope else (r < self.basis.r_cut).to(r.dtype)
