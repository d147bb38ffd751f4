"""Canonical forms of trees of blocks joined at slots: molecules as integers, equal where isomorphic."""

from __future__ import annotations

from typing import NamedTuple

import torch
from jaxtyping import Int64
from torch import Tensor

from icml_kernels.dispatch import raw_op
from icml_kernels.flows.canonical_trees import reference
from icml_kernels.molecules.checks import require_shape

_HERE = "icml_kernels.flows.canonical_trees"


class BlockKinds(NamedTuple):
    """The kinds of blocks: how many slots each has, and the permutations of its slots that leave it the same.

    Attributes:
        sizes: slots of each kind.
        perm_ptr: where each kind's permutations begin.
        perms: image of every slot, a row a permutation, -1 beyond the kind's slots; a group for each kind.
    """

    sizes: Int64[Tensor, " kinds"]
    perm_ptr: Int64[Tensor, " kinds_1"]
    perms: Int64[Tensor, "permutations slots"]


class CanonicalTrees(NamedTuple):
    """Canonical trees, and where everything of the given ones went.

    Attributes:
        trees: kinds, parents, slots of the parents, own slots, of the nodes in canonical order; -1 beyond.
        order: canonical number of each given node.
        slot_map: canonical slot of each given node's slots.
        marks: canonical node and slot of the mark.
    """

    trees: Int64[Tensor, "n 4 width"]
    order: Int64[Tensor, "n width"]
    slot_map: Int64[Tensor, "n width slots"]
    marks: Int64[Tensor, "n 2"]


def canonical_trees(
    trees: Int64[Tensor, "n 4 width"],
    kinds: BlockKinds,
    marks: Int64[Tensor, "n 2"] | None = None,
    *,
    check: bool = True,
) -> CanonicalTrees:
    """The same trees in canonical order of nodes and slots: two are equal exactly where they are isomorphic.

    An isomorphism maps blocks to blocks of the same kind and joined slots to joined slots, up to the
    symmetries of each kind. Rooted codes at the centre (Aho, Hopcroft and Ullman) are exact for trees and
    need no search; a block's own symmetries are tried one by one.

    Args:
        trees: rows of kinds, parents, slots of the parents, and own slots; parents come before their
            children, the first node has the parent -1, and beyond the last node all is -1.
        kinds: of the blocks.
        marks: a node and slot that isomorphisms must map to each other, or -1 and -1.
        check: False: kinds, slots and parents are not looked at, for trees that were made by a rule. What is
            not a tree then gives nonsense, or reads outside its row.

    Raises:
        TypeError: for other dtypes than int64.
        ValueError: for other shapes, kinds, slots or parents that do not exist.
    """
    for name, tensor in (("trees", trees), *zip(BlockKinds._fields, kinds, strict=True)):
        if tensor.dtype != torch.int64:
            raise TypeError(f"{name} has dtype {tensor.dtype}; expected torch.int64")
    require_shape("trees", trees, (None, 4, None))
    require_shape("perms", kinds.perms, (None, None))
    require_shape("perm_ptr", kinds.perm_ptr, (kinds.sizes.shape[0] + 1,))
    if marks is None:
        marks = trees.new_full((trees.shape[0], 2), -1)
    require_shape("marks", marks, (trees.shape[0], 2))
    if check:
        _check(trees, kinds)
    return CanonicalTrees(*_forward(*(t.contiguous() for t in trees.unbind(1)), marks, *kinds))


def _check(trees: Tensor, kinds: BlockKinds) -> None:
    block, parent, parent_slot, own_slot = trees.unbind(1)
    if trees.numel() == 0:
        return
    if int(block.max()) >= len(kinds.sizes):
        raise ValueError(f"a tree has a block of kind {int(block.max())}; there are {len(kinds.sizes)} kinds")
    inner = block >= 0
    inner[:, 0] = False
    place = torch.arange(trees.shape[2], device=trees.device)
    bad = inner & ((parent < 0) | (parent >= place))
    size = kinds.sizes[block.clamp(min=0)]
    above = torch.gather(size, 1, parent.clamp(min=0))
    bad |= inner & ((own_slot < 0) | (own_slot >= size) | (parent_slot < 0) | (parent_slot >= above))
    if bool(bad.any()):
        row, node = (int(v) for v in torch.nonzero(bad)[0])
        raise ValueError(
            f"tree {row}, node {node}: parent {int(parent[row, node])}, its slot "
            f"{int(parent_slot[row, node])}, own slot {int(own_slot[row, node])}: parents stand before their "
            "children, and slots exist"
        )


def _fake(
    blocks: Tensor,
    parents: Tensor,
    parent_slots: Tensor,
    own_slots: Tensor,
    marks: Tensor,
    sizes: Tensor,
    perm_ptr: Tensor,
    perms: Tensor,
) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    n, width = blocks.shape
    return (
        blocks.new_empty(n, 4, width),
        blocks.new_empty(n, width),
        blocks.new_empty(n, width, perms.shape[1]),
        torch.empty_like(marks),
    )


_forward = raw_op("canonical_trees", reference.forward, fake=_fake, cpu=f"{_HERE}.cpu:forward")
