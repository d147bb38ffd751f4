"""Neighbour lists: every pair of beads of the same replica nearer than a radius, once.

Three builders give one format, `HalfList`: all pairs inside each replica (small replicas, nothing periodic),
a cell list (large or periodic systems, any triclinic cell, as many images as the radius reaches), and the
user's own pairs (`half_list`).
"""

from __future__ import annotations

from itertools import pairwise

import torch
from jaxtyping import Bool, Float, Int, Int32
from torch import Tensor

from icml_kernels.dispatch import raw_op
from icml_kernels.molecules.checks import FLOATS, require_list, require_shape
from icml_kernels.molecules.neighbors import HalfList, transposed_list
from icml_kernels.molecules.radius_pairs import reference
from icml_kernels.molecules.radius_pairs.lattice import completed_lattice

_HERE = "icml_kernels.molecules.radius_pairs"


def radius_pairs(
    pos: Float[Tensor, "beads 3"],
    ptr: Int[Tensor, " replicas_1"],
    cutoff: float,
    skin: float = 0.0,
    *,
    cell: Float[Tensor, "*replicas 3 3"] | None = None,
    pbc: Bool[Tensor, "*replicas 3"] | None = None,
    capacity: int | None = None,
) -> tuple[HalfList, Int32[Tensor, "pairs 3"] | None]:
    """Find the pairs i < j of each replica with |x_j - x_i + S cell| < cutoff + skin.

    Sorted by (i, j, S), the same for any number of threads. No minimum image is assumed: two beads pair
    through every image within reach, and a bead with its own images (i == j, of S and -S the
    lexicographically positive one). On axes with pbc False the cell is ignored, whatever it holds.
    Not differentiable. Periodic lists are built on the CPU, also for tensors on a GPU.

    Args:
        pos: Positions in Å, or whatever the rest is given in; they need not lie inside the cell.
        ptr: Replica b owns the beads ptr[b] up to ptr[b + 1]; replicas never see each other.
        cutoff: Where interactions end.
        skin: Verlet skin: the list is complete until a bead has moved by skin/2 (`list_is_stale`).
        cell: Rows are lattice vectors; one cell for all replicas, or one each.
        pbc: Which axes are periodic, for all replicas or for each; by default all, where a cell is given.
        capacity: Places for pairs, so that tensors keep their size from list to list; doubled until the pairs
            fit. As many as there are pairs by default.

    Returns:
        The list, and the shifts S of its pairs: the lattice vector to add to x_j - x_i is S @ cell (None
        where no axis is periodic).

    Raises:
        TypeError: Positions neither float32 nor float64.
        ValueError: Positions that are not finite, shapes that do not fit, cutoff <= 0, skin < 0, bounds that
            do not rise from 0 to the number of beads, or periodic vectors that span no volume.

    Example:
        >>> pos = torch.tensor([[0.0, 0, 0], [3, 4, 0], [9, 0, 0]])
        >>> pairs, _ = radius_pairs(pos, torch.tensor([0, 3]), cutoff=6.0)
        >>> pairs.idx
        tensor([1], dtype=torch.int32)
    """
    pos = pos.detach()
    if pos.dtype not in FLOATS:
        raise TypeError(f"pos has dtype {pos.dtype}; expected torch.float32 or torch.float64")
    require_shape("pos", pos, (None, 3))
    if not 0.0 < cutoff < float("inf") or not 0.0 <= skin < float("inf"):
        raise ValueError(f"cutoff={cutoff}, skin={skin}; expected a finite cutoff > 0 and a skin >= 0")
    if capacity is not None and capacity < 1:
        raise ValueError(f"capacity={capacity}; expected at least 1, or None for as many places as pairs")
    _require_bounds(ptr, len(pos))
    if not bool(torch.isfinite(pos).all()):
        bead = int((~torch.isfinite(pos)).any(1).nonzero()[0, 0])
        raise ValueError(f"bead {bead} stands at {pos[bead].tolist()}; positions must be finite")
    cells, periodic = _cells(cell, pbc, len(ptr) - 1)
    *lists, shift = _radius_pairs(pos, ptr, float(cutoff + skin), cells, periodic, capacity or 0)
    return HalfList(*lists), shift if cells is not None else None


def list_is_stale(
    pos: Float[Tensor, "beads 3"], pos_at_build: Float[Tensor, "beads 3"], skin: float
) -> Bool[Tensor, ""]:
    """Whether a bead has moved by more than skin/2 since the list was built: pairs may be missing then.

    Stays on the device. Positions that are not finite make a list stale, too.

    Args:
        pos: Positions now, not wrapped since.
        pos_at_build: Positions when the list was built.
        skin: The skin that the list was built with.
    """
    moved = (pos - pos_at_build).square().sum(-1)
    # NaN compares false: what is not known to be near counts as far.
    return ~(moved <= (0.5 * skin) ** 2).all()


def without_pairs(
    pairs: HalfList, excluded: Int[Tensor, "exclusions 2"], n_beads: int
) -> tuple[HalfList, Int[Tensor, " kept"]]:
    """The list without certain pairs of a molecule, in all of its replicas and through all periodic images.

    Args:
        pairs: A list over replicas of `n_beads` beads each.
        excluded: Pairs of beads of one molecule, in any order.
        n_beads: Beads of one replica.

    Returns:
        The shorter list, and the places of its pairs in the old one (for their shifts).

    Raises:
        ValueError: Excluded beads out of range, or a list that does not divide into such replicas.
    """
    require_list(pairs, pairs.idx.device)
    if n_beads < 1 or pairs.n_atoms % n_beads:
        raise ValueError(f"pairs has {pairs.n_atoms} rows, which are no replicas of {n_beads} beads")
    require_shape("excluded", excluded, (None, 2))
    if len(excluded) and not (int(excluded.min()) >= 0 and int(excluded.max()) < n_beads):
        raise ValueError(
            f"excluded runs from {int(excluded.min())} to {int(excluded.max())}; beads are 0 to {n_beads - 1}"
        )
    i, j = pairs.ij()
    i, j = i[: int(pairs.ptr[-1])], j[: int(pairs.ptr[-1])]
    low, high = excluded.to(i.device).long().sort(1).values.unbind(1)
    named, key = (low * n_beads + high).unique(), i % n_beads * n_beads + j % n_beads
    named = torch.cat((named, named.new_full((1,), n_beads * n_beads)))
    kept = (named[torch.searchsorted(named, key)] != key).nonzero()[:, 0]
    return _selected(pairs, i, kept), kept


def _require_bounds(ptr: Tensor, n_beads: int) -> None:
    if ptr.dim() != 1 or ptr.dtype not in (torch.int32, torch.int64) or len(ptr) == 0:
        raise ValueError(f"ptr is {ptr.dtype} of shape {list(ptr.shape)}; expected integers [replicas + 1]")
    bounds = ptr.tolist()
    if bounds[0] != 0 or bounds[-1] != n_beads or any(b < a for a, b in pairwise(bounds)):
        raise ValueError(f"ptr must rise from 0 to the {n_beads} beads; got {bounds}")


def _cells(cell: Tensor | None, pbc: Tensor | None, n_replicas: int) -> tuple[Tensor | None, Tensor | None]:
    """One cell and one mask a replica on the CPU, or None where nothing is periodic."""
    if cell is None:
        if pbc is not None and bool(pbc.any()):
            raise ValueError("pbc asks for periodic axes but there is no cell; give both or neither")
        return None, None
    if cell.shape not in ((3, 3), (n_replicas, 3, 3)):
        raise ValueError(f"cell has shape {list(cell.shape)}; expected [3, 3] or [{n_replicas}, 3, 3]")
    pbc = torch.ones(3, dtype=torch.bool) if pbc is None else pbc
    if pbc.dtype != torch.bool or pbc.shape not in ((3,), (n_replicas, 3)):
        raise ValueError(
            f"pbc is {pbc.dtype} of shape {list(pbc.shape)}; expected bool [3] or [{n_replicas}, 3]"
        )
    cells = cell.detach().cpu().double().expand(n_replicas, 3, 3).contiguous()
    periodic = pbc.cpu().expand(n_replicas, 3).contiguous()
    if not bool(periodic.any()):
        return None, None
    for one, axes in zip(cells.numpy(), periodic.numpy(), strict=True):
        completed_lattice(one, axes)
    return cells, periodic


def _selected(pairs: HalfList, first: Tensor, kept: Tensor) -> HalfList:
    first = first[kept]
    ptr = torch.zeros_like(pairs.ptr)
    ptr[1:] = torch.bincount(first, minlength=pairs.n_atoms).cumsum(0)
    return transposed_list(ptr, pairs.idx[kept], first)


def _fake(
    pos: Tensor, ptr: Tensor, reach: float, cell: Tensor | None, pbc: Tensor | None, capacity: int
) -> tuple[Tensor, Tensor, Tensor, Tensor, Tensor, Tensor]:
    size = torch.library.get_ctx().new_dynamic_size()
    rows, places = (pos.new_empty(n, dtype=torch.int32) for n in (pos.shape[0] + 1, size))
    shift = pos.new_empty(0 if cell is None else size, 3, dtype=torch.int32)
    return rows, places, torch.empty_like(rows), torch.empty_like(places), torch.empty_like(places), shift


_radius_pairs = raw_op(
    "radius_pairs",
    reference.radius_pairs,
    fake=_fake,
    cpu=f"{_HERE}.cpu:radius_pairs",
    cuda=f"{_HERE}.triton:radius_pairs",
)
