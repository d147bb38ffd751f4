"""The tangent equation on a Krylov space: an entry of a matrix sign, and the multiplier at which it vanishes.

    h(lambda) = u^T msign(Z) v,   Z = M + lambda u v^T
    Q^T Z Z^T Q = T + lambda (a b^T + b a^T) + lambda^2 a a^T = V E V^T
    h_k = (V^T a)^T diag(p(s / nu) / s) (V^T (b + lambda a)),   s = sqrt(E),   nu = ||Z||_F

msign(Z) = (Z Z^T)^(-1/2) Z, and Q spans what Z Z^T makes of u and M v for every lambda
(`icml_kernels.block_lanczos` gives T, a and b); p is the composite Newton-Schulz polynomial of the matrix
sign itself, so that the two agree (arXiv 2601.08393 bisects h with a matrix sign at each value).
"""

from __future__ import annotations

from functools import cache

import torch
from jaxtyping import Float64
from torch import Tensor

from icml_kernels.dispatch import raw_op
from icml_kernels.matrices.krylov_sign import reference
from icml_kernels.matrices.polar_express import polar_express_coefficients

_HERE = "icml_kernels.matrices.krylov_sign"


class KrylovSign:
    """h on the Krylov space of each matrix of a batch. Not differentiable.

    Args:
        t: Q^T M M^T Q of M / ||M||_F, float64.
        a: Q^T u.
        b: Q^T M v.
        overlap: u^T M v.
        square: ||M||_F^2 as normalised: 1, or 0 for a zero matrix.
        steps: Newton-Schulz steps of the matrix sign.
        largest: A bound of |lambda|.
        adaptive: Whether iterations may end when their results say so, for which the host waits.

    Raises:
        TypeError: Tensors that are not float64.
        ValueError: Shapes that do not fit together.

    Example:
        >>> one = torch.ones(1, dtype=torch.float64)
        >>> sign = KrylovSign(0.5 * one[:, None, None], one[:, None], 0.5 * one[:, None], 0.5 * one, one)
        >>> sign.h(torch.tensor([[0.0]], dtype=torch.float64)).round(decimals=2)
        tensor([[0.7100]], dtype=torch.float64)
    """

    def __init__(
        self,
        t: Float64[Tensor, "batch size size"],
        a: Float64[Tensor, "batch size"],
        b: Float64[Tensor, "batch size"],
        overlap: Float64[Tensor, " batch"],
        square: Float64[Tensor, " batch"],
        steps: int = 8,
        largest: float = 100.0,
        adaptive: bool = True,
    ) -> None:
        batch, size = a.shape
        named = {"t": (t, (batch, size, size)), "b": (b, (batch, size))}
        named |= {"a": (a, (batch, size)), "overlap": (overlap, (batch,)), "square": (square, (batch,))}
        for name, (tensor, shape) in named.items():
            if tuple(tensor.shape) != shape:
                raise ValueError(f"{name} has shape {list(tensor.shape)}; expected {list(shape)}")
            if tensor.dtype != torch.float64:
                raise TypeError(f"{name} has dtype {tensor.dtype}; convert it to float64")
        self.largest, self.adaptive = largest, adaptive
        self._given = (t, a, b, overlap, square, _coefficients(steps, a.device))

    def h(self, lam: Float64[Tensor, "batch points"]) -> Float64[Tensor, "batch points"]:
        """h at several multipliers of each matrix."""
        return _entry(*self._given, lam)

    def root(self) -> Float64[Tensor, " batch"]:
        """The multiplier at which h changes sign; h rises with it."""
        return _root(*self._given, self.largest, self.adaptive)

    def root_near(
        self,
        center: Float64[Tensor, " batch"],
        shift: Float64[Tensor, " batch"],
        tilt: Float64[Tensor, " batch"],
        reach: Float64[Tensor, " batch"],
    ) -> Float64[Tensor, " batch"]:
        """The root of h(lambda) + shift + tilt (lambda - center) within ``reach`` of the center."""
        return _root_near(*self._given, center, shift, tilt, reach, self.largest, self.adaptive)

    def slope(self, lam: Float64[Tensor, " batch"]) -> Float64[Tensor, " batch"]:
        """dh / dlambda by central differences."""
        step = 1e-6 * (1.0 + lam.abs())
        values = self.h(torch.stack([lam - step, lam + step], dim=1))
        return (values[:, 1] - values[:, 0]) / (2 * step)


@cache
def _on_host(steps: int) -> Tensor:
    return torch.tensor(polar_express_coefficients(steps), dtype=torch.float64)


def _coefficients(steps: int, device: torch.device) -> Tensor:
    if device.type == "cpu":
        if torch.compiler.is_compiling():
            return torch.tensor(polar_express_coefficients(steps), dtype=torch.float64)
        return _on_host(steps)
    # Written on the device, number by number: a copy from the host would be waited for.
    flat = [x for triple in polar_express_coefficients(steps) for x in triple]
    written = [torch.full((1,), x, dtype=torch.float64, device=device) for x in flat]
    return torch.cat(written).view(-1, 3)


def _like_overlap(t: Tensor, a: Tensor, b: Tensor, overlap: Tensor, *_: object) -> Tensor:
    return overlap.new_empty(overlap.shape)


_entry = raw_op(
    "krylov_sign_entry",
    reference.sign_entry,
    fake=lambda t, a, b, overlap, square, coefficients, lam: lam.new_empty(lam.shape),
    cpu=f"{_HERE}.cpu:sign_entry",
)
_root = raw_op("krylov_sign_root", reference.sign_root, fake=_like_overlap, cpu=f"{_HERE}.cpu:sign_root")
_root_near = raw_op(
    "krylov_sign_root_near",
    reference.sign_root_near,
    fake=_like_overlap,
    cpu=f"{_HERE}.cpu:sign_root_near",
)
