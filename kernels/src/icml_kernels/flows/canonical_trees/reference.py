"""Canonical forms of trees of blocks, in plain Python: the definition.

The code of a block seen from its parent is the least, over the block's own symmetries, of: its kind, the
place of the slot that leads to the parent, and slot after slot 0 (open), 1 (open and marked), 2 (the parent),
or 3 and the code of the child. A tree's code is the least of those seen from its centre or its two centres.
"""

from __future__ import annotations

import torch
from torch import Tensor

OPEN, MARKED, PARENT, CHILD = 0, 1, 2, 3


def forward(
    blocks: Tensor,
    parents: Tensor,
    parent_slots: Tensor,
    own_slots: Tensor,
    marks: Tensor,
    sizes: Tensor,
    perm_ptr: Tensor,
    perms: Tensor,
) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """canonical [n, 4, width], order [n, width], slot_map [n, width, slots], marks [n, 2]."""
    n, width = blocks.shape
    canonical = blocks.new_full((n, 4, width), -1)
    order = blocks.new_full((n, width), -1)
    slot_map = blocks.new_full((n, width, perms.shape[1]), -1)
    moved = torch.full_like(marks, -1)
    symmetries = [
        perms[a:b].tolist() for a, b in zip(perm_ptr[:-1].tolist(), perm_ptr[1:].tolist(), strict=True)
    ]
    for row in range(n):
        kinds = [b for b in blocks[row].tolist() if b >= 0]
        slots = sizes.tolist()
        neighbours: list[dict[int, tuple[int, int]]] = [{} for _ in kinds]
        for i in range(1, len(kinds)):
            p, ps, s = int(parents[row, i]), int(parent_slots[row, i]), int(own_slots[row, i])
            neighbours[i][s], neighbours[p][ps] = (p, ps), (i, s)
        mark = tuple(marks[row].tolist())
        best: tuple[list[int], dict[int, list[int]], int] | None = None
        for root in centres([[v for v, _ in sorted(ends.values())] for ends in neighbours]):
            chosen: dict[int, list[int]] = {}
            code = _code(root, -1, kinds, slots, neighbours, symmetries, mark, chosen)
            if best is None or code < best[0]:
                best = (code, chosen, root)
        if best is None:
            continue
        _, chosen, root = best
        stack = [(root, -1, -1, -1)]
        count = 0
        while stack:
            node, up, up_slot, slot = stack.pop()
            for k, value in enumerate((kinds[node], up, up_slot, slot)):
                canonical[row, k, count] = value
            order[row, node] = count
            places = {chosen[node][i]: i for i in range(slots[kinds[node]])}
            for place in sorted(places, reverse=True):
                slot_map[row, node, places[place]] = place
                end = neighbours[node].get(places[place])
                if end is not None and place != slot:
                    stack.append((end[0], count, place, chosen[end[0]][end[1]]))
            count += 1
        if mark[0] >= 0:
            moved[row, 0] = order[row, mark[0]]
            moved[row, 1] = slot_map[row, mark[0], mark[1]]
    return canonical, order, slot_map, moved


def centres(neighbours: list[list[int]]) -> list[int]:
    """The one or two middles of the longest paths, by taking leaves away."""
    left = set(range(len(neighbours)))
    degree = [len(ends) for ends in neighbours]
    while len(left) > 2:
        leaves = [v for v in left if degree[v] <= 1]
        left -= set(leaves)
        for v in leaves:
            for w in neighbours[v]:
                degree[w] -= 1
    return sorted(left)


def _code(
    node: int,
    slot: int,
    kinds: list[int],
    slots: list[int],
    neighbours: list[dict[int, tuple[int, int]]],
    symmetries: list[list[list[int]]],
    mark: tuple[int, ...],
    chosen: dict[int, list[int]],
) -> list[int]:
    """The least code of the branch at ``node`` whose slot ``slot`` leads to the parent (-1 at the root)."""
    kind = kinds[node]
    parts: dict[int, list[int]] = {}
    for i in range(slots[kind]):
        end = neighbours[node].get(i)
        if i == slot:
            parts[i] = [PARENT]
        elif end is None:
            parts[i] = [MARKED if (node, i) == mark else OPEN]
        else:
            inner = _code(end[0], end[1], kinds, slots, neighbours, symmetries, mark, chosen)
            parts[i] = [CHILD, *inner]
    best: list[int] | None = None
    for symmetry in symmetries[kind]:
        places = {symmetry[i]: i for i in range(slots[kind])}
        code = [kind, symmetry[slot] if slot >= 0 else -1]
        for place in range(slots[kind]):
            code += parts[places[place]]
        if best is None or code < best:
            best, chosen[node] = code, symmetry
    assert best is not None
    return best
