"""Open slots of molecules in canonical order, and which of them a symmetry makes alike.

A step of a trajectory asks three times for the slots of one state: for its mask, for the network and for the
move. They are found once and remembered by the state.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import torch
from jaxtyping import Int
from numpy import ndarray

_KEPT = 50_000  # states whose slots are remembered
_AT_ONCE = 4096  # more states are an enumeration's, which does not ask again


def row_bytes(rows: Int[ndarray, "n width"]) -> list[bytes]:
    """The bytes of each row, as hashable names."""
    data = np.ascontiguousarray(rows).tobytes()
    size = rows.shape[1] * rows.itemsize
    return [data[k : k + size] for k in range(0, len(rows) * size, size)]


class OpenSlots:
    """Finds, and remembers, the open slots of trees.

    Args:
        sizes: slots of each kind of block.
        orbits: for each kind and slot the least slot that the block's own symmetries map to it.
        nodes: most blocks of a tree.
        most: open slots of a tree at most.
        canonical: puts trees with a marked slot each into canonical form.
    """

    def __init__(
        self,
        sizes: Int[ndarray, " kinds"],
        orbits: Int[ndarray, "kinds slots"],
        nodes: int,
        most: int,
        canonical: Callable[[ndarray, ndarray], Any],
    ) -> None:
        self.sizes, self.orbits, self.nodes, self.most = sizes, orbits, nodes, most
        self.canonical = canonical
        self._forget()

    def _forget(self) -> None:
        self._place: dict[bytes, int] = {}
        self._table = np.empty((3, 64, self.most), dtype=np.int16)
        self._count = 0

    def __call__(
        self, states: Int[ndarray, "n width"]
    ) -> tuple[Int[ndarray, "n most"], Int[ndarray, "n most"], Int[ndarray, "n most"]]:
        """Node and slot of each open slot, and the first one that a symmetry maps to it; -1 beyond.

        The empty state has one, on no node.
        """
        if len(states) > _AT_ONCE:
            return self._find(states)
        names = row_bytes(states)
        at = np.array([self._place.get(name, -1) for name in names], dtype=np.int64)
        missing = np.flatnonzero(at < 0)
        if len(missing):
            if self._count + len(missing) > _KEPT:
                self._forget()
                missing = np.arange(len(states))
            at[missing] = self._remember(states[missing], [names[k] for k in missing])
        nodes, slots, alike = self._table[:, at].astype(np.int64)
        return nodes, slots, alike

    def _remember(self, states: Int[ndarray, "n width"], names: list[bytes]) -> Int[ndarray, " n"]:
        begin, end = self._count, self._count + len(states)
        if end > self._table.shape[1]:
            grown = np.empty((3, max(end, 2 * self._table.shape[1]), self.most), dtype=np.int16)
            grown[:, :begin] = self._table[:, :begin]
            self._table = grown
        self._table[:, begin:end] = self._find(states)
        places = np.arange(begin, end)
        self._place.update(zip(names, places.tolist(), strict=True))
        self._count = end
        return places

    def _find(self, states: Int[ndarray, "n width"]) -> tuple[ndarray, ndarray, ndarray]:
        trees = np.asarray(states).reshape(len(states), 4, self.nodes)
        n, widest = len(trees), self.orbits.shape[1]
        kinds, parents, up_slots, own = (trees[:, k].astype(np.int64) for k in range(4))
        sizes = np.where(kinds >= 0, self.sizes[np.maximum(kinds, 0)], 0)
        free = np.arange(widest)[None, None, :] < sizes[:, :, None]
        row, node = np.nonzero((kinds >= 0) & (parents >= 0))
        free[row, node, own[row, node]] = False
        free[row, parents[row, node], up_slots[row, node]] = False
        row, flat = np.nonzero(free.reshape(n, self.nodes * widest))
        place = np.arange(len(row)) - np.searchsorted(row, row)
        node, slot = flat // widest, flat % widest
        node_of = np.full((n, self.most), -1, dtype=np.int64)
        slot_of, alike = node_of.copy(), node_of.copy()
        node_of[row, place], slot_of[row, place], alike[row, place] = node, slot, place
        self._merge_alike(trees, row, place, node, slot, alike)
        alike[kinds[:, 0] < 0, 0] = 0
        return node_of, slot_of, alike

    def _merge_alike(
        self,
        trees: Int[ndarray, "n 4 blocks"],
        row: Int[ndarray, " open"],
        place: Int[ndarray, " open"],
        node: Int[ndarray, " open"],
        slot: Int[ndarray, " open"],
        alike: Int[ndarray, "n most"],
    ) -> None:
        """Point every open slot to the first one that an automorphism of its tree maps to it."""
        from icml_kernels import unique_rows

        if len(row) == 0:
            return
        # Only slots of one kind of block, in one orbit of its own symmetries, can be alike.
        kind = trees[row, 0, node].astype(np.int64)
        key = torch.from_numpy(np.column_stack([row, kind, self.orbits[kind, slot]]))
        _, group = unique_rows(key)
        doubtful = np.flatnonzero((torch.bincount(group) > 1)[group].numpy())
        if len(doubtful) == 0:
            return
        form = self.canonical(trees[row[doubtful]], np.column_stack([node, slot])[doubtful])
        marked = torch.cat(
            [torch.from_numpy(row[doubtful])[:, None], form.trees.flatten(1), form.marks], dim=1
        )
        first, inverse = unique_rows(marked)
        alike[row[doubtful], place[doubtful]] = place[doubtful][first.numpy()][inverse.numpy()]
