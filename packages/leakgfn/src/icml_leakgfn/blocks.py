"""Fragments with attachment points: reading them, their symmetries, and a library cut from molecules by
BRICS.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from importlib import resources
from pathlib import Path
from typing import Any, Literal, TypeAlias

import torch

Attach: TypeAlias = Literal["any", "first"]
# An element of valence one that no fragment holds stands for an attachment point while symmetries are sought,
# since a dummy atom would match anything.
_STAND_IN = 85
_MOST_SYMMETRIES = 5000  # automorphisms of a fragment that are looked at; benzene has 12


@dataclass(frozen=True)
class Block:
    """A fragment.

    Attributes:
        smiles: canonical, with ``*`` at every attachment point.
        mol: the RDKit molecule of it, attachment points as dummy atoms.
        slots: the dummy atoms' numbers, in the order in which the slots are counted.
        symmetries: permutations of the slots by which the fragment stays the same; a group.
    """

    smiles: str
    mol: Any
    slots: tuple[int, ...]
    symmetries: tuple[tuple[int, ...], ...]

    def orbit(self, slot: int) -> int:
        """The least slot that is equivalent to this one."""
        return min(symmetry[slot] for symmetry in self.symmetries)


def block_from_smiles(smiles: str, attachments: Sequence[int] | None = None) -> Block:
    """A fragment from SMILES.

    Args:
        smiles: with ``*`` at the attachment points, or without where ``attachments`` are given.
        attachments: numbers of the atoms that carry an attachment point each; an atom may stand twice.

    Raises:
        ValueError: SMILES that RDKit does not take, an atom that does not exist or has no hydrogen to give,
            no attachment point, or one that does not hang on a single bond.
    """
    from rdkit import Chem

    mol = Chem.MolFromSmiles(smiles) if isinstance(smiles, str) and smiles else None
    if mol is None:
        raise ValueError(f"block {smiles!r} is no SMILES that RDKit takes")
    if attachments is not None:
        mol = _with_dummies(mol, smiles, attachments)
        slots = tuple(a.GetIdx() for a in mol.GetAtoms() if a.GetAtomicNum() == 0)
    else:
        for atom in mol.GetAtoms():
            if atom.GetAtomicNum() == 0:  # BRICS writes the kind of cut there
                atom.SetIsotope(0)
                atom.SetAtomMapNum(0)
        slots = tuple(a.GetIdx() for a in mol.GetAtoms() if a.GetAtomicNum() == 0)
    if not slots:
        raise ValueError(f"block {smiles!r} has no attachment point; write * where blocks may be joined")
    if mol.GetNumAtoms() == len(slots):
        raise ValueError(f"block {smiles!r} has no atom besides its attachment points")
    for slot in slots:
        bonds = mol.GetAtomWithIdx(slot).GetBonds()
        if len(bonds) != 1 or bonds[0].GetBondType() != Chem.BondType.SINGLE:
            raise ValueError(f"block {smiles!r}: an attachment point must hang on one single bond")
    return Block(Chem.MolToSmiles(mol), mol, slots, _symmetries(mol, slots))


def _with_dummies(mol: Any, smiles: str, attachments: Sequence[int]) -> Any:
    from rdkit import Chem

    if any(a.GetAtomicNum() == 0 for a in mol.GetAtoms()):
        raise ValueError(f"block {smiles!r} has both * and a list of attachment atoms; give one of the two")
    wanted = Counter(attachments)
    for atom, count in wanted.items():
        if not 0 <= atom < mol.GetNumAtoms():
            raise ValueError(
                f"block {smiles!r}: attachment atom {atom} does not exist; it has atoms 0 to "
                f"{mol.GetNumAtoms() - 1}"
            )
        if mol.GetAtomWithIdx(atom).GetTotalNumHs() < count:
            raise ValueError(f"block {smiles!r}: attachment atom {atom} has too few hydrogens to replace")
    edited = Chem.RWMol(mol)
    for atom in attachments:
        carrier = edited.GetAtomWithIdx(atom)
        if carrier.GetNumExplicitHs():
            carrier.SetNumExplicitHs(carrier.GetNumExplicitHs() - 1)
        edited.AddBond(atom, edited.AddAtom(Chem.Atom(0)), Chem.BondType.SINGLE)
    found = edited.GetMol()
    Chem.SanitizeMol(found)
    return found


def _symmetries(mol: Any, slots: tuple[int, ...]) -> tuple[tuple[int, ...], ...]:
    """The permutations of the slots that automorphisms of the fragment make, the identity first."""
    from rdkit import Chem

    if len(slots) == 1:
        return ((0,),)
    marked = Chem.RWMol(mol)
    for slot in slots:
        marked.GetAtomWithIdx(slot).SetAtomicNum(_STAND_IN)
    marked = marked.GetMol()
    matches = marked.GetSubstructMatches(
        marked, uniquify=False, useChirality=True, maxMatches=_MOST_SYMMETRIES
    )
    # A match takes any aromatic nitrogen for another; which of them carries the hydrogen tells slots apart.
    kind = [(a.GetTotalNumHs(), a.GetFormalCharge(), a.GetIsotope()) for a in mol.GetAtoms()]
    number = {atom: k for k, atom in enumerate(slots)}
    found = {
        tuple(number[match[slot]] for slot in slots)
        for match in matches
        if all(kind[atom] == kind[image] for atom, image in enumerate(match))
    }
    identity = tuple(range(len(slots)))
    return (identity, *sorted(found - {identity}))


class BlockLibrary:
    """Fragments, and the arms by which a new one can be attached.

    Args:
        blocks: ``"default105"``, a path to a file, or a list whose items are SMILES with ``*`` or pairs of a
            SMILES and its attachment atoms.
        attach: ``"any"``: a new block can be attached by each of its slots; ``"first"``: by its first one
            only, as in the official block code, where further ways are further entries of the list.

    Raises:
        ValueError: no block, an invalid one, or the same one twice.
        FileNotFoundError: no such file.
    """

    def __init__(
        self,
        blocks: str | Path | Iterable[str | tuple[str, Sequence[int]]] = "default105",
        *,
        attach: Attach = "any",
    ) -> None:
        if attach not in ("any", "first"):
            raise ValueError(f"attach={attach!r} is neither 'any' nor 'first'")
        items = read_blocks(blocks) if isinstance(blocks, (str, Path)) else list(blocks)
        if not items:
            raise ValueError("the list of blocks is empty")
        self.attach = attach
        self.blocks = [
            block_from_smiles(i) if isinstance(i, str) else block_from_smiles(i[0], i[1]) for i in items
        ]
        names: dict[tuple[str, int], int] = {}
        for number, block in enumerate(self.blocks):
            # Lists for attach="first" hold a fragment once for each way of attaching it.
            name = (block.smiles, self._first_arm(block) if attach == "first" else 0)
            if name in names:
                raise ValueError(f"blocks {names[name]} and {number} are the same: {block.smiles}")
            names[name] = number
        self.arms: list[tuple[int, int]] = []  # kind and slot by which it is attached
        self.arm_of: list[list[int]] = []  # for each kind and slot: the arm, or -1
        for kind, block in enumerate(self.blocks):
            row = [-1] * len(block.slots)
            for slot in range(len(block.slots)):
                least = block.orbit(slot)
                if attach == "first" and least != block.orbit(0):
                    continue
                if row[least] < 0:
                    row[least] = len(self.arms)
                    self.arms.append((kind, least))
                row[slot] = row[least]
            self.arm_of.append(row)

    @staticmethod
    def _first_arm(block: Block) -> int:
        from rdkit import Chem

        ranks = list(Chem.CanonicalRankAtoms(block.mol, breakTies=False))
        return ranks[block.slots[0]]

    def __len__(self) -> int:
        return len(self.blocks)

    @property
    def widest(self) -> int:
        """Most slots of a block."""
        return max(len(block.slots) for block in self.blocks)

    def kinds(self) -> Any:
        """The kinds as ``icml_kernels.canonical_trees`` takes them."""
        from icml_kernels import BlockKinds

        counts = [len(block.symmetries) for block in self.blocks]
        perms = [
            [*symmetry, *[-1] * (self.widest - len(symmetry))]
            for block in self.blocks
            for symmetry in block.symmetries
        ]
        return BlockKinds(
            torch.tensor([len(block.slots) for block in self.blocks]),
            torch.tensor([0, *counts]).cumsum(0),
            torch.tensor(perms),
        )

    def signature(self) -> list[str]:
        """The SMILES in order."""
        return [block.smiles for block in self.blocks]


def read_blocks(where: str | Path) -> list[str | tuple[str, list[int]]]:
    """A list of blocks: ``"default105"``, or a text file with a SMILES a line, or SMILES and attachment
    atoms.

    A line is ``*c1ccccc1*`` or ``c1ccccc1 0 3``; empty lines and what follows ``#`` and a space are skipped.

    Raises:
        FileNotFoundError: no such file.
        ValueError: a line that is neither.
    """
    if str(where) == "default105":
        text = resources.files("icml_leakgfn").joinpath("default105.smi").read_text(encoding="utf-8")
    else:
        path = Path(where)
        if not path.is_file():
            raise FileNotFoundError(f"blocks={str(where)!r} is neither 'default105' nor a file")
        text = path.read_text(encoding="utf-8")
    found: list[str | tuple[str, list[int]]] = []
    for number, line in enumerate(text.splitlines(), 1):
        words = line.split("# ")[0].split()
        if not words or line.startswith("#"):
            continue
        if len(words) == 1 or "*" in words[0]:
            found.append(words[0])
            continue
        if not all(word.isdigit() for word in words[1:]):
            raise ValueError(f"{where}, line {number}: {line.strip()!r} is no SMILES with attachment atoms")
        found.append((words[0], [int(word) for word in words[1:]]))
    return found


def brics_fragments(smiles: str) -> list[str]:
    """The fragments into which BRICS (Degen et al. 2008) cuts a molecule, ``*`` at each cut.

    Raises:
        ValueError: SMILES that RDKit does not take.
    """
    from rdkit import Chem
    from rdkit.Chem import BRICS

    mol = Chem.MolFromSmiles(smiles)
    if mol is None:
        raise ValueError(f"{smiles!r} is no SMILES that RDKit takes")
    bonds = [mol.GetBondBetweenAtoms(*ends) for ends, _ in BRICS.FindBRICSBonds(mol)]
    single = [b.GetIdx() for b in bonds if b.GetBondType() == Chem.BondType.SINGLE]
    if not single:
        return [Chem.MolToSmiles(mol)]
    labels = [(0, 0)] * len(single)
    cut = Chem.FragmentOnBonds(mol, single, dummyLabels=labels)
    return [Chem.MolToSmiles(part) for part in Chem.GetMolFrags(cut, asMols=True)]


def count_blocks(
    smiles: Iterable[str], n_blocks: int, *, max_slots: int = 4, max_atoms: int = 16
) -> list[str]:
    """The fragments that occur most often in molecules, as SMILES with ``*``; ties in alphabetical order.

    Args:
        smiles: molecules; those that RDKit does not take are skipped.
        n_blocks: how many.
        max_slots: fragments with more attachment points are left out.
        max_atoms: fragments with more heavy atoms are left out.

    Raises:
        ValueError: fewer fragments than wanted.
    """
    from rdkit import Chem

    counts: Counter[str] = Counter()
    for item in smiles:
        if Chem.MolFromSmiles(item) is not None:
            counts.update(brics_fragments(item))
    kept = []
    for name, _ in sorted(counts.items(), key=lambda pair: (-pair[1], pair[0])):
        atoms = Chem.MolFromSmiles(name)
        slots = name.count("*")
        if atoms is None or not 1 <= slots <= max_slots or atoms.GetNumHeavyAtoms() - slots > max_atoms:
            continue
        if Chem.MolToSmiles(atoms) not in kept:
            kept.append(Chem.MolToSmiles(atoms))
        if len(kept) == n_blocks:
            return kept
    raise ValueError(f"these molecules give {len(kept)} fragments; n_blocks={n_blocks} were asked for")
