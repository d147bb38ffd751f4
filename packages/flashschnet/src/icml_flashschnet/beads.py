"""The coarse-grained representations of a protein: which atoms are kept, and the type and mass of each bead.

Five beads a residue (N, CA, CB, C, O; glycine has no CB) as in mlcg and CGSchNet: the side chain's bead, CB,
carries the residue's number 1 to 20 (alphabetical by one-letter code); on glycine CA does. N, CA, C, O are
21 to 24, 0 is unused, so that an embedding of 25 serves. The CA map keeps one bead a residue, of the
residue's type.
"""

from __future__ import annotations

from typing import Literal

Representation = Literal["5bead", "ca"]

ONE_LETTER = {
    "ALA": "A", "CYS": "C", "ASP": "D", "GLU": "E", "PHE": "F", "GLY": "G", "HIS": "H", "ILE": "I",
    "LYS": "K", "LEU": "L", "MET": "M", "ASN": "N", "PRO": "P", "GLN": "Q", "ARG": "R", "SER": "S",
    "THR": "T", "VAL": "V", "TRP": "W", "TYR": "Y",
}  # fmt: skip
RESIDUE_TYPES = {
    name: number for number, name in enumerate(sorted(ONE_LETTER, key=ONE_LETTER.__getitem__), start=1)
}
"""1 (ALA) to 20 (TYR), by one-letter code."""
RESIDUE_NAMES = {number: name for name, number in RESIDUE_TYPES.items()}
BACKBONE_TYPES = {"N": 21, "CA": 22, "C": 23, "O": 24}
N_TYPES = 25
MASSES = {"N": 14.0, "CA": 12.0, "CB": 12.0, "C": 12.0, "O": 16.0}
"""amu, as in the CGSchNet training configurations."""
SAME_AS = {
    "HID": "HIS", "HIE": "HIS", "HIP": "HIS", "HSD": "HIS", "HSE": "HIS", "HSP": "HIS", "CYX": "CYS",
    "CYM": "CYS", "ASH": "ASP", "GLH": "GLU", "LYN": "LYS", "MSE": "MET",
}  # fmt: skip
"""Protonation states by the names of Amber and CHARMM, and selenomethionine, are their parent residue."""


def standard_name(name: str) -> str | None:
    """The standard residue that a residue name stands for, or None where it is none of the twenty."""
    name = SAME_AS.get(name, name)
    return name if name in RESIDUE_TYPES else None


def bead_names(residue: str, representation: Representation) -> tuple[str, ...]:
    """Names of the beads of a standard residue, in their order."""
    if representation == "ca":
        return ("CA",)
    return ("N", "CA", "C", "O") if residue == "GLY" else ("N", "CA", "CB", "C", "O")


def bead_type(residue: str, bead: str, representation: Representation) -> int:
    """Type of a bead: the residue's number on the bead that carries it, else the backbone's."""
    if representation == "ca" or bead == "CB" or (bead == "CA" and residue == "GLY"):
        return RESIDUE_TYPES[residue]
    return BACKBONE_TYPES[bead]


def bead_label(residue: str, bead: str, representation: Representation) -> str:
    """Name of a bead's class in tables of prior terms: ``"CB(ALA)"``, ``"CA(GLY)"``, ``"N"``."""
    return f"{bead}({residue})" if bead_type(residue, bead, representation) <= len(RESIDUE_TYPES) else bead
