"""Neighbour lists in plain torch: every pair and every image within reach is measured."""

from __future__ import annotations

from itertools import pairwise

import numpy as np
import torch
from torch import Tensor

from icml_kernels.molecules.radius_pairs.lattice import completed_lattice, heights


def radius_pairs(
    pos: Tensor, ptr: Tensor, reach: float, cell: Tensor | None, pbc: Tensor | None, capacity: int
) -> tuple[Tensor, Tensor, Tensor, Tensor, Tensor, Tensor]:
    """The five tensors of a `HalfList` and the shifts [pairs, 3] (no rows without a cell)."""
    bounds = ptr.tolist()
    found = []
    for replica, (first, last) in enumerate(pairwise(bounds)):
        x = pos[first:last].double()
        if cell is None or pbc is None:
            found.append(_open_pairs(x, reach) + first)
            continue
        i, j, shift = _images(x, reach, cell[replica], pbc[replica])
        found.append(torch.cat((torch.stack((i, j), -1) + first, shift), -1))
    columns = 2 if cell is None else 5
    pairs = torch.cat([*found, torch.empty(0, columns, dtype=torch.int64, device=pos.device)])
    pairs = pairs[_lexicographic(pairs)]
    n_pairs, size = len(pairs), places(len(pairs), capacity)
    padded = torch.zeros(size, columns, dtype=torch.int32, device=pos.device)
    padded[:n_pairs] = pairs.int()
    i, j = pairs[:, 0], pairs[:, 1]
    order = torch.argsort(j, stable=True)
    idx_t, pair_t = (torch.zeros(size, dtype=torch.int32, device=pos.device) for _ in range(2))
    idx_t[:n_pairs], pair_t[:n_pairs] = i[order].int(), order.int()
    rows = torch.arange(len(pos) + 1, device=pos.device)
    row_ptr = torch.searchsorted(i.contiguous(), rows).int()
    row_ptr_t = torch.searchsorted(j[order].contiguous(), rows).int()
    idx, shift = padded[:, 1].contiguous(), padded[:, 2:].contiguous()
    return row_ptr, idx, row_ptr_t, idx_t, pair_t, shift if columns == 5 else shift.new_empty(0, 3)


def places(n_pairs: int, capacity: int) -> int:
    """Places of a list: as many as pairs for capacity 0, else capacity, doubled until the pairs fit."""
    if capacity == 0:
        return n_pairs
    while capacity < n_pairs:
        capacity *= 2
    return capacity


def _open_pairs(x: Tensor, reach: float) -> Tensor:
    i, j = torch.triu_indices(len(x), len(x), 1, device=x.device).unbind(0)
    near = (x[j] - x[i]).square().sum(-1) < reach * reach
    return torch.stack((i[near], j[near]), -1)


def _images(x: Tensor, reach: float, cell: Tensor, pbc: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    periodic = pbc.cpu().numpy()
    lattice_rows = completed_lattice(cell.detach().cpu().double().numpy(), periodic)
    lattice = torch.from_numpy(lattice_rows).to(x.device)
    wraps = torch.floor(x @ torch.linalg.inv(lattice)) * pbc.to(x.device)
    x = x - wraps @ lattice
    # Two wrapped beads lie less than one cell apart along each axis: one image more than the reach spans.
    images = np.floor(reach / heights(lattice_rows)).astype(int) + 1
    ranges = [torch.arange(-n, n + 1, device=x.device) for n in np.where(periodic, images, 0)]
    shift = torch.cartesian_prod(*ranges)
    i, j = torch.triu_indices(len(x), len(x), 0, device=x.device).unbind(0)
    delta = x[j, None] - x[i, None] + (shift.double() @ lattice)
    near = delta.square().sum(-1) < reach * reach
    # Of a bead and its own image, the one with the lexicographically positive shift.
    sign = shift.sign()
    positive = (sign * torch.tensor([4, 2, 1], device=x.device)).sum(-1) > 0
    near &= (i != j)[:, None] | positive
    pair, image = near.nonzero().unbind(-1)
    i, j = i[pair], j[pair]
    return i, j, shift[image] + (wraps[i] - wraps[j]).long()


def _lexicographic(rows: Tensor) -> Tensor:
    order = torch.arange(len(rows), device=rows.device)
    for column in reversed(range(rows.shape[1])):
        order = order[torch.argsort(rows[order, column], stable=True)]
    return order
