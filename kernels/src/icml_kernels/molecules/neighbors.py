"""The neighbour list that every operator of this family reads: a half list and its transpose.

Each unordered pair {i, j} within the cutoff stands once, at its smaller index, so that whatever
depends on the distance alone is computed once a pair. Row i of the half list holds its partners
j > i; the transpose lets the owner of row j find the pairs in which it is the larger index. With
both, every output row has one owner, sums run in one fixed order, and no atomic addition is needed.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from jaxtyping import Bool, Int, Int32
from torch import Tensor


@dataclass(frozen=True)
class HalfList:
    """Pairs (i, j) with i < j, sorted by i and then j, and the same pairs sorted by j and then i.

    Batched systems (replicas) are folded into one list: their atoms follow each other and no pair
    joins two of them. All tensors are int32 and lie on one device.

    In a periodic cell two atoms may be a pair several times, through different images, and an atom may pair
    with its own image (i == j); the shifts that tell them apart lie beside the list, one a pair.

    A list may have spare capacity, so that its size on the device stays fixed: ``idx``, ``idx_t`` and
    ``pair_t`` may be longer than ``ptr[-1]``. The surplus holds valid indices (zeros), the operators
    skip it, and what they return for it is 0.

    Attributes:
        ptr: [atoms + 1]; the pairs of row i are ``ptr[i]`` up to ``ptr[i + 1]``.
        idx: [pairs]; the larger index j of each pair.
        ptr_t: [atoms + 1]; as ``ptr`` for the transpose.
        idx_t: [pairs]; the smaller index i of each pair, in the order of the transpose.
        pair_t: [pairs]; the position in ``idx`` of each pair of the transpose.
    """

    ptr: Int32[Tensor, " atoms_1"]
    idx: Int32[Tensor, " pairs"]
    ptr_t: Int32[Tensor, " atoms_1"]
    idx_t: Int32[Tensor, " pairs"]
    pair_t: Int32[Tensor, " pairs"]

    @property
    def n_atoms(self) -> int:
        """Number of rows."""
        return self.ptr.shape[0] - 1

    @property
    def capacity(self) -> int:
        """Number of places for pairs, spare ones included; the length of every per-pair tensor."""
        return self.idx.shape[0]

    def tensors(self) -> tuple[Tensor, Tensor, Tensor, Tensor, Tensor]:
        """The five tensors in the order of the fields, as the raw operators take them."""
        return self.ptr, self.idx, self.ptr_t, self.idx_t, self.pair_t

    def ij(self) -> tuple[Int[Tensor, " pairs"], Int[Tensor, " pairs"]]:
        """Both indices of every place as int64; spare places give (0, 0). No host synchronisation."""
        first, valid = pair_rows(self.ptr, self.idx)
        return first, torch.where(valid, self.idx, 0).long()

    def to(self, device: torch.device | str) -> HalfList:
        """The same list on another device."""
        return HalfList(*(t.to(device) for t in self.tensors()))


def half_list(
    i: Int[Tensor, " pairs"],
    j: Int[Tensor, " pairs"],
    n_atoms: int,
    *,
    return_order: bool = False,
) -> HalfList | tuple[HalfList, Int[Tensor, " pairs"]]:
    """Sort pairs into a :class:`HalfList` (stable, hence the same list for any order of the input).

    Args:
        i: one index of each pair.
        j: the other; the two are swapped where i > j. Each unordered pair stands once in the input,
            except that periodic images of one pair may repeat it.
        n_atoms: number of rows.
        return_order: also give the positions in the input, so that what belongs to the pairs (such as
            periodic shifts, whose sign turns where i > j) can follow.

    Raises:
        ValueError: where lengths differ, an index is out of range, or a pair joins an atom with itself.
    """
    if i.shape != j.shape or i.dim() != 1:
        raise ValueError(
            f"i and j must be vectors of one length, got shapes {tuple(i.shape)} and {tuple(j.shape)}"
        )
    low, high = torch.minimum(i, j).long(), torch.maximum(i, j).long()
    if i.numel():
        if int(low.min()) < 0 or int(high.max()) >= n_atoms:
            raise ValueError(
                f"pair indices must lie in 0..{n_atoms - 1}, got {int(low.min())} to {int(high.max())}"
            )
        if bool((low == high).any()):
            raise ValueError(f"atom {int(low[low == high][0])} is paired with itself; give pairs with i != j")
    order = torch.argsort(low * n_atoms + high, stable=True)
    low, high = low[order], high[order]
    result = transposed_list(_pointers(low, n_atoms), high.to(torch.int32), low)
    return (result, order) if return_order else result


def transposed_list(
    ptr: Int32[Tensor, " atoms_1"], idx: Int32[Tensor, " pairs"], first: Int[Tensor, " pairs"] | None = None
) -> HalfList:
    """Complete a sorted half list (``ptr``, ``idx``) by its transpose.

    Args:
        ptr: bounds of the rows.
        idx: larger index of each pair, rising inside a row; places beyond ``ptr[-1]`` are spare.
        first: smaller index of each pair, where it is known already and no place is spare.
    """
    n_atoms = ptr.shape[0] - 1
    if first is None:
        first, valid = pair_rows(ptr, idx)
        key = torch.where(valid, idx, n_atoms)
    else:
        key = idx
    # Spare places get the key n_atoms and sort last.
    pair_t = torch.argsort(key, stable=True)
    ptr_t = torch.searchsorted(
        key[pair_t].contiguous(), torch.arange(n_atoms + 1, device=idx.device, dtype=key.dtype)
    )
    return HalfList(ptr, idx, ptr_t.to(torch.int32), first[pair_t].to(torch.int32), pair_t.to(torch.int32))


def pair_rows(
    ptr: Int32[Tensor, " atoms_1"], idx: Int32[Tensor, " pairs"]
) -> tuple[Int[Tensor, " pairs"], Bool[Tensor, " pairs"]]:
    """Row of every place of a list as int64 (0 where it is spare), and which places hold a pair."""
    places = torch.arange(idx.shape[0], device=idx.device, dtype=ptr.dtype)
    valid = places < ptr[-1]
    rows = torch.searchsorted(ptr[1:].contiguous(), places, right=True)
    return torch.where(valid, rows, 0), valid


def _pointers(rows: Int[Tensor, " pairs"], n_rows: int) -> Int32[Tensor, " rows_1"]:
    counts = torch.bincount(rows, minlength=n_rows)
    ptr = torch.zeros(n_rows + 1, dtype=torch.int32, device=rows.device)
    ptr[1:] = torch.cumsum(counts, 0)
    return ptr
