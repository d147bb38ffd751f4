"""Bonds, angles, dihedrals and excluded pairs of a molecule, from its residues and its graph of bonds."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

import numpy as np
from jaxtyping import Float, Int

PEPTIDE_BOND_LIMIT = 2.0
"""C-N distance (Å) above which the chain is broken; a peptide bond measures 1.33."""
CA_BOND_LIMIT = 4.5
"""CA-CA distance (Å) above which the chain is broken; 3.8 when trans, 2.9 when cis."""
COVALENT_SLACK = 0.45
"""Å by which a bond may exceed the sum of its covalent radii (the rule of Open Babel)."""
WITHIN_RESIDUE = (("N", "CA"), ("CA", "CB"), ("CA", "C"), ("C", "O"))


@dataclass(frozen=True)
class Topology:
    """Terms of a molecule as indices of beads, and the kind of each dihedral."""

    bonds: Int[np.ndarray, "bonds 2"]
    angles: Int[np.ndarray, "angles 3"]
    dihedrals: Int[np.ndarray, "dihedrals 4"]
    dihedral_kinds: tuple[str, ...]


def backbone_topology(
    residues: Sequence[Mapping[str, int]], chains: Sequence[str], pos: Float[np.ndarray, "beads 3"]
) -> Topology:
    """Terms of a 5-bead chain: all bonds and angles, φ, ψ, ω, the chirality of CA, the plane of the peptide
    group.

    Args:
        residues: for each residue, its beads by name.
        chains: name of each residue's chain.
        pos: positions, Å; residues are linked where C and N are near enough.
    """
    bonds: list[tuple[int, int]] = []
    dihedrals: list[tuple[str, tuple[int, int, int, int]]] = []
    for number, here in enumerate(residues):
        bonds += [(here[a], here[b]) for a, b in WITHIN_RESIDUE if a in here and b in here]
        if "CB" in here:
            dihedrals.append(("chirality", (here["CB"], here["N"], here["C"], here["CA"])))
        if number + 1 == len(residues) or chains[number] != chains[number + 1]:
            continue
        after = residues[number + 1]
        if np.linalg.norm(pos[here["C"]] - pos[after["N"]]) > PEPTIDE_BOND_LIMIT:
            continue
        bonds.append((here["C"], after["N"]))
        dihedrals += [
            ("psi", (here["N"], here["CA"], here["C"], after["N"])),
            ("omega", (here["CA"], here["C"], after["N"], after["CA"])),
            ("phi", (here["C"], after["N"], after["CA"], after["C"])),
            ("carbonyl", (here["CA"], after["N"], here["O"], here["C"])),
        ]
    return _assemble(bonds, dihedrals, len(pos))


def trace_topology(chains: Sequence[str], pos: Float[np.ndarray, "beads 3"]) -> Topology:
    """Terms of a CA trace: bonds between neighbours in the chain, angles, dihedrals of four in a row."""
    bonds = [
        (i, i + 1)
        for i in range(len(pos) - 1)
        if chains[i] == chains[i + 1] and np.linalg.norm(pos[i + 1] - pos[i]) <= CA_BOND_LIMIT
    ]
    linked = set(bonds)
    dihedrals = [
        ("trace", (i, i + 1, i + 2, i + 3))
        for i in range(len(pos) - 3)
        if all((i + k, i + k + 1) in linked for k in range(3))
    ]
    return _assemble(bonds, dihedrals, len(pos))


def covalent_topology(
    groups: Sequence[range], radii: Float[np.ndarray, " atoms"], pos: Float[np.ndarray, "atoms 3"],
    linkers: Iterable[int] = (),
) -> Topology:  # fmt: skip
    """Terms of an all-atom molecule, bonds where two atoms are nearer than their covalent radii allow.

    Args:
        groups: atoms of each residue in chain order; bonds are sought in a residue and towards the next.
        radii: covalent radii, Å.
        pos: positions, Å.
        linkers: atoms that may also bond across the chain (the sulphurs of cystine).
    """
    bonds = set()
    links = np.array(sorted(linkers), dtype=np.int64)
    blocks = [
        (np.array(groups[k]), np.concatenate([groups[k], groups[k + 1] if k + 1 < len(groups) else []]))
        for k in range(len(groups))
    ]
    for first, second in [*blocks, (links, links)]:
        first, second = first.astype(np.int64), second.astype(np.int64)
        distance = np.linalg.norm(pos[first][:, None] - pos[second][None], axis=-1)
        near = distance < radii[first][:, None] + radii[second][None] + COVALENT_SLACK
        for a, b in zip(*np.nonzero(near), strict=True):
            if first[a] < second[b]:
                bonds.add((int(first[a]), int(second[b])))
    neighbours = neighbours_of(sorted(bonds), len(pos))
    proper = [
        ("proper", (i, j, k, m))
        for j, k in sorted(bonds)
        for i in neighbours[j]
        for m in neighbours[k]
        if i != k and m != j and i != m
    ]
    return _assemble(sorted(bonds), proper, len(pos))


def neighbours_of(bonds: Iterable[Sequence[int]], n_beads: int) -> list[list[int]]:
    """Bonded neighbours of each bead, ascending."""
    neighbours: list[set[int]] = [set() for _ in range(n_beads)]
    for i, j in bonds:
        neighbours[i].add(int(j))
        neighbours[j].add(int(i))
    return [sorted(n) for n in neighbours]


def excluded_pairs(
    bonds: Int[np.ndarray, "bonds 2"], n_beads: int, depth: int
) -> Int[np.ndarray, "excluded 2"]:
    """Pairs i < j of beads that fewer than `depth` bonds separate, sorted.

    Args:
        bonds: the graph.
        n_beads: number of beads.
        depth: bonds from which on a pair counts as non-bonded (4 keeps pairs at least 4 bonds apart).

    Raises:
        ValueError: a negative depth.
    """
    if depth < 0:
        raise ValueError(f"the exclusion depth must be at least 0, got {depth}")
    neighbours = neighbours_of(bonds, n_beads)
    pairs = set()
    for start in range(n_beads):
        seen, front = {start}, {start}
        for _ in range(depth - 1):
            front = {j for i in front for j in neighbours[i]} - seen
            seen |= front
        pairs |= {(start, j) for j in seen if j > start}
    return np.array(sorted(pairs), dtype=np.int64).reshape(-1, 2)


def _assemble(
    bonds: Sequence[tuple[int, int]], dihedrals: Sequence[tuple[str, tuple[int, ...]]], n_beads: int
) -> Topology:
    neighbours = neighbours_of(bonds, n_beads)
    angles = [
        (a, vertex, b)
        for vertex in range(n_beads)
        for place, a in enumerate(neighbours[vertex])
        for b in neighbours[vertex][place + 1 :]
    ]
    return Topology(
        bonds=np.array([sorted(b) for b in bonds], dtype=np.int64).reshape(-1, 2),
        angles=np.array(angles, dtype=np.int64).reshape(-1, 3),
        dihedrals=np.array([d for _, d in dihedrals], dtype=np.int64).reshape(-1, 4),
        dihedral_kinds=tuple(kind for kind, _ in dihedrals),
    )
