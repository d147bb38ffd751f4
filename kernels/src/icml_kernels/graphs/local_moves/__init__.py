"""One pass of moves of single vertices between clusters, each to where it gains most."""

from __future__ import annotations

import torch
from jaxtyping import Float, Int, Int64
from torch import Tensor

from icml_kernels.dispatch import raw_op
from icml_kernels.graphs.checks import require_csr, require_dtype
from icml_kernels.graphs.local_moves import reference

_HERE = "icml_kernels.graphs.local_moves"


def local_moves_pass(
    indptr: Int[Tensor, " n_1"],
    indices: Int[Tensor, " entries"],
    score: Float[Tensor, " entries"],
    base: float,
    least: Float[Tensor, " n"],
    labels: Int64[Tensor, " n"],
    order: Int64[Tensor, " moves"],
    *,
    trusted: bool = False,
) -> tuple[Int64[Tensor, " n"], int]:
    """Move the vertices of ``order``, one after the other, to their best cluster or to an empty one.

    To be in cluster C is worth ``Σ_{u∈C} S[v, u] − base·|C|`` to a vertex v (itself not counted), and an
    empty cluster 0. A vertex moves where that gains more than ``least``; among equal clusters the one of the
    smallest number wins. Sums run in the order of the entries, so that the bits are the same on every route.

    Args:
        indptr: bounds of the rows of the symmetric matrix S.
        indices: its columns.
        score: its entries; float64.
        base: what each pair in a cluster costs besides.
        least: what each vertex must gain to move; float64.
        labels: the cluster of each vertex, among 0, …, n−1.
        order: the vertices to try.
        trusted: do not look whether the arguments are right.

    Returns:
        The new labels, and how many vertices moved.

    Raises:
        TypeError: other dtypes.
        ValueError: shapes that do not match, labels or vertices outside 0, …, n−1.
    """
    if trusted:
        moved, count = _pass(indptr, indices, score.detach(), float(base), least.detach(), labels, order)
        return moved, int(count)
    require_csr("the matrix of scores", indptr, indices)
    require_dtype(torch.float64, score=score, least=least)
    require_dtype(torch.int64, labels=labels, order=order)
    n = len(indptr) - 1
    if score.shape != indices.shape or least.shape != (n,) or labels.shape != (n,) or order.dim() != 1:
        shapes = ", ".join(str(list(t.shape)) for t in (score, least, labels, order))
        raise ValueError(
            f"score, least, labels and order have shapes {shapes}; "
            f"expected [{len(indices)}], [{n}], [{n}] and [moves]"
        )
    for name, values in (("labels", labels), ("order", order)):
        if len(values) and (int(values.min()) < 0 or int(values.max()) >= n):
            raise ValueError(f"{name} must lie in 0, …, {n - 1}")
    moved, count = _pass(indptr, indices, score.detach(), float(base), least.detach(), labels, order)
    return moved, int(count)


def _fake(
    indptr: Tensor,
    indices: Tensor,
    score: Tensor,
    base: float,
    least: Tensor,
    labels: Tensor,
    order: Tensor,
) -> tuple[Tensor, Tensor]:
    return torch.empty_like(labels), labels.new_empty(())


_pass = raw_op("local_moves_pass", reference.moves, fake=_fake, cpu=f"{_HERE}.cpu:moves")
