"""Top singular triplets by power iteration, batched, with products of matrices and vectors only."""

from __future__ import annotations

import torch
from jaxtyping import Float
from torch import Tensor

from icml_kernels.matrices.checks import require_matrices, require_vectors
from icml_kernels.matrices.matvec import matvec
from icml_kernels.matrices.msign import Reduce

START_ITERATIONS = 20  # where no vector is given to begin with
_TINY = 1e-30
_GOLDEN = 0.6180339887498949


def top_singular(
    w: Float[Tensor, "*batch rows columns"],
    v0: Float[Tensor, "*batch columns"] | None = None,
    iters: int = 2,
    *,
    reduce: Reduce | None = None,
) -> tuple[Float[Tensor, "*batch"], Float[Tensor, "*batch rows"], Float[Tensor, "*batch columns"]]:
    """The largest singular value of each matrix with its vectors: sigma, u, v with W v = sigma u exactly.

    ``iters`` times v <- W^T W v / ||.||. Without ``v0`` at least 20, from a vector of spread-out entries that
    is the same for every matrix: from the vector of ones the iteration stalls where W annihilates it. Not
    differentiable.

    Args:
        w: Matrices, float32 or float64.
        v0: Right vectors to begin with, such as those of the step before.
        iters: Iterations.
        reduce: Where the columns are spread over processes: sums a tensor over them.

    Raises:
        TypeError: A dtype that is not floating.
        ValueError: Shapes that do not fit together; a negative number of iterations.

    Example:
        >>> sigma, u, v = top_singular(torch.diag(torch.tensor([3.0, 1.0])))
        >>> round(float(sigma), 4)
        3.0
    """
    require_matrices("w", w)
    if iters < 0:
        raise ValueError(f"iters={iters}; expected 0 or more")
    batch = w.shape[:-2]
    flat = w.reshape(-1, *w.shape[-2:])
    if v0 is None:
        v = start_vectors(flat)
        iters = max(iters, START_ITERATIONS)
    else:
        require_vectors("v0", v0, (*batch, w.shape[-1]))
        v = v0.reshape(flat.shape[0], -1)
    sigma, u, v = power_iter(flat, v, iters, reduce=reduce)
    return sigma.reshape(batch), u.reshape(*batch, -1), v.reshape(*batch, -1)


def power_iter(
    w: Float[Tensor, "batch rows columns"],
    v: Float[Tensor, "batch columns"],
    iters: int,
    *,
    reduce: Reduce | None = None,
) -> tuple[Float[Tensor, " batch"], Float[Tensor, "batch rows"], Float[Tensor, "batch columns"]]:
    """``iters`` power iterations of W^T W from v, then sigma = ||W v|| and u = W v / sigma. Not
    differentiable.
    """
    right = _unit(v.to(w.dtype), reduce)
    for _ in range(iters):
        image = _image(w, right, reduce)
        right = _unit(matvec(w.mT, image), reduce)
    image = _image(w, right, reduce)
    sigma = torch.linalg.vector_norm(image, dim=1)
    return sigma, image / sigma.clamp_min(_TINY)[:, None], right


def start_vectors(w: Float[Tensor, "batch rows columns"], turn: int = 0) -> Float[Tensor, "batch columns"]:
    """Vectors of well spread entries in -1..1, another for each ``turn``, without random numbers."""
    return spread_out(w.shape[2], 1, w, turn)[:, 0].expand(w.shape[0], -1)


def spread_out(
    rows: int, columns: int, like: Tensor, turn: int | Tensor = 0
) -> Float[Tensor, "rows columns"]:
    """Columns of well spread entries, no two alike, in the precision and on the device of ``like``."""
    index = torch.arange(1, rows + 1, device=like.device, dtype=torch.float64)[:, None]
    which = torch.arange(columns, device=like.device, dtype=torch.float64)[None] + turn
    spread = torch.cos(index.square() * (_GOLDEN * torch.pi) * (which + 1)) + 0.1 * torch.sin(
        index * (which + 2)
    )
    return spread.to(like.dtype)


def _image(w: Tensor, v: Tensor, reduce: Reduce | None) -> Tensor:
    image = matvec(w, v)
    return image if reduce is None else reduce(image)


def _unit(x: Tensor, reduce: Reduce | None) -> Tensor:
    if reduce is None:
        norm = torch.linalg.vector_norm(x, dim=1, keepdim=True)
    else:
        norm = reduce(x.square().sum(1, keepdim=True)).sqrt()
    return x / norm.clamp_min(_TINY)
