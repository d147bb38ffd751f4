"""The largest singular value of matrices that change a little at a time, from a block kept from call to call.

    space = span{X, A X, ..., A^depth X},   A = W^T W,   X: the block of the time before

Block Krylov with thick restart (Wu and Simon, SIAM J. Matrix Anal. Appl. 22, 602-616, 2000): Rayleigh-Ritz
on the space gives the triplet, and its best Ritz vectors are the next block. A single vector follows one
singular value, and is left behind where another overtakes it; a block holds a cluster of them. The last
vector of a block is a scout: it goes on through a Chebyshev polynomial that damps what the others hold, with
a little of another spread-out vector each time, so that a direction that none of them sees is found.
"""

from __future__ import annotations

from typing import NamedTuple

import torch
from jaxtyping import Bool, Float
from torch import Tensor

from icml_kernels.matrices.checks import require_matrices
from icml_kernels.matrices.msign import Reduce
from icml_kernels.matrices.singular import spread_out
from icml_kernels.matrices.small_eigh import small_eigh

BLOCK = 8  # vectors of a block: seven Ritz vectors and the scout
EXACT = 32  # up to so many rows or columns the small Gram matrix is solved instead
FRESH = 0.5  # length of the spread-out vector that is added to the scout, which has length 1
_DEPENDENT = 1e-4  # of the largest: eigenvalues of a Gram matrix below count as dependent vectors
_TINY = 1e-30


class KrylovTop(NamedTuple):
    """The top singular triplet of each matrix, and what finds the next one.

    Attributes:
        sigma: largest singular values.
        u: left vectors, W v = sigma u; zeros of a zero matrix.
        v: right unit vectors.
        block: rows to begin with next time, the first one v.
    """

    sigma: Float[Tensor, " batch"]
    u: Float[Tensor, "batch rows"]
    v: Float[Tensor, "batch columns"]
    block: Float[Tensor, "batch vectors columns"]


def krylov_top(
    w: Float[Tensor, "batch rows columns"],
    block: Float[Tensor, "batch vectors columns"],
    depth: int = 2,
    *,
    turn: int | Tensor = 0,
    reduce: Reduce | None = None,
) -> KrylovTop:
    """The largest singular value with its vectors, on the block Krylov space of the vectors of last time.

    Reads W 2 depth + 1 times, in products with as many vectors as the block has; exact where the shorter side
    has at most 32, or no more than (depth + 1) blocks. Gives a lower bound of sigma otherwise. Not
    differentiable.

    Args:
        w: Matrices, float32 or float64.
        block: What the call before gave, or `start_block`.
        depth: Steps of the Krylov space.
        turn: Chooses what is added to the scout; another number each time. A tensor where a graph is
            captured.
        reduce: Where the rows are spread over processes: sums a tensor over them. The block is whole.

    Raises:
        TypeError: A dtype that is neither float32 nor float64.
        ValueError: Shapes that do not fit together; ``depth`` below 1; a block of one vector where two are
            needed.

    Example:
        >>> w = torch.diag(torch.arange(1.0, 41.0))[None]
        >>> found = krylov_top(w, start_block(w), depth=3)
        >>> round(float(found.sigma), 1), found.block.shape
        (40.0, torch.Size([1, 8, 40]))
    """
    require_matrices("w", w)
    if w.dtype not in (torch.float32, torch.float64):
        raise TypeError(f"w has dtype {w.dtype}; convert it to float32")
    if w.dim() != 3:
        raise ValueError(f"w has shape {list(w.shape)}; expected [batch, rows, columns]")
    batch, rows, columns = w.shape
    if block.dim() != 3 or block.shape[0] != batch or block.shape[2] != columns:
        raise ValueError(f"block has shape {list(block.shape)}; expected [{batch}, vectors, {columns}]")
    if depth < 1:
        raise ValueError(f"depth={depth}; at least one Krylov step is needed")
    block = block.to(w.dtype)
    vectors = block.shape[1]
    short = columns if reduce is not None else min(rows, columns)
    if short <= max(EXACT, vectors * (depth + 1)):
        return _from_gram(w, vectors, reduce)
    if vectors < 2:
        raise ValueError(f"the block has {vectors} vectors; matrices of {rows} x {columns} need at least 2")
    space, images, present, scout = _krylov_space(w, block, depth, turn, reduce)
    return _rayleigh_ritz(space, images, present, scout, vectors, reduce)


def block_vectors(rows: int, columns: int) -> int:
    """How many vectors the block of a matrix needs: one where `krylov_top` is exact anyway."""
    return 1 if min(rows, columns) <= EXACT else BLOCK


def start_block(
    w: Float[Tensor, "batch rows columns"], vectors: int = BLOCK
) -> Float[Tensor, "batch vectors columns"]:
    """Spread-out unit vectors to begin with, the same for every matrix of the batch."""
    columns = w.shape[2]
    rows = spread_out(columns, vectors, w).mT
    return (rows / torch.linalg.vector_norm(rows, dim=1, keepdim=True)).expand(w.shape[0], -1, -1)


def _from_gram(w: Tensor, vectors: int, reduce: Reduce | None) -> KrylovTop:
    """By the eigenvalues of the smaller Gram matrix."""
    batch, rows, columns = w.shape
    left_side = reduce is None and rows < columns
    gram = torch.bmm(w, w.mT) if left_side else torch.bmm(w.mT, w)
    if reduce is not None:
        gram = reduce(gram)
    values, basis = small_eigh(gram.double())
    sigma = values[:, -1].clamp_min(0.0).sqrt().to(w.dtype)
    count = min(vectors, basis.shape[2])
    best = basis[:, :, -count:].flip(2).mT.to(w.dtype)  # rows, the largest first
    if left_side:
        right = torch.bmm(best, w)
        right = right / torch.linalg.vector_norm(right, dim=2, keepdim=True).clamp_min(_TINY)
        # A zero matrix has no vectors of its own: any unit vector is one.
        right[:, 0] = torch.where((sigma > 0)[:, None], right[:, 0], start_block(w, 1)[:, 0])
        left = best[:, 0] * (sigma > 0)[:, None]
    else:
        right = best
        left = torch.bmm(best[:, :1], w.mT)[:, 0] / sigma.clamp_min(_TINY)[:, None]
    if count < vectors:
        right = torch.cat([right, right.new_zeros(batch, vectors - count, columns)], dim=1)
    return KrylovTop(sigma, left, right[:, 0], right)


def _krylov_space(
    w: Tensor, block: Tensor, depth: int, turn: int | Tensor, reduce: Reduce | None
) -> tuple[Tensor, Tensor, Bool[Tensor, "batch size"], Float[Tensor, "batch size"]]:
    """Orthonormal rows that span the space, their images under W, which exist, and the scout in them."""
    columns = w.shape[2]
    other = spread_out(columns, 1, w, turn).mT
    other = FRESH * other / torch.linalg.vector_norm(other)
    given = torch.cat([block[:, :-1], block[:, -1:] + other], dim=1)
    rows, mixed, exists = _orthonormal_rows(given)
    scout = torch.cat([mixed[:, -1], mixed.new_zeros(mixed.shape[0], depth * mixed.shape[1])], dim=1)
    space, image, images, present = rows, torch.bmm(rows, w.mT), [], [exists]
    for _ in range(depth):
        images.append(image)
        new = torch.bmm(image, w)
        new = _project_out(new if reduce is None else reduce(new), space)
        new = new / torch.linalg.vector_norm(new, dim=2, keepdim=True).clamp_min(_TINY)
        # Of a vector that has all but converged rounding is left: projected once more it is as good as any.
        rows, _, exists = _orthonormal_rows(_project_out(new, space))
        space, image = torch.cat([space, rows], dim=1), torch.bmm(rows, w.mT)
        present.append(exists)
    return space, torch.cat([*images, image], dim=1), torch.cat(present, dim=1), scout


def _rayleigh_ritz(
    space: Tensor, images: Tensor, present: Tensor, scout: Tensor, vectors: int, reduce: Reduce | None
) -> KrylovTop:
    small = torch.bmm(images, images.mT)
    small = (small if reduce is None else reduce(small)).double()
    # Rows that do not exist are null vectors: below everything else, so that they are kept last.
    below = 1.0 + small.diagonal(dim1=1, dim2=2).sum(1)
    small = small - torch.diag_embed(torch.where(present, 0.0, below[:, None]))
    values, basis = small_eigh(small)
    kept = vectors - 1
    ritz = basis[:, :, -kept:].flip(2).mT
    coordinates = torch.cat([ritz, _sent_on(values, basis, scout, kept)], dim=1).to(space.dtype)
    block = torch.bmm(coordinates, space)
    length = values[:, -1:].clamp_min(0.0).sqrt().to(space.dtype)  # of W v, for v as it is before rounding
    image = torch.bmm(coordinates[:, :1], images)[:, 0]
    norm = torch.linalg.vector_norm(block[:, 0], dim=1, keepdim=True)
    v = block[:, 0] / norm
    block = torch.cat([v[:, None], block[:, 1:]], dim=1)
    return KrylovTop((length / norm)[:, 0], image / length.clamp_min(_TINY), v, block)


def _sent_on(values: Tensor, basis: Tensor, scout: Tensor, kept: int) -> Float[Tensor, "batch 1 size"]:
    """The scout after T_2(2 A / theta - 1), outside of the kept; theta: the largest Ritz value not kept.

    The polynomial is at most 1 up to theta and grows fast beyond. That the Ritz vectors above theta are taken
    out does not take out a direction which they hold in part only.
    """
    theta = values[:, -kept - 1, None].clamp_min(_TINY)
    rest = values[:, :-kept]
    at = 2.0 * rest / theta - 1.0
    weight = torch.where(rest >= 0.0, 2.0 * at.square() - 1.0, 0.0)
    others = basis[:, :, :-kept]
    along = torch.bmm(scout.double()[:, None], others)
    sent = torch.bmm(weight[:, None] * along, others.mT)
    return sent / torch.linalg.vector_norm(sent, dim=2, keepdim=True).clamp_min(_TINY)


def _orthonormal_rows(x: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """Orthonormal rows E with X = C E, C, and which rows exist: dependent ones are zeros."""
    values, vectors = small_eigh(torch.bmm(x, x.mT).double())
    exists = values > _DEPENDENT * values[:, -1:].clamp_min(_DEPENDENT)
    root = values.clamp_min(_TINY).sqrt() * exists
    inverse = torch.where(exists, 1.0 / root, 0.0)
    rows = torch.bmm((vectors * inverse[:, None]).mT.to(x.dtype), x)
    return rows, vectors * root[:, None], exists


def _project_out(x: Tensor, space: Tensor) -> Tensor:
    return torch.baddbmm(x, torch.bmm(x, space.mT), space, alpha=-1.0)
