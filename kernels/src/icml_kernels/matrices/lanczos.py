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
from icml_kernels.matrices.matvec import matvec, thin_product
from icml_kernels.matrices.msign import Reduce
from icml_kernels.matrices.singular import spread_out

_TINY = 1e-30
_BREAKDOWN = (
    1e-5  # of a column that lies in the span of the earlier ones; rounding decides what is left of it
)


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
    image = _forward(m, v[:, :, None], factor, reduce)
    overlap = (u * image[:, :, 0]).sum(1)
    if rows <= 2 * k:
        gram = torch.bmm(m, m.mT)
        if reduce is not None:
            gram = reduce(gram)
        return KrylovModel(gram * factor.square()[:, None, None], u, image[:, :, 0], overlap)
    block = torch.cat([u[:, :, None], image], dim=2)
    basis, adjoint = _krylov_basis(m, block, k, factor, reduce)
    t = torch.bmm(adjoint.mT, adjoint)
    if reduce is not None:
        t = reduce(t)
    a = matvec(basis.mT, u)
    b = matvec(basis.mT, image[:, :, 0])
    return KrylovModel(t, a, b, overlap)


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
        adjoint = m.mT
    else:
        other = spread_out(rows, 1, m, turn).expand(batch, rows, 1)
        block = torch.cat([u[:, :, None], other], dim=2)
        basis, adjoint = _krylov_basis(m, block, k, m.new_ones(batch), reduce)
    t = torch.bmm(adjoint.mT, adjoint)
    if reduce is not None:
        t = reduce(t)
    _, vectors = torch.linalg.eigh(t.double())
    top = vectors[:, :, -1:].to(m.dtype)
    left = matvec(basis, top[:, :, 0])
    image = matvec(adjoint, top[:, :, 0])
    squares = image.square().sum(1)
    sigma = (squares if reduce is None else reduce(squares)).sqrt()
    return sigma, left, image / sigma.clamp_min(_TINY)[:, None]


def _krylov_basis(
    m: Tensor, block: Tensor, k: int, factor: Tensor, reduce: Reduce | None
) -> tuple[Tensor, Tensor]:
    """Orthonormal basis of (M M^T)^j block, j < k, and its image under M^T."""
    rows = m.shape[1]
    filler = spread_out(rows, 2 * k, m) / rows**0.5
    basis = _orthonormal(block, None, filler)
    adjoint = _adjoint(m, basis, factor)
    for _ in range(k - 1):
        block = _forward(m, adjoint[:, :, -2:], factor, reduce)
        block = _orthonormal(block, basis, filler)
        basis = torch.cat([basis, block], dim=2)
        adjoint = torch.cat([adjoint, _adjoint(m, block, factor)], dim=2)
    return basis, adjoint


def _forward(m: Tensor, x: Tensor, scale: Tensor, reduce: Reduce | None) -> Tensor:
    """scale M x."""
    image = thin_product(m, x)
    return scale[:, None, None] * (image if reduce is None else reduce(image))


def _adjoint(m: Tensor, x: Tensor, scale: Tensor) -> Tensor:
    """scale M^T x."""
    return scale[:, None, None] * thin_product(m.mT, x)


def _orthonormal(block: Tensor, basis: Tensor | None, fillers: Tensor) -> Tensor:
    """Two columns, orthonormal to the basis and to each other.

    A column inside the span of the earlier ones (a matrix of low rank) is replaced by one that is not: any
    larger space is as good, and every place has a filler of its own.
    """
    for column in (block[:, :, :1], block[:, :, 1:]):
        norm = torch.linalg.vector_norm(column, dim=1, keepdim=True)
        unit = column / norm.clamp_min(torch.finfo(column.dtype).tiny)
        left = unit if basis is None else _project_out(unit, basis)
        size = torch.linalg.vector_norm(left, dim=1, keepdim=True)
        filler = fillers[None, :, 0 if basis is None else basis.shape[2], None]
        replaced = torch.where(size > _BREAKDOWN, left, filler)
        if basis is None:
            new = replaced / torch.linalg.vector_norm(replaced, dim=1, keepdim=True)
            basis = new
            continue
        new = _project_out(replaced, basis)
        basis = torch.cat([basis, new / torch.linalg.vector_norm(new, dim=1, keepdim=True)], dim=2)
    return basis[:, :, -2:]


def _project_out(x: Tensor, basis: Tensor) -> Tensor:
    return x - matvec(basis, matvec(basis.mT, x[:, :, 0]))[:, :, None]
