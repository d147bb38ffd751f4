"""Wedges in plain torch: the definition."""

from __future__ import annotations

import torch
from torch import Tensor


def enumerate_wedges(
    indptr: Tensor,
    indices: Tensor,
    closing_indptr: Tensor,
    closing_indices: Tensor,
    closed: bool,
    first: int,
    last: int,
) -> Tensor:
    """Every pair of entries of a row, the first among those of the block, kept by what its ends are."""
    n = len(indptr) - 1
    rows = torch.repeat_interleave(torch.arange(n, device=indptr.device), torch.diff(indptr))
    place = torch.arange(first, last, device=indptr.device)
    later = indptr[1:][rows[first:last]] - place - 1
    first_of = torch.repeat_interleave(place, later)
    begin = torch.cumsum(later, 0) - later
    within = torch.arange(len(first_of), device=indptr.device) - torch.repeat_interleave(begin, later)
    a, b = indices[first_of].long(), indices[first_of + 1 + within].long()
    pairs = _keys(closing_indptr, closing_indices)
    wanted = torch.isin(a * n + b, pairs) == closed
    found = torch.stack([rows[first_of], a, b], dim=1)[wanted]
    return found.to(indices.dtype)


def closed_wedges(indptr: Tensor, indices: Tensor, closing_indptr: Tensor, closing_indices: Tensor) -> Tensor:
    """How many wedges are closed."""
    found = enumerate_wedges(indptr, indices, closing_indptr, closing_indices, True, 0, len(indices))
    return torch.tensor(len(found), device=indptr.device)


def scan(
    indptr: Tensor, indices: Tensor, closing_indptr: Tensor, closing_indices: Tensor, closed: bool
) -> Tensor:
    """The first wedge, or three times −1."""
    found = enumerate_wedges(indptr, indices, closing_indptr, closing_indices, closed, 0, len(indices))
    return found[0].clone() if len(found) else indices.new_full((3,), -1)


def _keys(indptr: Tensor, indices: Tensor) -> Tensor:
    """The pairs of a graph as numbers u·n + v."""
    n = len(indptr) - 1
    rows = torch.repeat_interleave(torch.arange(n, device=indptr.device), torch.diff(indptr))
    return rows * n + indices.long()
