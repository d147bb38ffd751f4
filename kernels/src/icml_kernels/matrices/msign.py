"""Polar factors by Newton-Schulz iteration: msign(X) = U V^T for X = U S V^T, batched, without an SVD.

Standard form: X <- a X + (b A + c A^2) X with A = X X^T. Gram form, for wide matrices: the iteration acts on
the small symmetric R = X X^T, and X is read twice:

    Z = a I + b R + c R^2;  Q <- Z Q;  R <- Z R Z;       result Q X.

Coefficients: `polar_express_coefficients`. The Gram form starts anew from Q X after a few steps (`SEGMENT`).
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Literal

import torch
from jaxtyping import Float
from torch import Tensor

from icml_kernels.matrices.checks import FLOATS, require_matrices
from icml_kernels.matrices.matvec import matvec
from icml_kernels.matrices.ns_syrk import has_symmetric_kernel, ns_syrk
from icml_kernels.matrices.polar_express import Triple, polar_express_coefficients
from icml_kernels.matrices.rank1_load import rank1_load

Form = Literal["auto", "standard", "gram"]
Reduce = Callable[[Tensor], Tensor]

FORMS = ("auto", "standard", "gram")
EPSILON = 1e-7  # added to the norm that X is divided by
# From this ratio of columns to rows on the Gram form needs fewer products; 16 bits pay for the restart.
GRAM_FROM = 1.5
GRAM_FROM_16_BITS = 2.0
CAREFUL_ROWS = 64  # below this 16-bit Gram matrices are not safe
SIXTEEN_BITS = (torch.bfloat16, torch.float16)
# Steps after which the Gram form starts anew from X. Rounding makes the smallest eigenvalues of R negative,
# by one part in 2^8 in bfloat16, and the polynomials blow negative ones up: by less than the convergent range
# within these many steps, by 1e20 within six.
SEGMENT = {torch.bfloat16: 3, torch.float16: 3, torch.float32: 4, torch.float64: 8}


def msign(
    x: Float[Tensor, "*batch rows columns"],
    steps: int = 8,
    form: Form = "auto",
    dtype: torch.dtype = torch.bfloat16,
    *,
    reduce: Reduce | None = None,
) -> Float[Tensor, "*batch rows columns"]:
    """The polar factor U V^T of each matrix, to the accuracy of the Newton-Schulz iteration.

    Never writes into its input. A zero matrix gives zeros; a single row or column its direction. Not
    differentiable.

    Args:
        x: Matrices; their scale does not matter.
        steps: Newton-Schulz steps; singular values above 1e-3 of the Frobenius norm have converged after 8.
        form: ``"standard"``, ``"gram"``, or whichever needs fewer operations for the shape.
        dtype: Of the iteration and of the result.
        reduce: Where the longer side is spread over processes: sums a tensor over them. Implies ``"gram"``.

    Raises:
        TypeError: A dtype that is not floating.
        ValueError: An empty or one-dimensional ``x``, ``steps`` below 1, an unknown form.

    Example:
        >>> msign(torch.diag(torch.tensor([3.0, -0.5])), dtype=torch.float32).round(decimals=3) + 0.0
        tensor([[ 1.,  0.],
                [ 0., -1.]])
    """
    require_matrices("x", x)
    _check(steps, form, dtype)
    flat = x.reshape(-1, *x.shape[-2:])
    norm = frobenius_norm(flat, reduce)
    scale = (norm + EPSILON)[:, None, None].to(flat.dtype)
    return newton_schulz((flat / scale).to(dtype), steps, form, reduce).reshape(x.shape)


def msign_rank1(
    m: Float[Tensor, "batch rows columns"],
    u: Float[Tensor, "batch rows"],
    v: Float[Tensor, "batch columns"],
    lam: Float[Tensor, " batch"],
    inv_norm: Float[Tensor, " batch"],
    steps: int = 8,
    *,
    overlap: Float[Tensor, " batch"] | None = None,
    form: Form = "auto",
    dtype: torch.dtype = torch.bfloat16,
    reduce: Reduce | None = None,
) -> Float[Tensor, "batch rows columns"]:
    """msign(M / ||M|| + lam u v^T) for unit vectors u and v; the rank-one matrix is never stored.

    The norm of the sum follows from three numbers: ||M/||M|| + lam u v^T||^2 = 1 + 2 lam u^T M v / ||M|| +
    lam^2. Not differentiable.

    Args:
        m: Matrices, float32 or float64.
        u: Left unit vectors.
        v: Right unit vectors.
        lam: Multipliers.
        inv_norm: 1 / ||M|| in the Frobenius norm (0 for a zero matrix).
        steps: Newton-Schulz steps.
        overlap: u^T M v / ||M||; computed where absent.
        form: As for `msign`.
        dtype: Of the iteration and of the result.
        reduce: As for `msign`; the columns are then what is spread over processes, with their part of ``v``.

    Raises:
        TypeError: Dtypes that are not floating, or differ.
        ValueError: Shapes that do not fit together, ``steps`` below 1, an unknown form.
    """
    _check(steps, form, dtype)
    if overlap is None:
        image = matvec(m, v)
        if reduce is not None:
            image = reduce(image)
        overlap = (u * image).sum(1) * inv_norm
    square = (inv_norm > 0).to(m.dtype) + 2 * lam * overlap + lam.square()
    inverse = 1.0 / (square.clamp_min(0.0).sqrt() + EPSILON)
    # No name keeps the loaded matrix, so that the iteration can let go of it.
    return newton_schulz(rank1_load(m, u, v, inv_norm * inverse, lam * inverse, dtype), steps, form, reduce)


def frobenius_norm(
    x: Float[Tensor, "batch rows columns"], reduce: Reduce | None = None
) -> Float[Tensor, " batch"]:
    """Frobenius norm of each matrix, in float32 or better; ``reduce`` sums squares over processes."""
    precise = torch.float64 if x.dtype == torch.float64 else torch.float32
    norm = torch.linalg.vector_norm(x, dim=(-2, -1), dtype=precise)
    return norm if reduce is None else reduce(norm.square()).sqrt()


def newton_schulz(
    x: Float[Tensor, "batch rows columns"], steps: int, form: Form = "auto", reduce: Reduce | None = None
) -> Float[Tensor, "batch rows columns"]:
    """The iteration itself, for matrices of Frobenius norm at most 1, in their own precision."""
    tall = reduce is None and x.shape[1] > x.shape[2]
    if tall:
        x = x.mT
    coefficients = polar_express_coefficients(steps)
    if x.shape[1] == 1 and reduce is None:
        norm = torch.linalg.vector_norm(x, dim=2, keepdim=True)
        result = x / norm.clamp_min(torch.finfo(x.dtype).tiny)
    else:
        gram = reduce is not None or form == "gram" or (form == "auto" and _prefers_gram(x))
        given = [x]
        del x  # the iteration takes it out of the list, and lets it go after its first step
        result = _gram_form(given, coefficients, reduce) if gram else _standard_form(given, coefficients)
    return result.mT if tall else result


def _standard_form(given: list[Tensor], coefficients: tuple[Triple, ...]) -> Tensor:
    x = given.pop()
    for a, b, c in coefficients:
        x = _multiply_add(x, _polynomial(_square(x), b, c), x, beta=a)
    return x


def _gram_form(given: list[Tensor], coefficients: tuple[Triple, ...], reduce: Reduce | None) -> Tensor:
    """The iteration in segments, each on a Gram matrix of its own."""
    x, at = given.pop(), 0
    for steps in _segments(x.dtype, len(coefficients)):
        x = _gram_segment(x, coefficients[at : at + steps], reduce)
        at += steps
    return x


def _segments(dtype: torch.dtype, steps: int) -> list[int]:
    length = SEGMENT[dtype]
    first = min(length, steps, 2) if dtype in SIXTEEN_BITS else min(length, steps)
    rest = steps - first
    return [first, *([length] * (rest // length)), *([rest % length] if rest % length else [])]


def _gram_segment(x: Tensor, coefficients: tuple[Triple, ...], reduce: Reduce | None) -> Tensor:
    """Q X after some steps; of few rows in 16 bits with small matrices in float32.

    Rounded to 16 bits a Gram matrix has negative eigenvalues beside small singular values, and a row of Q X
    can be off by a tenth: both can leave the range in which the polynomials converge. That happened to one in
    a hundred matrices of 3 to 16 rows with spread-out singular values, to one in a thousand of 32, and to
    none of 64 and more.
    """
    careful = x.dtype in SIXTEEN_BITS and x.shape[1] < CAREFUL_ROWS
    precise = x.float() if careful else x
    gram = _square(precise)
    if reduce is not None:
        gram = reduce(gram)
    product: Tensor | None = None
    for step, (a, b, c) in enumerate(coefficients, 1):
        z = _polynomial(gram, b, c)
        z.diagonal(dim1=1, dim2=2).add_(a)
        product = z if product is None else torch.bmm(z, product)
        if step < len(coefficients):
            gram = torch.bmm(torch.bmm(z, gram), z)
    assert product is not None
    del gram, z
    return torch.bmm(product, precise).to(x.dtype)


def _square(x: Tensor) -> Tensor:
    return ns_syrk(x) if has_symmetric_kernel(x) else torch.bmm(x, x.mT)


def _polynomial(gram: Tensor, b: float, c: float) -> Tensor:
    """b A + c A^2."""
    if has_symmetric_kernel(gram):
        return ns_syrk(gram, c, b, gram)
    return _multiply_add(gram, gram, gram, beta=b, alpha=c)


def _multiply_add(added: Tensor, left: Tensor, right: Tensor, *, beta: float, alpha: float = 1.0) -> Tensor:
    return torch.baddbmm(added, left, right, beta=beta, alpha=alpha)


def _prefers_gram(wide: Tensor) -> bool:
    if wide.dtype in SIXTEEN_BITS:
        return wide.shape[1] >= CAREFUL_ROWS and wide.shape[2] >= GRAM_FROM_16_BITS * wide.shape[1]
    return wide.shape[2] >= GRAM_FROM * wide.shape[1]


def _check(steps: int, form: str, dtype: torch.dtype) -> None:
    if steps < 1:
        raise ValueError(f"steps={steps}; the iteration needs at least 1")
    if form not in FORMS:
        raise ValueError(f"form={form!r} is not one of {', '.join(FORMS)}")
    if dtype not in FLOATS:
        raise TypeError(f"dtype={dtype}; expected one of {', '.join(map(str, FLOATS))}")
