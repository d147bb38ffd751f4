"""Molecules as trees of blocks, in integers: RDKit is asked for the molecule of a reward alone.

A state holds, for every block in canonical order, its kind, its parent, the parent's slot and its own slot.
An action joins a new block by one of its arms to an open slot; slots that a symmetry of the state maps to
each other give one action, so that an edge between two states stands once.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any, Literal

import numpy as np
import torch
from jaxtyping import Bool, Int, Int8
from numpy import ndarray
from torch import Tensor

from icml_leakgfn.assembly import assemble, disassemble
from icml_leakgfn.blocks import Attach, BlockLibrary, count_blocks
from icml_leakgfn.environments import World
from icml_leakgfn.stems import OpenSlots

_MOLECULES_KEPT = 200_000


class FragmentEnv(World):
    """Molecules made of blocks.

    Args:
        blocks: ``"default105"``, a file, or a list of SMILES with ``*`` or of pairs (SMILES, attachment
            atoms).
        max_blocks: L_max.
        min_blocks: fewer blocks are no finished molecule: stop is masked.
        truncation: what a molecule is worth that has max_blocks blocks and open slots: "leak", nothing;
            "cap", what its reward says, its open slots closed with hydrogen.
        stop: "capped": stop may be chosen with open slots, which become hydrogen; "closed": a molecule is
            finished when no slot is open.
        horizon: how many blocks the chemical flow may walk to.
        attach: whether a new block can be attached by any of its slots or by the first one only.

    Raises:
        ValueError: invalid blocks, contradictory sizes, or no finished molecule within max_blocks.

    Example:
        >>> env = FragmentEnv(["*c1ccccc1*", "*C", "*O"], max_blocks=3)
        >>> env.label(env.step(env.reset(1), [1])[0])
        ['C']
    """

    def __init__(
        self,
        blocks: str | Path | Iterable[str | tuple[str, Sequence[int]]] = "default105",
        max_blocks: int = 8,
        min_blocks: int = 2,
        truncation: Literal["leak", "cap"] = "leak",
        *,
        stop: Literal["capped", "closed"] = "capped",
        horizon: int | None = None,
        attach: Attach = "any",
    ) -> None:
        self._set_lengths(max_blocks, horizon, truncation)
        if stop not in ("capped", "closed"):
            raise ValueError(f"stop={stop!r} is neither 'capped' nor 'closed'")
        if not 1 <= min_blocks <= max_blocks:
            raise ValueError(f"min_blocks={min_blocks} must lie between 1 and max_blocks={max_blocks}")
        self.library = BlockLibrary(blocks, attach=attach)
        self.min_blocks, self.stop = min_blocks, stop
        self._kinds = self.library.kinds()
        self._sizes = self._kinds.sizes.numpy()
        arms = np.array(self.library.arms, dtype=np.int64)
        self._arm_kind, self._arm_slot = arms[:, 0], arms[:, 1]
        widest = self.library.widest
        self._arm_of = np.array([[*row, *[-1] * (widest - len(row))] for row in self.library.arm_of])
        self._first_arms = np.zeros(len(arms), dtype=bool)
        self._first_arms[np.unique(self._arm_kind, return_index=True)[1]] = True
        self.n_arms = len(arms)
        self.max_stems = max(1, (widest - 2) * self.horizon + 2)
        self.n_actions = self.max_stems * self.n_arms + 1
        self.start = np.full(4 * self.horizon, -1, dtype=np.int16)
        orbits = [
            [*(b.orbit(s) for s in range(len(b.slots))), *[-1] * (widest - len(b.slots))]
            for b in self.library.blocks
        ]
        self._open_slots = OpenSlots(
            self._sizes, np.array(orbits, dtype=np.int64), self.horizon, self.max_stems, self._canonical
        )
        self._molecules: dict[bytes, Any] = {}
        self._labels: dict[bytes, str] = {}
        shortest = self._shortest()
        if shortest > max_blocks and truncation == "leak":
            raise ValueError(
                f"no finished molecule can be reached within max_blocks={max_blocks}; the shortest has "
                f"{shortest if shortest < 10**6 else 'no end: no block closes a slot'} blocks"
            )

    def _shortest(self) -> int:
        """Blocks of the smallest finished molecule: with open slots, two caps, or a block and its caps."""
        least = int(self._sizes.min())
        caps = bool((self._sizes[self._arm_kind] == 1).any())
        closed = 1 + least if caps else 10**9
        if self.stop == "closed":
            return max(closed, self.min_blocks)
        return min(max(closed, self.min_blocks), self.min_blocks + 1)

    @classmethod
    def from_smiles(
        cls, smiles: Iterable[str], n_blocks: int, *, max_slots: int = 4, **options: Any
    ) -> FragmentEnv:
        """An environment on the fragments that occur most often in molecules, cut by BRICS.

        Raises:
            ValueError: fewer fragments than n_blocks, or what the constructor refuses.
        """
        return cls(count_blocks(smiles, n_blocks, max_slots=max_slots), **options)

    def _trees(self, states: Int[ndarray, "n width"]) -> Int[ndarray, "n 4 blocks"]:
        return np.asarray(states).reshape(len(states), 4, self.horizon)

    def step(
        self,
        states: Int[ndarray, "n width"],
        actions: Int[ndarray, " n"],
        budget: Int[ndarray, " n"] | int | None = None,
    ) -> tuple[Int[ndarray, "n width"], Int8[ndarray, " n"]]:
        """The states after the actions, and whether each is INTERIOR, CUT or FINISHED.

        Raises:
            TypeError: actions that are no integers.
            ValueError: a state that is no tree of these blocks, an action that is not legal, or beyond the
                horizon.
        """
        self._canonical(self._trees(np.asarray(states)), check=True)
        return super().step(states, actions, budget)

    def _canonical(
        self,
        trees: Int[ndarray, "n 4 blocks"],
        marks: Int[ndarray, "n 2"] | None = None,
        *,
        check: bool = False,
    ) -> Any:
        from icml_kernels import canonical_trees

        given = torch.from_numpy(np.ascontiguousarray(trees, dtype=np.int64))
        at = None if marks is None else torch.from_numpy(np.ascontiguousarray(marks, dtype=np.int64))
        # Trees are grown and pruned here by rules that keep them whole; what comes from outside is checked.
        return canonical_trees(given, self._kinds, at, check=check)

    def length(self, states: Int[ndarray, "n width"]) -> Int[ndarray, " n"]:
        """Blocks."""
        return (self._trees(states)[:, 0] >= 0).sum(axis=1)

    def open_slots(self, states: Int[ndarray, "n width"]) -> Int[ndarray, " n"]:
        """Slots of all blocks less those that are joined."""
        kinds = self._trees(states)[:, 0]
        blocks = (kinds >= 0).sum(axis=1)
        slots = np.where(kinds >= 0, self._sizes[np.maximum(kinds, 0)], 0).sum(axis=1)
        return slots - 2 * np.maximum(blocks - 1, 0)

    def can_grow(self, states: Int[ndarray, "n width"]) -> Bool[ndarray, " n"]:
        """A slot is open, or there is no block yet."""
        return (self.open_slots(states) > 0) | (self.length(states) == 0)

    def stems(
        self, states: Int[ndarray, "n width"]
    ) -> tuple[Int[ndarray, "n stems"], Int[ndarray, "n stems"], Int[ndarray, "n stems"]]:
        """The open slots in canonical order: node, slot, and the first one that a symmetry maps to it; -1
        beyond.

        The empty state has one, on no node.
        """
        return self._open_slots(states)

    def mask(self, states: Int[ndarray, "n width"]) -> Bool[ndarray, "n actions"]:
        """Every arm at every open slot, alike slots once; stop where the molecule is finished."""
        n = len(states)
        _, _, alike = self.stems(states)
        legal = np.zeros((n, self.n_actions), dtype=bool)
        own = alike == np.arange(self.max_stems)
        legal[:, :-1] = np.repeat(own, self.n_arms, axis=1)
        empty = self.length(states) == 0
        legal[np.flatnonzero(empty)[:, None], np.arange(self.n_arms)] = self._first_arms
        legal[:, -1] = self._may_stop(states)
        return legal

    def _may_stop(self, states: Int[ndarray, "n width"]) -> Bool[ndarray, " n"]:
        enough = self.length(states) >= self.min_blocks
        return enough if self.stop == "capped" else enough & (self.open_slots(states) == 0)

    def finishes(self, states: Int[ndarray, "n width"]) -> Bool[ndarray, " n"]:
        """No slot is open, and there are enough blocks."""
        return (self.open_slots(states) == 0) & (self.length(states) >= self.min_blocks)

    def apply(self, states: Int[ndarray, "n width"], actions: Int[ndarray, " n"]) -> Int[ndarray, "n width"]:
        """Join a block, and put the molecule into canonical form."""
        actions = np.asarray(actions, dtype=np.int64)
        trees = self._trees(states).astype(np.int64)
        nodes, slots, _ = self.stems(states)
        return self._grown(trees, nodes, slots, np.arange(len(trees)), actions)

    def _grown(
        self,
        trees: Int[ndarray, "n 4 blocks"],
        nodes: Int[ndarray, "n stems"],
        slots: Int[ndarray, "n stems"],
        source: Int[ndarray, " edges"],
        actions: Int[ndarray, " edges"],
    ) -> Int[ndarray, "edges width"]:
        """The trees after actions on the rows ``source``, in canonical form."""
        stem, arm = actions // self.n_arms, actions % self.n_arms
        grown = trees[source]
        at = (grown[:, 0] >= 0).sum(axis=1)
        rows = np.arange(len(source))
        empty = at == 0
        grown[rows, 0, at] = self._arm_kind[arm]
        grown[rows, 1, at] = np.where(empty, -1, nodes[source, stem])
        grown[rows, 2, at] = np.where(empty, -1, slots[source, stem])
        grown[rows, 3, at] = np.where(empty, -1, self._arm_slot[arm])
        form = self._canonical(grown)
        return form.trees.flatten(1).numpy().astype(np.int16)

    def children(
        self, states: Int[ndarray, "n width"], source: Int[ndarray, " edges"], actions: Int[ndarray, " edges"]
    ) -> Int[ndarray, "edges width"]:
        """The ends of many edges: ``apply(states[source], actions)``, the open slots listed once a state."""
        trees = self._trees(states).astype(np.int64)
        nodes, slots, _ = self.stems(states)
        return self._grown(trees, nodes, slots, source, actions)

    def parents(
        self, states: Int[ndarray, "n width"]
    ) -> tuple[Int[ndarray, "edges width"], Int[ndarray, " edges"], Int[ndarray, " edges"]]:
        """Take off every block that hangs on one other, where it hangs by an arm; equal edges stand once."""
        from icml_kernels import unique_rows

        trees = self._trees(states).astype(np.int64)
        size = (trees[:, 0] >= 0).sum(axis=1)
        index, leaf, keeper, keeper_slot, arm = self._leaves(trees, size)
        if len(index) == 0:
            return np.empty((0, trees.shape[2] * 4), dtype=np.int16), index, index
        cut = self._without(trees[index], leaf, size[index])
        # Numbers after the leaf move up by one; where the root was the leaf the other one is the root.
        keeper = np.where(leaf == 0, 0, keeper - (keeper > leaf))
        form = self._canonical(cut)
        parents = form.trees.flatten(1).numpy().astype(np.int16)
        rows = np.arange(len(index))
        single = size[index] == 1
        node = form.order.numpy()[rows, np.maximum(keeper, 0)]
        slot = form.slot_map.numpy()[rows, np.maximum(keeper, 0), np.maximum(keeper_slot, 0)]
        nodes, slots, alike = self.stems(parents)
        here = (nodes == node[:, None]) & (slots == slot[:, None])
        stem = np.where(single, 0, here.argmax(axis=1))
        actions = alike[rows, stem] * self.n_arms + arm
        actions = np.where(single, np.flatnonzero(self._first_arms)[trees[index, 0, 0]], actions)
        edges = np.column_stack([index, actions, parents.astype(np.int64)])
        first, _ = unique_rows(torch.from_numpy(edges))
        kept = first.numpy()
        return parents[kept], actions[kept], index[kept]

    def _leaves(self, trees: Int[ndarray, "n 4 blocks"], size: Int[ndarray, " n"]) -> tuple[ndarray, ...]:
        """Blocks that can be taken off: state, node, what it hangs on, the slot there, and its arm."""
        n, _, nodes = trees.shape
        has_child = np.zeros((n, nodes), dtype=bool)
        row, node = np.nonzero(trees[:, 1] >= 0)
        has_child[row, trees[row, 1, node]] = True
        row, node = np.nonzero((trees[:, 1] >= 0) & ~has_child)
        found = [(row, node, trees[row, 1, node], trees[row, 2, node], trees[row, 3, node])]
        # Of two blocks the root is a leaf too; a single block leaves nothing behind.
        two = np.flatnonzero(size == 2)
        zero = np.zeros_like(two)
        found.append((two, zero, zero + 1, trees[two, 3, 1], trees[two, 2, 1]))
        index, leaf, keeper, keeper_slot, own = (np.concatenate(part) for part in zip(*found, strict=True))
        arm = self._arm_of[trees[index, 0, leaf], own]
        one = np.flatnonzero(size == 1)
        kept = arm >= 0
        parts = (index[kept], leaf[kept], keeper[kept], keeper_slot[kept], arm[kept])
        lonely = (one, np.zeros_like(one), np.full_like(one, -1), np.full_like(one, -1), np.zeros_like(one))
        joined = [np.concatenate(pair) for pair in zip(parts, lonely, strict=True)]
        order = np.argsort(joined[0], kind="stable")
        return tuple(part[order] for part in joined)

    def _without(
        self, trees: Int[ndarray, "n 4 blocks"], leaf: Int[ndarray, " n"], size: Int[ndarray, " n"]
    ) -> Int[ndarray, "n 4 blocks"]:
        """The trees without one leaf each."""
        n, _, nodes = trees.shape
        padded = np.concatenate([trees, np.full((n, 4, 1), -1)], axis=2)
        source = np.arange(nodes)[None] + (np.arange(nodes)[None] >= leaf[:, None])
        cut = np.take_along_axis(padded, np.repeat(source[:, None], 4, axis=1), axis=2)
        moved = cut[:, 1] > leaf[:, None]
        cut[:, 1] -= moved
        rooted = leaf == 0
        cut[rooted, 1:, 0] = -1
        return cut

    def may_finish(
        self, states: Int[ndarray, "n width"], remaining: Int[ndarray, " n"]
    ) -> Bool[ndarray, "n edges"]:
        """An open slot needs a block that closes it, unless stop may be chosen before the budget ends."""
        remaining = np.asarray(remaining)
        if self.truncation == "cap":
            return np.repeat((remaining > 0)[:, None], self.n_actions - 1, axis=1)
        arms = self._sizes[self._arm_kind]
        size = self.length(states)[:, None] + 1
        before = self.open_slots(states)[:, None]
        after = np.where(size == 1, arms[None], before + arms[None] - 2)
        left = remaining[:, None] - 1
        missing = np.maximum(self.min_blocks - size, 0)
        closed = (after <= left) & ((after > 0) | (missing == 0))
        # Stop is legal with open slots as long as the budget is not used up.
        fine = closed | (missing < left) if self.stop == "capped" else closed
        return np.tile(fine & (left >= 0), (1, self.max_stems))

    def min_steps_to_finish(self, states: Int[ndarray, "n width"]) -> Int[ndarray, " n"]:
        """Blocks that are missing at least."""
        missing = np.maximum(self.min_blocks - self.length(states), 0)
        if self.stop == "capped":
            return missing
        return np.maximum(missing, self.open_slots(states))

    def features(self, states: Int[ndarray, "n width"]) -> dict[str, Tensor]:
        """Kinds, parents and slots of all blocks, and the open slots, -1 beyond; and how many blocks."""
        trees = torch.from_numpy(self._trees(states).astype(np.int64))
        nodes, slots, _ = self.stems(states)
        return {
            "trees": trees,
            "stem_nodes": torch.from_numpy(nodes),
            "stem_slots": torch.from_numpy(slots),
            "length": torch.from_numpy(self.length(states)),
        }

    def decode(self, states: Int[ndarray, "n width"]) -> list[Any]:
        """The molecules, open slots closed with hydrogen; None where RDKit refuses one."""
        keys = self.key(states)
        if len(self._molecules) + len(keys) > _MOLECULES_KEPT:
            self._molecules.clear()
        for key, tree in zip(keys, self._trees(states), strict=True):
            if key not in self._molecules:
                try:
                    self._molecules[key] = assemble(self.library, tree)
                except ValueError:
                    self._molecules[key] = None
        return [self._molecules[key] for key in keys]

    def label(self, states: Int[ndarray, "n width"]) -> list[str]:
        """Canonical SMILES; the blocks where RDKit refuses the molecule."""
        from rdkit import Chem

        keys = self.key(states)
        if len(self._labels) + len(keys) > _MOLECULES_KEPT:
            self._labels.clear()
        missing = {key: row for row, key in enumerate(keys) if key not in self._labels}
        rows = np.fromiter(missing.values(), dtype=np.int64)
        for key, mol, tree in zip(missing, self.decode(states[rows]), self._trees(states[rows]), strict=True):
            names = [self.library.blocks[kind].smiles for kind in tree[0].tolist() if kind >= 0]
            self._labels[key] = ".".join(names) if mol is None else Chem.MolToSmiles(mol)
        return [self._labels[key] for key in keys]

    def decompose(self, mol: Any, time_limit: float = 1.0) -> Int[ndarray, " width"]:
        """The state whose molecule is ``mol`` (an RDKit molecule or SMILES); where there are several, one of
        them.

        Raises:
            NotExpressible: the blocks do not make it within ``horizon`` blocks, or not found in time.
            ValueError: SMILES that RDKit does not take.
        """
        from rdkit import Chem

        given = Chem.MolFromSmiles(mol) if isinstance(mol, str) else mol
        if given is None:
            raise ValueError(f"{mol!r} is no SMILES that RDKit takes")
        tree = disassemble(self.library, given, max_blocks=self.horizon, time_limit=time_limit)
        return self._canonical(tree[None]).trees.flatten(1).numpy().astype(np.int16)[0]

    def signature(self) -> dict[str, Any]:
        """With the blocks and what counts as finished."""
        return super().signature() | {
            "blocks": self.library.signature(),
            "attach": self.library.attach,
            "min_blocks": self.min_blocks,
            "stop": self.stop,
        }
