"""Wedges a–c–b of a graph whose ends a, b are (or are not) a pair of a second graph.

With the positive edges as both graphs, the open wedges are the bad triangles of the signed graph in which
all other pairs are negative: those pairs are never stored.
"""

from __future__ import annotations

import torch
from jaxtyping import Int
from torch import Tensor

from icml_kernels.dispatch import raw_op
from icml_kernels.graphs.checks import require_csr
from icml_kernels.graphs.wedges import reference

_HERE = "icml_kernels.graphs.wedges"

Graph = tuple[Tensor, Tensor]


def wedge_count(
    indptr: Int[Tensor, " n_1"],
    indices: Int[Tensor, " entries"],
    closing: Graph | None = None,
    *,
    closed: bool = False,
    trusted: bool = False,
) -> int:
    """Count the wedges a–c–b with a < b whose ends are no pair of ``closing``, or are one.

    Closed wedges are the common neighbours of pairs; each pair walks the shorter of its two rows, so that
    triangles take O(m^1.5). Open wedges are the rest of all Σ C(degree, 2).

    Args:
        indptr: bounds of the rows of a symmetric graph without loops.
        indices: neighbours, rising in each row.
        closing: a symmetric graph on the same vertices, by default the same.
        closed: count the closed wedges in place of the open ones.
        trusted: do not look whether the rows are right.

    Raises:
        TypeError: indices that are no integers, or of different kinds.
        ValueError: rows that are none, or of another number of vertices.

    Example:
        >>> path = torch.tensor([0, 1, 3, 4]), torch.tensor([1, 0, 2, 1])
        >>> wedge_count(*path)
        1
    """
    closing = _checked(indptr, indices, closing, trusted)
    shut = int(_closed(indptr, indices, *closing))
    if closed:
        return shut
    degree = torch.diff(indptr).long()
    return int((degree * (degree - 1) // 2).sum()) - shut


def wedge_enumerate(
    indptr: Int[Tensor, " n_1"],
    indices: Int[Tensor, " entries"],
    closing: Graph | None = None,
    *,
    closed: bool = False,
    block: tuple[int, int] | None = None,
    trusted: bool = False,
) -> Int[Tensor, "wedges 3"]:
    """List the open wedges (or the closed ones) as rows ``(centre, a, b)`` with a < b, in rising order.

    Args:
        indptr: bounds of the rows of a symmetric graph without loops.
        indices: neighbours, rising in each row.
        closing: a symmetric graph on the same vertices, by default the same.
        closed: list the closed wedges in place of the open ones.
        block: only wedges whose pair centre–a is among these entries, from the first up to the second.
        trusted: do not look whether the rows are right, which takes a pass over the graph for each block.

    Returns:
        One row a wedge, of the dtype of ``indices``: 12 bytes a wedge for int32.

    Raises:
        TypeError: indices that are no integers, or of different kinds.
        ValueError: rows that are none, or of another number of vertices; a block outside the entries.

    Example:
        >>> path = torch.tensor([0, 1, 3, 4]), torch.tensor([1, 0, 2, 1])
        >>> wedge_enumerate(*path)
        tensor([[1, 0, 2]])
    """
    closing = _checked(indptr, indices, closing, trusted)
    first, last = (0, len(indices)) if block is None else block
    if not 0 <= first <= last <= len(indices):
        raise ValueError(f"block={block}; expected two of the entries 0, …, {len(indices)}, in order")
    return _enumerate(indptr, indices, *closing, closed, first, last)


def bad_triangle_scan(
    indptr: Int[Tensor, " n_1"],
    indices: Int[Tensor, " entries"],
    closing: Graph | None = None,
    *,
    closed: bool = False,
    trusted: bool = False,
) -> Int[Tensor, " 3"] | None:
    """Find the first open wedge (or the first closed one), or None where there is none; nothing is listed.

    A set of edges hits every bad triangle of a signed graph just where the graph without them has none: take
    its positive edges out of the graph, and add all of its pairs to ``closing``.

    Args:
        indptr: bounds of the rows of a symmetric graph without loops.
        indices: neighbours, rising in each row.
        closing: a symmetric graph on the same vertices, by default the same.
        closed: look for a closed wedge.
        trusted: do not look whether the rows are right.

    Raises:
        TypeError: indices that are no integers, or of different kinds.
        ValueError: rows that are none, or of another number of vertices.
    """
    closing = _checked(indptr, indices, closing, trusted)
    found = _scan(indptr, indices, *closing, closed)
    return found if int(found[0]) >= 0 else None


def _checked(indptr: Tensor, indices: Tensor, closing: Graph | None, trusted: bool = False) -> Graph:
    if trusted:
        return (indptr, indices) if closing is None else closing
    require_csr("the graph", indptr, indices)
    if closing is None:
        return indptr, indices
    require_csr("closing", *closing)
    if len(closing[0]) != len(indptr):
        raise ValueError(f"closing has {len(closing[0]) - 1} vertices, the graph {len(indptr) - 1}")
    if closing[0].dtype != indptr.dtype:
        raise TypeError(f"closing has dtype {closing[0].dtype}, the graph {indptr.dtype}; convert one")
    return closing


def _fake_closed(indptr: Tensor, indices: Tensor, closing_indptr: Tensor, closing_indices: Tensor) -> Tensor:
    return indptr.new_empty((), dtype=torch.int64)


def _fake_enumerate(
    indptr: Tensor,
    indices: Tensor,
    closing_indptr: Tensor,
    closing_indices: Tensor,
    closed: bool,
    first: int,
    last: int,
) -> Tensor:
    return indices.new_empty(torch.library.get_ctx().new_dynamic_size(), 3)


def _fake_scan(
    indptr: Tensor, indices: Tensor, closing_indptr: Tensor, closing_indices: Tensor, closed: bool
) -> Tensor:
    return indices.new_empty(3)


_closed = raw_op(
    "wedges_closed", reference.closed_wedges, fake=_fake_closed, cpu=f"{_HERE}.cpu:closed_wedges"
)
_enumerate = raw_op(
    "wedge_enumerate", reference.enumerate_wedges, fake=_fake_enumerate, cpu=f"{_HERE}.cpu:enumerate_wedges"
)
_scan = raw_op("bad_triangle_scan", reference.scan, fake=_fake_scan, cpu=f"{_HERE}.cpu:scan")
