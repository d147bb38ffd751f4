"""The tangent equation on a Krylov space: a 16 x 16 problem in place of matrix signs.

h(lambda) = u^T msign(Z) v, Z = M + lambda u v^T. Since msign(Z) = (Z Z^T)^(-1/2) Z, and Z Z^T differs from
M M^T by terms inside the span of u and M v, one basis serves every lambda (`icml_kernels.block_lanczos`), and
h on it costs an eigenvalue problem of that size (`icml_kernels.matrices.krylov_sign`).
"""

from __future__ import annotations

from icml_kernels import KrylovModel
from icml_kernels.matrices.krylov_sign import KrylovSign
from jaxtyping import Float
from torch import Tensor


class TangentModel:
    """h on the Krylov space of each matrix of a batch, in float64.

    Args:
        model: of M / ||M||_F.
        steps: Newton-Schulz steps of the matrix sign.
        largest: the least upper bound known for |lambda*|, 2 ||M||_* (arXiv 2601.08393, A.2).
        square: ||M||_F^2 as normalised: 1, or 0 for a zero matrix.
        synchronise: whether iterations may end when their results say so.
    """

    def __init__(
        self,
        model: KrylovModel,
        steps: int,
        largest: float,
        square: Float[Tensor, " batch"],
        synchronise: bool = True,
    ) -> None:
        self.largest = largest
        self.overlap = model.overlap.double()
        adaptive = synchronise and not model.t.is_cuda
        self._sign = KrylovSign(
            model.t.double(),
            model.a.double(),
            model.b.double(),
            self.overlap,
            square.double(),
            steps,
            largest,
            adaptive,
        )

    def h(self, lam: Float[Tensor, "batch points"]) -> Float[Tensor, "batch points"]:
        """h_k at several multipliers of each matrix."""
        return self._sign.h(lam)

    def root(self) -> Float[Tensor, " batch"]:
        """The multiplier at which h_k changes sign."""
        return self._sign.root()

    def corrected_root(
        self,
        center: Float[Tensor, " batch"],
        shift: Float[Tensor, " batch"],
        tilt: Float[Tensor, " batch"],
        reach: Float[Tensor, " batch"],
    ) -> Float[Tensor, " batch"]:
        """The root of h_k(lambda) + shift + tilt (lambda - center) within ``reach`` of the center."""
        return self._sign.root_near(center, shift, tilt, reach)

    def slope(self, lam: Float[Tensor, " batch"]) -> Float[Tensor, " batch"]:
        """dh_k / dlambda by central differences."""
        return self._sign.slope(lam)
