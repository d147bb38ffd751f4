"""Block Lanczos of M M^T from two vectors: the Krylov space that all M + lambda u v^T share.

(M + lambda u v^T)(M + lambda u v^T)^T differs from M M^T by terms inside the span of u and M v. Therefore the
space spanned by (M M^T)^j [u, M v] is the same for every lambda, and a basis of it is made once. Golub and
Van Loan, Matrix Computations, section 10.3; full re-orthogonalisation, twice.
"""

from __future__ import annotations

from typing import NamedTuple

import torch
from jaxtyping import Float
from torch import Tensor

from icml_kernels.matrices.checks import require_matrices, require_vectors
from icml_kernels.matrices.matvec import matvec
from icml_kernels.matrices.msign import Reduce
from icml_kernels.matrices.singular import spread_out
from icml_kernels.matrices.small_eigh import small_eigh

_TINY = 1e-30
_BREAKDOWN = 1e-5  # of a row in the span of the earlier ones; rounding decides what is left of it


class KrylovModel(NamedTuple):
    """M M^T, u and M v in an orthonormal basis Q of the Krylov space.

    Attributes:
        t: Q^T M M^T Q.
        a: Q^T u.
        b: Q^T M v.
        overlap: u^T M v.
    """

    t: Float[Tensor, "batch size size"]
    a: Float[Tensor, "batch size"]
    b: Float[Tensor, "batch size"]
    overlap: Float[Tensor, " batch"]


def block_lanczos(
    m: Float[Tensor, "batch rows columns"],
    u: Float[Tensor, "batch rows"],
    v: Float[Tensor, "batch columns"],
    k: int = 8,
    *,
    scale: Float[Tensor, " batch"] | None = None,
    reduce: Reduce | None = None,
) -> KrylovModel:
    """The Krylov model of each matrix, of at most 2k dimensions; exact where 2k >= rows.

    Reads M 2k times. Not differentiable.

    Args:
        m: Matrices, float32 or float64; the fewer rows, the cheaper.
        u: Left unit vectors.
        v: Right unit vectors.
        k: Lanczos steps; each adds two dimensions.
        scale: Factor of each matrix, such as 1 / ||M||; 1 where absent.
        reduce: Where the columns are spread over processes: sums a tensor over them.

    Raises:
        TypeError: A dtype that is not floating.
        ValueError: Shapes that do not fit together; ``k`` below 1.

    Example:
        >>> model = block_lanczos(torch.eye(4)[None], torch.eye(4)[:1], torch.eye(4)[:1], k=2)
        >>> model.t.shape, model.overlap
        (torch.Size([1, 4, 4]), tensor([1.]))
    """
    require_matrices("m", m)
    if m.dim() != 3:
        raise ValueError(f"m has shape {list(m.shape)}; expected [batch, rows, columns]")
    if k < 1:
        raise ValueError(f"k={k}; at least one Lanczos step is needed")
    batch, rows, columns = m.shape
    require_vectors("u", u, (batch, rows))
    require_vectors("v", v, (batch, columns))
    factor = m.new_ones(batch) if scale is None else scale.to(m.dtype)
    image = _forward(m, v[:, None], factor, reduce)[:, 0]
    overlap = (u * image).sum(1)
    if rows <= 2 * k:
        gram = torch.bmm(m, m.mT)
        if reduce is not None:
            gram = reduce(gram)
        return KrylovModel(gram * factor.square()[:, None, None], u, image, overlap)
    basis, adjoint = _krylov_basis(m, torch.stack([u, image], dim=1), k, factor, reduce)
    t = torch.bmm(adjoint, adjoint.mT)
    if reduce is not None:
        t = reduce(t)
    return KrylovModel(t, matvec(basis, u), matvec(basis, image), overlap)


def lanczos_top(
    m: Float[Tensor, "batch rows columns"],
    u: Float[Tensor, "batch rows"],
    k: int,
    *,
    turn: int | Tensor = 0,
    reduce: Reduce | None = None,
) -> tuple[Float[Tensor, " batch"], Float[Tensor, "batch rows"], Float[Tensor, "batch columns"]]:
    """The largest singular value with its vectors, by k block Lanczos steps from u and another vector.

    Follows a matrix that changes a little at a time: u is the vector of the time before, and the other one
    finds a singular value that has overtaken. Reads M 2k times; exact where 2k >= rows. Gives sigma, u and v
    with M^T u = sigma v. Not differentiable.

    Args:
        m: Matrices, float32 or float64; the fewer rows, the cheaper.
        u: Left vectors to begin with, of any length.
        k: Lanczos steps.
        turn: Chooses the other vector; another number each time. A tensor where a graph is captured.
        reduce: Where the columns are spread over processes: sums a tensor over them.

    Raises:
        TypeError: A dtype that is not floating.
        ValueError: Shapes that do not fit together; ``k`` below 1.
    """
    require_matrices("m", m)
    batch, rows, _ = m.shape
    require_vectors("u", u, (batch, rows))
    if k < 1:
        raise ValueError(f"k={k}; at least one Lanczos step is needed")
    if rows <= 2 * k:
        basis = torch.eye(rows, dtype=m.dtype, device=m.device).expand(batch, rows, rows)
        adjoint = m
    else:
        other = spread_out(rows, 1, m, turn).mT.expand(batch, 1, rows)
        block = torch.cat([u[:, None], other], dim=1)
        basis, adjoint = _krylov_basis(m, block, k, m.new_ones(batch), reduce)
    t = torch.bmm(adjoint, adjoint.mT)
    if reduce is not None:
        t = reduce(t)
    _, vectors = small_eigh(t.double())
    top = vectors[:, :, -1].to(m.dtype)
    left = matvec(basis.mT, top)
    image = matvec(adjoint.mT, top)
    squares = image.square().sum(1)
    sigma = (squares if reduce is None else reduce(squares)).sqrt()
    return sigma, left, image / sigma.clamp_min(_TINY)[:, None]


def _krylov_basis(
    m: Tensor, block: Tensor, k: int, factor: Tensor, reduce: Reduce | None
) -> tuple[Tensor, Tensor]:
    """Orthonormal rows that span (M M^T)^j block, j < k, and their images under M^T."""
    batch, rows, columns = m.shape
    filler = spread_out(rows, 2 * k, m).mT / rows**0.5
    basis, adjoint = m.new_empty(batch, 2 * k, rows), m.new_empty(batch, 2 * k, columns)
    for at in range(0, 2 * k, 2):
        if at:
            block = _forward(m, adjoint[:, at - 2 : at], factor, reduce)
        new = _orthonormal(block, basis[:, :at], filler[at : at + 2])
        basis[:, at : at + 2] = new
        adjoint[:, at : at + 2] = factor[:, None, None] * torch.bmm(new, m)
    return basis, adjoint


def _forward(m: Tensor, x: Tensor, scale: Tensor, reduce: Reduce | None) -> Tensor:
    """scale M x, for rows x."""
    image = torch.bmm(x, m.mT)
    return scale[:, None, None] * (image if reduce is None else reduce(image))


def _orthonormal(
    block: Float[Tensor, "batch 2 rows"], basis: Float[Tensor, "batch size rows"], fillers: Tensor
) -> Float[Tensor, "batch 2 rows"]:
    """Two rows, orthonormal to the basis and to each other.

    A row inside the span of the earlier ones (a matrix of low rank) is replaced by one that is not: any
    larger space is as good, and every place has a filler of its own.
    """
    left = _project_out(_unit(block), basis)
    first = _unit(_replaced(left[:, :1], fillers[:1]))
    second = _replaced(_project_out(left[:, 1:], first), fillers[1:])
    first = _unit(_project_out(first, basis))
    second = _project_out(_project_out(_unit(second), basis), first)
    return torch.cat([first, _unit(second)], dim=1)


def _replaced(row: Tensor, filler: Tensor) -> Tensor:
    size = torch.linalg.vector_norm(row, dim=2, keepdim=True)
    return torch.where(size > _BREAKDOWN, row, filler)


def _project_out(x: Tensor, basis: Tensor) -> Tensor:
    if basis.shape[1] == 0:
        return x
    return torch.baddbmm(x, torch.bmm(x, basis.mT), basis, alpha=-1.0)


def _unit(x: Tensor) -> Tensor:
    return x / torch.linalg.vector_norm(x, dim=2, keepdim=True).clamp_min(_TINY)
