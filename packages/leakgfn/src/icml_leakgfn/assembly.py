"""From a tree of blocks to a molecule, and back: RDKit is needed here alone."""

from __future__ import annotations

import time
from functools import lru_cache
from typing import Any

import numpy as np
from jaxtyping import Int
from numpy import ndarray

from icml_leakgfn.blocks import Block, BlockLibrary


class NotExpressible(ValueError):
    """A molecule that the blocks do not make.

    Attributes:
        uncovered: numbers of the atoms that the best attempt left over.
    """

    def __init__(self, message: str, uncovered: tuple[int, ...]) -> None:
        super().__init__(message)
        self.uncovered = uncovered


def assemble(library: BlockLibrary, tree: Int[ndarray, "4 width"]) -> Any:
    """The molecule of a tree of blocks; open attachment points become hydrogen.

    Args:
        library: the blocks.
        tree: kinds, parents, slots of the parents, own slots; -1 beyond the last node.

    Raises:
        ValueError: RDKit refuses the molecule; or there is no block.
    """
    from rdkit import Chem

    kinds = [int(k) for k in tree[0] if k >= 0]
    if not kinds:
        raise ValueError("there is no block, hence no molecule")
    mol = Chem.RWMol()
    begin = []
    for kind in kinds:
        begin.append(mol.GetNumAtoms())
        mol.InsertMol(library.blocks[kind].mol)
    joined: list[int] = []
    for node in range(1, len(kinds)):
        up = int(tree[1, node])
        ends = (
            begin[node] + library.blocks[kinds[node]].slots[int(tree[3, node])],
            begin[up] + library.blocks[kinds[up]].slots[int(tree[2, node])],
        )
        carriers = [mol.GetAtomWithIdx(end).GetNeighbors()[0].GetIdx() for end in ends]
        mol.AddBond(*carriers, Chem.BondType.SINGLE)
        joined += ends
    for atom in mol.GetAtoms():
        if atom.GetAtomicNum() == 0:
            atom.SetAtomicNum(1)
    for atom in sorted(joined, reverse=True):
        mol.RemoveAtom(atom)
    try:
        whole = Chem.RemoveHs(mol.GetMol())
        Chem.SanitizeMol(whole)
    except Chem.MolSanitizeException as error:
        names = ".".join(library.blocks[kind].smiles for kind in kinds)
        raise ValueError(f"RDKit refuses the molecule of the blocks {names}: {error}") from error
    return whole


def disassemble(
    library: BlockLibrary, mol: Any, *, max_blocks: int, time_limit: float = 1.0
) -> Int[ndarray, "4 width"]:
    """A tree of blocks whose molecule is ``mol``: an exact cover of its atoms by blocks, found by trying.

    Args:
        library: the blocks.
        mol: an RDKit molecule.
        max_blocks: most blocks.
        time_limit: seconds.

    Raises:
        NotExpressible: the blocks do not make it, or not found in time; with the atoms left over.
    """
    from rdkit import Chem

    target = Chem.MolToSmiles(mol)
    mol = Chem.MolFromSmiles(target) if mol.GetNumAtoms() else mol
    if mol is None or mol.GetNumAtoms() == 0:
        raise NotExpressible("the molecule has no atoms", ())
    deadline = time.monotonic() + time_limit
    around = _neighbours(mol)
    pieces = [piece for kind in range(len(library)) for piece in _places(library, kind, mol, around)]
    by_atom: list[list[tuple[int, frozenset[int], dict[int, int]]]] = [[] for _ in range(mol.GetNumAtoms())]
    for piece in sorted(pieces, key=lambda p: -len(p[1])):
        for atom in piece[1]:
            by_atom[atom].append(piece)
    # What no block covers at all is left over for certain; how much else can be covered is told all the same.
    hopeless = frozenset(atom for atom, choices in enumerate(by_atom) if not choices)
    everything = frozenset(range(mol.GetNumAtoms())) - hopeless
    best: tuple[int, ...] = tuple(range(mol.GetNumAtoms()))
    stack: list[tuple[frozenset[int], list[Any]]] = [(everything, [])]
    out_of_time = False
    while stack:
        if time.monotonic() > deadline:
            out_of_time = True
            break
        left, chosen = stack.pop()
        if len(left | hopeless) < len(best):
            best = tuple(sorted(left | hopeless))
        if not left and hopeless:
            break
        if not left:
            tree = _joined(library, mol, chosen, max_blocks)
            if tree is not None and Chem.MolToSmiles(assemble(library, tree)) == target:
                return tree
            continue
        if len(chosen) == max_blocks:
            continue
        hardest = min(left, key=lambda a: sum(p[1] <= left for p in by_atom[a]))
        for piece in reversed([p for p in by_atom[hardest] if p[1] <= left]):
            stack.append((left - piece[1], [*chosen, piece]))
    why = f"not found in {time_limit:g} s" if out_of_time else "the blocks do not make it"
    raise NotExpressible(f"{target}: {why}; atoms {list(best)} were left over", best)


@lru_cache(maxsize=10_000)
def _core(block: Block) -> tuple[Any, list[int], dict[int, int], list[int]]:
    """The fragment without its attachment points, which atom each of its atoms was, slots by atom, and how
    many neighbours each atom has within it.
    """
    from rdkit import Chem

    edited = Chem.RWMol(block.mol)
    kept = [a.GetIdx() for a in block.mol.GetAtoms() if a.GetIdx() not in block.slots]
    carriers = {
        slot: block.mol.GetAtomWithIdx(atom).GetNeighbors()[0].GetIdx()
        for slot, atom in enumerate(block.slots)
    }
    for atom in sorted(block.slots, reverse=True):
        edited.RemoveAtom(atom)
    core = edited.GetMol()
    core.UpdatePropertyCache(strict=False)
    Chem.FastFindRings(core)
    return core, kept, carriers, [atom.GetDegree() for atom in core.GetAtoms()]


def _neighbours(mol: Any) -> list[list[tuple[int, bool]]]:
    """The neighbours of each atom, and whether blocks may be joined by the bond: single and in no ring."""
    found: list[list[tuple[int, bool]]] = [[] for _ in range(mol.GetNumAtoms())]
    for bond in mol.GetBonds():
        one, other = bond.GetBeginAtomIdx(), bond.GetEndAtomIdx()
        joins = not bond.IsInRing() and bond.GetBondTypeAsDouble() == 1
        found[one].append((other, joins))
        found[other].append((one, joins))
    return found


def _places(
    library: BlockLibrary, kind: int, mol: Any, around: list[list[tuple[int, bool]]]
) -> list[tuple[int, frozenset[int], dict[int, int]]]:
    """Where the fragment fits: its kind, the atoms, and for each slot the atom that carries it."""
    core, kept, carriers, degree = _core(library.blocks[kind])
    room: dict[int, int] = {}
    for carrier in carriers.values():
        room[carrier] = room.get(carrier, 0) + 1
    found = []
    seen = set()
    for match in mol.GetSubstructMatches(core, uniquify=False, maxMatches=1000):
        atoms = frozenset(match)
        where = dict(zip(kept, match, strict=True))
        fits = True
        for old, new, own in zip(kept, match, degree, strict=True):
            outside = [joins for other, joins in around[new] if other not in atoms]
            inside = len(around[new]) - len(outside)
            if len(outside) > room.get(old, 0) or inside != own or not all(outside):
                fits = False
                break
        placed = {slot: where[carrier] for slot, carrier in carriers.items()}
        key = (atoms, tuple(sorted(placed.items())))
        if fits and key not in seen:
            seen.add(key)
            found.append((kind, atoms, placed))
    return found


def _joined(
    library: BlockLibrary, mol: Any, chosen: list[tuple[int, frozenset[int], dict[int, int]]], width: int
) -> Int[ndarray, "4 width"] | None:
    """The tree of pieces that cover a molecule, or None where slots or arms do not suffice."""
    owner = {atom: node for node, (_, atoms, _) in enumerate(chosen) for atom in atoms}
    free = [dict(placed) for _, _, placed in chosen]
    links: list[list[tuple[int, int, int]]] = [[] for _ in chosen]
    for bond in mol.GetBonds():
        a, b = bond.GetBeginAtomIdx(), bond.GetEndAtomIdx()
        if owner[a] == owner[b]:
            continue
        slots = []
        for atom in (a, b):
            slot = next((s for s, carrier in free[owner[atom]].items() if carrier == atom), None)
            if slot is None:
                return None
            del free[owner[atom]][slot]
            slots.append(slot)
        links[owner[a]].append((owner[b], slots[0], slots[1]))
        links[owner[b]].append((owner[a], slots[1], slots[0]))
    for root in range(len(chosen)):
        tree = np.full((4, width), -1, dtype=np.int64)
        waiting, count, fits = [(root, -1, -1, -1, -1)], 0, True
        while waiting and fits:
            node, above, up, up_slot, slot = waiting.pop(0)
            kind = chosen[node][0]
            fits = slot < 0 or library.arm_of[kind][slot] >= 0
            tree[:, count] = (kind, up, up_slot, slot)
            waiting += [(w, node, count, s, t) for w, s, t in links[node] if w != above]
            count += 1
            if count > len(chosen):
                return None  # a ring of blocks
        if fits and count == len(chosen):
            return tree
    return None
